"""Sparsifiers that estimate a threshold instead of selecting exactly."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.base import State, Workspace
from gradwire.compressors.magnitudes import LARGEST
from gradwire.compressors.select import TINY, few_above, largest, lower_bound, top_k
from gradwire.compressors.sparse import Sparse

LEAST, MOST = 0.7, 2.0
"""Of k elements that an estimate aims at, so many times as many must, and may, pass it."""


class Estimated(Sparse):
    """Sends between 0.7 k and k elements, fewer only where no more are other than zero.

    An estimate is good where between 0.7 k and 2 k elements pass it: the k largest of them are sent, the others
    stay in the memory. Where none is, the selection is exact, as it always is on CUDA: there an estimate's count
    would stop the host.
    """

    @abstractmethod
    def thresholds(self, x: Tensor, k: int, state: State) -> Iterator[float]:
        """Estimates of the k-th largest magnitude of x (n,), each below the one before."""

    def select(self, x: Tensor, k: int, state: State) -> Tensor:
        if x.device.type != "cpu":
            return top_k(x, k, state.scratch)
        for threshold in self.thresholds(x, k, state):
            if (chosen := passing(x, threshold, k, state.scratch)) is not None:
                return chosen
        return top_k(x, k, state.scratch)


def passing(x: Tensor, threshold: float, k: int, scratch: Workspace) -> Tensor | None:
    """Ascending indices of the k largest elements of x (n,) that reach the threshold, fewer where fewer do; None
    where the threshold is no good estimate for k."""
    found = few_above(x, min(max(TINY, threshold), LARGEST), MOST * k, scratch)
    return largest(*found, k) if found and len(found[0]) >= LEAST * k else None


@dataclass(frozen=True)
class DGC(Estimated):
    """Deep Gradient Compression's selection: a threshold from a sample, then the largest of what passes it
    (Lin et al., ICLR 2018, https://arxiv.org/abs/1712.01887).

    Pair it with `DGCMemory` for the paper's momentum correction and factor masking.
    """

    ratio: float = 0.01

    def thresholds(self, x: Tensor, k: int, state: State) -> Iterator[float]:
        yield lower_bound(x, k, slack=0.0)


@dataclass(frozen=True)
class HardThreshold(Sparse):
    """The elements of at least `threshold` in magnitude, up to the `ratio`·n largest of them (Dutta et al., AAAI
    2020, https://arxiv.org/abs/1911.08250; Sahu et al., NeurIPS 2021, https://arxiv.org/abs/2108.00951).

    Measured are this rank's own gradients with what it kept of earlier ones, not their share of the mean. The
    payload has room for `ratio`·n elements, whether or not they are used.
    """

    threshold: float
    ratio: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.threshold > 0:
            raise ValueError(f"threshold={self.threshold} lets zeros pass; use a magnitude such as threshold=0.001")

    def select(self, x: Tensor, k: int, state: State) -> Tensor:
        if x.device.type != "cpu":
            return top_k(x, k, state.scratch)
        found = few_above(x, self.threshold / state.world, MOST * k, state.scratch)
        return largest(*found, k) if found else top_k(x, k, state.scratch)

    def encode(self, x: Tensor, payload: Tensor, state: State) -> None:
        super().encode(x, payload, state)
        if x.device.type != "cpu":  # selected without asking the host how many pass
            values = self.layout(len(x)).values(payload)
            values.masked_fill_(torch.lt(values.abs(), self.threshold / state.world), 0)
