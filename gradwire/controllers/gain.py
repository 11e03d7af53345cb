"""What of a gradient gets through: three readings of one measurement, the share of energy that is sent."""

from math import inf, sqrt
from typing import Literal

Gain = Literal["delay", "energy", "norm"]
"""How the share e = |sent|² / |gradient + residual|² is read.

"energy" is e, as GraVAC prints it; "norm" is √e. "delay" is 1 / (1 + d / 100) for the delay d = 1/e - 1: the steps
that the residual, |x|² - |sent|², takes to leave at this rate. An element that is sent d steps late is no loss in
itself, but over some hundred steps it is stale.
"""

HARMLESS_STEPS = 100
LEAST_ENERGY = 0.0228
"""A delay of 43 steps, and a gain of 0.7 by "delay": what static ratios of 100x to 300x settle at."""


def gain_of(energy: float, reading: Gain) -> float:
    """The gain, from 0 to 1, where the share `energy` is sent."""
    match reading:
        case "energy":
            return energy
        case "norm":
            return sqrt(energy)
        case "delay":
            return 1 / (1 + (1 / energy - 1) / HARMLESS_STEPS) if energy else 0.0


def energy_of(gain: float, reading: Gain) -> float:
    """The share of energy that this gain stands for; the inverse of `gain_of`."""
    match reading:
        case "energy":
            return gain
        case "norm":
            return gain**2
        case "delay":
            delay = HARMLESS_STEPS * (1 / gain - 1) if gain else inf
            return 1 / (1 + delay)
