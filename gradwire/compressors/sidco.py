"""SIDCo: a threshold from a distribution that is fitted to the tail, and to the tail's tail."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.context import GroupContext
from gradwire.compressors.estimated import EstimatedThreshold
from gradwire.ops.magnitudes import Tail, tail

MOST_STAGES = 100


@dataclass(frozen=True)
class SIDCo(EstimatedThreshold, recordable=True):
    """The threshold of a sparsity-inducing distribution that is fitted to the magnitudes, then again to those above the
    threshold it gives, in stages (Abdelmoniem et al., MLSys 2021, https://arxiv.org/abs/2101.10761).

    Each stage keeps the same ratio of the elements that passed the one before, so that k pass the last.
    """

    ratio: float = 0.01
    distribution: Literal["exponential", "gamma", "pareto"] = "exponential"
    """Of all stages, but that the stages after a "gamma" are Pareto's."""
    stages: int = 3
    """How often a threshold is estimated."""
    value_bits: Literal[32, 4] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.stages <= MOST_STAGES:
            raise ValueError(f"stages={self.stages} are not 1 to {MOST_STAGES}; use e.g. stages=3")

    def thresholds(self, x: Tensor, k: int, context: GroupContext) -> Iterator[float]:
        threshold = 0.0
        for stage in range(self.stages):
            # count and mean of the excesses over the threshold so far
            excess = tail(x, threshold, context.scratch, logs=self._fits_gamma(stage))
            if excess.count <= k or excess.mean <= 0:
                break
            # fit, and raise the threshold
            fitted = Tail(*(torch.tensor(number, dtype=torch.float64, device="cpu") for number in astuple(excess)))
            threshold += max(0.0, float(self._quantile(fitted, k, stage)))
        yield threshold

    def _fits_gamma(self, stage: int) -> bool:
        return self.distribution == "gamma" and stage == 0

    def _quantile(self, excess: Tail[Tensor], k: float, stage: int) -> Tensor:
        """The distance to the next threshold."""
        # the same ratio at each stage that is left
        share = (k / excess.count) ** (1 / (self.stages - stage))
        if self._fits_gamma(stage):
            return gamma(excess, share)
        return (exponential if self.distribution == "exponential" else pareto)(excess, share)


def exponential(excess: Tail[Tensor], share: Tensor) -> Tensor:
    """The value that this share of an exponential distribution exceeds."""
    return -excess.mean * share.log()


def pareto(excess: Tail[Tensor], share: Tensor) -> Tensor:
    """The value that this share of a generalised Pareto distribution exceeds; fitted by moments."""
    square = excess.mean * excess.mean
    spread = square / torch.maximum(excess.variance, 1e-6 * square)
    shape, scale = (spread - 1) / 2, excess.mean * (spread + 1) / 2  # shape is minus the usual one
    log = share.log()
    return torch.where(shape.abs() < 1e-6, -scale * log, -scale * torch.expm1(shape * log) / shape)


def gamma(excess: Tail[Tensor], share: Tensor) -> Tensor:
    """About the value that this share of a gamma distribution exceeds; fitted by maximum likelihood, approximately."""
    skew = (excess.mean.log() - excess.log).clamp(min=1e-6)
    shape = (3 - skew + torch.sqrt((skew - 3) ** 2 + 24 * skew)) / (12 * skew)
    return -excess.mean / shape * (share.log() + torch.lgamma(shape))
