"""The gain of compressed steps: a function of the share of gradient and residual that is sent."""

from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal

from gradwire.compressors.multi_level import Measure

Gain = Literal["delay", "energy", "norm"]
"""A measure of a step's progress, by the share of gradient and residual that is sent.

"energy" is |sent|² / |gradient + residual|², as GraVAC prints it, and "norm" its root. "delay" is 1 / (1 + d / h). By
Little's law, the number of steps d that an element waits is what stays behind over what is sent, in sums of absolute
values; h, the horizon, is the delay with which training takes twice the steps.
"""

HORIZON_STEPS = 800
"""The horizon h of controllers without windows."""
LEAST_DELAY_GAIN = 0.7
"""Below it training takes harm."""
LEAST_ENERGY = 0.0228
"""Below it training takes harm: the energy that static ratios of 100x to 300x settle at."""
ENERGY_HORIZON_STEPS = 8.0
"""Of a delay in energy: fits the losses of docs/fidelity.md, after 300 steps; in longer trainings delays cost less."""


@dataclass(frozen=True)
class Reading:
    """A function from the share that is sent to the gain, and its inverse."""

    gain: Gain
    horizon: float = HORIZON_STEPS
    """h of "delay", in steps."""

    @property
    def measure(self) -> Measure:
        """The norm whose share is read."""
        return "magnitude" if self.gain == "delay" else "energy"

    @property
    def least(self) -> float:
        """The gain below which training takes harm."""
        return LEAST_DELAY_GAIN if self.gain == "delay" else self.of(LEAST_ENERGY)

    def of(self, share: float) -> float:
        """The gain, from 0 to 1, where `share` is sent."""
        match self.gain:
            case "energy":
                return share
            case "norm":
                return sqrt(share)
            case "delay":
                return 1 / (1 + delay_of(share) / self.horizon)

    def share(self, gain: float) -> float:
        """The share that this gain stands for; the inverse of `of`."""
        match self.gain:
            case "energy":
                return gain
            case "norm":
                return gain**2
            case "delay":
                return share_of(self.horizon * (1 / gain - 1) if gain else inf)


def efficiency_of(share: float) -> float:
    """The statistical efficiency of steps that send this share of the energy of gradient and residual: how many dense
    steps one is worth, by its delay; 0 where so little is sent that training takes harm."""
    return Reading("delay", ENERGY_HORIZON_STEPS).of(share) if share >= LEAST_ENERGY else 0.0


def delay_of(share: float) -> float:
    """The mean number of steps that an element waits, where this share is sent in each."""
    return 1 / share - 1 if share else inf


def share_of(delay: float) -> float:
    """The inverse of `delay_of`."""
    return 1 / (1 + delay)
