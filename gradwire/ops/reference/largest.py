"""Exact top-k in numpy on a CPU: a sample bounds the k-th largest magnitude, and few elements are compared."""

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.sample import stride_of
from gradwire.ops.tiles import TILE, tile_bounds
from gradwire.ops.workspace import Workspace

SAMPLE = 1 << 14
"""Elements of a sample, at most."""
TINY = float(np.finfo(np.float32).tiny)
"""The least normal number: elements below it are never selected."""


def top_k(x: Tensor, k: int, scratch: Workspace) -> Tensor:
    """`top_k` of `gradwire.ops.reference.selecting` for a vector x (n,)."""
    # elements above a bound that k of them reach with near certainty, or a lower one where they did not
    for slack in (4.0, 40.0):
        survivors, magnitude = _above(x, lower_bound(x, k, slack), scratch)
        if len(survivors) >= k:
            return _largest(survivors, magnitude, k)
    return _largest(*_above(x, TINY, scratch), k)


def lower_bound(x: Tensor, k: int, slack: float) -> float:
    """A magnitude that at least k elements of x (n,) reach, with near certainty: a quantile of a strided sample,
    `slack` standard deviations below that of the k-th largest."""
    n = len(x)
    if n <= SAMPLE:
        return TINY
    # a strided sample
    sample = np.abs(x.numpy()[:: stride_of(n, SAMPLE)])
    # the sample's order statistic, and `slack` standard deviations of its count further down
    rank = k / n * len(sample)
    rank = max(1, int(rank + slack * rank**0.5 + slack))
    if rank >= len(sample):
        return TINY
    return max(TINY, float(np.partition(sample, len(sample) - rank)[len(sample) - rank]))


def _above(x: Tensor, bound: float, scratch: Workspace) -> tuple[np.ndarray, np.ndarray]:
    found = few_above(x, bound, len(x), scratch)
    assert found is not None
    return found


def few_above(x: Tensor, bound: float, most: float, scratch: Workspace) -> tuple[np.ndarray, np.ndarray] | None:
    """Ascending indices int64 and magnitudes (m,) of the elements of x (n,) with |x| >= bound, in one pass; None as
    soon as there are more than `most`."""
    # buffers of a tile
    values, limit = x.numpy(), np.float32(bound)
    magnitude = scratch.tensor("magnitude", (TILE,)).numpy()
    mask = scratch.tensor("mask", (TILE,), torch.bool).numpy()
    found = []
    sizes = []
    total = 0
    # tile by tile; stop as soon as there are too many
    for start, end in tile_bounds(x):
        m = np.abs(values[start:end], out=magnitude[: end - start])
        passing = np.greater_equal(m, limit, out=mask[: end - start])
        total += np.count_nonzero(passing)
        if total > most:
            return None
        hits = np.flatnonzero(passing)
        sizes.append(m[hits])
        hits += start
        found.append(hits)
    # join the tiles
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    return np.concatenate(found), np.concatenate(sizes)


def largest(indices: Tensor, magnitude: Tensor, k: int) -> Tensor:
    """The k of `indices` (m,) with the largest `magnitude` (m,), in their old order; on a CPU."""
    return _largest(indices.numpy(), magnitude.numpy(), k)


def _largest(indices: np.ndarray, magnitude: np.ndarray, k: int) -> Tensor:
    if len(indices) <= k:
        return torch.from_numpy(indices)
    # those above the k-th largest magnitude, and the first of those equal to it
    kth = np.partition(magnitude, len(magnitude) - k)[len(magnitude) - k]
    chosen = magnitude > kth
    ties = np.flatnonzero(magnitude == kth)
    chosen[ties[: k - np.count_nonzero(chosen)]] = True
    return torch.from_numpy(indices[chosen])
