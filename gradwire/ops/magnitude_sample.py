"""Magnitudes of a sample of vectors, for estimates on a GPU without a host sync."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.ops.magnitudes import LEAST, MOST, Tail

SIZE = 1 << 18
"""Elements, at most about twice as many: enough for 6 % of error in how many of a million pass, at a ratio of 0.001."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Magnitudes of a sample of each vector, to estimate the k-th largest of its n."""

    magnitudes: Tensor
    """(..., m) of elements at equal distances."""
    top: Tensor
    """(..., r) the largest of them, descending, that stand for MOST·k elements."""
    share: float
    """k / n."""

    @classmethod
    def of(cls, x: Tensor, k: int) -> "Sample":
        """A sample of each vector of x (..., n)."""
        n = x.shape[-1]
        magnitudes = x[..., :: n // SIZE | 1].abs()  # an odd stride meets every column of a power-of-two row
        share = k / n
        return cls(magnitudes, magnitudes.topk(_rank(magnitudes, MOST * share)).values, share)

    def exceeded_by(self, times: float) -> Tensor:
        """The magnitudes (...,) that about `times`·k elements of each vector reach, for up to MOST times."""
        return self.top[..., _rank(self.magnitudes, times * self.share) - 1]

    @property
    def expected(self) -> float:
        """The number of elements in the sample that stand for k."""
        return self.share * self.magnitudes.shape[-1]

    def counts(self, thresholds: Tensor) -> Tensor:
        """The number of elements in the sample that reach each of the thresholds (..., t)."""
        return (self.magnitudes[..., None, :] >= thresholds[..., None]).sum(-1, dtype=torch.float32)

    def held(self, estimate: Tensor) -> Tensor:
        """The estimate (...,) of the k-th largest magnitude that is nearest to the given one and that between LEAST·k
        and MOST·k elements reach; the sample's own where the given one is NaN."""
        sound = torch.where(estimate.isnan(), self.exceeded_by(1), estimate.float())
        return sound.clamp(self.exceeded_by(MOST), self.exceeded_by(LEAST))

    def tail(self, threshold: Tensor, *, logs: bool = False) -> Tail[Tensor]:
        """Statistics (...,) of how the sample exceeds thresholds (...,): see `magnitudes.tail`."""
        excess = (self.magnitudes - threshold[..., None]).clamp_(min=0)
        number = excess.count_nonzero(-1).float()
        mean = excess.sum(-1) / number
        variance = excess.square().sum(-1) / number - mean * mean
        log = excess.masked_fill(excess == 0, 1).log().sum(-1) / number if logs else mean
        return Tail(number, mean, variance, log)


def _rank(magnitudes: Tensor, share: float) -> int:
    """The number of magnitudes in this share of them, at least 1."""
    return min(magnitudes.shape[-1], max(1, round(share * magnitudes.shape[-1])))
