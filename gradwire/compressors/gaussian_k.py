"""GaussianK: a threshold from the gradient's mean and standard deviation."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Literal

from torch import Tensor

from gradwire.compressors.context import GroupContext
from gradwire.compressors.estimated import EstimatedThreshold
from gradwire.ops.magnitudes import tail

TRIES = 5
"""Thresholds that are tried: the estimate, and its halves."""


@dataclass(frozen=True)
class GaussianK(EstimatedThreshold, recordable=True):
    """A threshold from a normal distribution with the gradient's mean and variance, of which the share k / n exceeds
    it; halved up to four times while too few elements pass (Shi et al., 2019, https://arxiv.org/abs/1911.08772)."""

    ratio: float = 0.01
    value_bits: Literal[32, 4] = 32

    def thresholds(self, x: Tensor, k: int, context: GroupContext) -> Iterator[float]:
        # fit
        mean = float(x.mean())
        nonzero = tail(x, 0.0, context.scratch)
        square = (nonzero.variance + nonzero.mean**2) * nonzero.count / len(x)  # of all elements
        deviation = sqrt(max(0.0, square - mean * mean))
        # the magnitude that k / n of a standard normal distribution exceeds
        threshold = abs(mean) + NormalDist().inv_cdf(1 - k / len(x) / 2) * deviation
        # halve
        for halvings in range(TRIES):
            yield threshold / 2**halvings
