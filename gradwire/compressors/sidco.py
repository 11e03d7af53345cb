"""SIDCo: a threshold from a distribution that is fitted to the tail of the tail."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import expm1, lgamma, log, sqrt
from typing import Literal

from torch import Tensor

from gradwire.compressors.context import GroupContext
from gradwire.compressors.threshold import Estimated
from gradwire.ops.magnitudes import Tail, tail


@dataclass(frozen=True)
class SIDCo(Estimated):
    """A sparsity-inducing distribution is fitted to the magnitudes, then again to those above the threshold it
    gives, in `stages` (Abdelmoniem et al., MLSys 2021, https://arxiv.org/abs/2101.10761).

    Each stage counts what passed the last one and aims at the same share of it, so that what is left is k. The
    stages after a "gamma" are Pareto's.
    """

    ratio: float = 0.01
    distribution: Literal["exponential", "gamma", "pareto"] = "exponential"
    stages: int = 3
    value_bits: Literal[32, 4] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distribution not in ("exponential", "gamma", "pareto"):
            raise ValueError(f"distribution={self.distribution!r} is unknown; use 'exponential', 'gamma' or 'pareto'")
        if self.stages < 1:
            raise ValueError(f"stages={self.stages} estimates nothing; use stages=1 or more")

    def thresholds(self, x: Tensor, k: int, context: GroupContext) -> Iterator[float]:
        threshold = 0.0
        for stage in range(self.stages):
            fits_gamma = self.distribution == "gamma" and stage == 0
            excess = tail(x, threshold, context.scratch, logs=fits_gamma)
            if excess.count <= k or excess.mean <= 0:
                break
            share = (k / excess.count) ** (1 / (self.stages - stage))
            quantile = gamma if fits_gamma else exponential if self.distribution == "exponential" else pareto
            threshold += max(0.0, quantile(excess, share))
        yield threshold


def exponential(excess: Tail, share: float) -> float:
    """What a share of an exponential distribution exceeds."""
    return -excess.mean * log(share)


def pareto(excess: Tail, share: float) -> float:
    """What a share of a generalised Pareto distribution exceeds; fitted by moments."""
    spread = excess.mean * excess.mean / max(excess.variance, 1e-6 * excess.mean * excess.mean)
    shape, scale = (spread - 1) / 2, excess.mean * (spread + 1) / 2  # shape is minus the usual one
    return -scale * log(share) if abs(shape) < 1e-6 else -scale * expm1(shape * log(share)) / shape


def gamma(excess: Tail, share: float) -> float:
    """About what a share of a gamma distribution exceeds; fitted by maximum likelihood, approximately."""
    skew = max(log(excess.mean) - excess.log, 1e-6)
    shape = (3 - skew + sqrt((skew - 3) ** 2 + 24 * skew)) / (12 * skew)
    return -excess.mean / shape * (log(share) + lgamma(shape))
