"""The course of a learning rate."""

import math


def up_and_down(step: int, up: float, steps: int) -> float:
    """The factor of the rate: up to 1 in the first `up` steps, then down a cosine to 0.1 at the last of `steps`."""
    if step < up:
        return (step + 1) / up
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - up) / (steps - up)))
