"""Sparsifiers that select by an estimated threshold, or by a given one."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.context import GroupContext
from gradwire.compressors.sparse import Sparse
from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from gradwire.ops.ranges import send_entries
from gradwire.ops.reference.largest import lower_bound
from gradwire.ops.threshold import at_least, counts, top_k_by_estimate, used_at_least, values_at


class Thresholded(Sparse):
    """A sparsifier that selects by a threshold on a CPU, and exactly on a GPU, where that takes fewer passes."""

    @abstractmethod
    def select_by_threshold(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        """Ascending indices (≤ k,) int64 of the elements of x (n,), or (1, n), to send; on a CPU."""

    def is_exact(self, device: torch.device) -> bool:
        return counts(device)

    def select(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        return backend_for(x).top_k(x, k) if self.is_exact(x.device) else self.select_by_threshold(x, k, context)


class EstimatedThreshold(Thresholded):
    """A sparsifier with an estimate of the k-th largest magnitude: sends between 0.7 k and k elements, fewer only where
    fewer are other than zero.

    An estimate is good where between 0.7 k and 2 k elements pass it: the k largest of them are sent, the others stay in
    the memory. Where none is good, and always on a GPU, the selection is exact.
    """

    @abstractmethod
    def thresholds(self, x: Tensor, k: int, context: GroupContext) -> Iterator[float]:
        """Estimates of the k-th largest magnitude of x (n,), each below the one before."""

    def select_by_threshold(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        return top_k_by_estimate(x, k, partial(self.thresholds, k=k, context=context))


@dataclass(frozen=True)
class DGC(EstimatedThreshold, recordable=True):
    """Deep Gradient Compression's selection: a threshold from a sample, then the largest elements that pass it
    (Lin et al., ICLR 2018, https://arxiv.org/abs/1712.01887).

    Pair it with `DGCMemory` for the paper's momentum correction and factor masking.
    """

    ratio: float = 0.01
    value_bits: Literal[32, 4] = 32

    def thresholds(self, x: Tensor, k: int, context: GroupContext) -> Iterator[float]:
        yield lower_bound(x, k, slack=0.0)


@dataclass(frozen=True)
class HardThreshold(Sparse, recordable=True):
    """The elements of at least `threshold` in magnitude, up to the `ratio`·n largest of them (Dutta et al., AAAI
    2020, https://arxiv.org/abs/1911.08250; Sahu et al., NeurIPS 2021, https://arxiv.org/abs/2108.00951).

    The payload is as long as that of `ratio`·n elements, even where fewer pass.
    """

    threshold: float
    """Of this rank's own gradients with its residual, before they are divided by the number of ranks; with `weight=` of
    gradients times their weight over the mean weight."""
    ratio: float = 0.01
    value_bits: Literal[32, 4] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.threshold > 0:
            raise ValueError(f"threshold={self.threshold} lets zeros pass; use a magnitude such as threshold=0.001")

    def select(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        return used_at_least(x, self.threshold / context.world, k)

    def values(self, x: Tensor, indices: Tensor) -> Tensor:
        return values_at(x, indices)

    def send(self, x: Tensor, payloads: Tensor, layout: Entries, context: GroupContext) -> None:
        # select by the threshold, pack, and keep what is not sent
        send_entries(x, payloads, layout, *at_least(x, self.threshold / context.world, layout.k))

    def pack(self, x: Tensor, indices: Tensor, payload: Tensor) -> None:
        values, places = self.values(x, indices), indices.clamp(max=len(x) - 1)
        send_entries(x[None], payload[None], self.layout(len(x)), places[None], values[None])
