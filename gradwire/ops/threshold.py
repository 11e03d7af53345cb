"""Selecting by a threshold: a CPU counts what passes, and selects exactly where an estimate was none; a GPU is not
asked, so there an estimate is held within what a sample shows."""

from collections.abc import Callable, Iterable
from math import ceil, floor

import torch
from torch import Tensor

from gradwire.ops.kernels import kernels_for
from gradwire.ops.magnitudes import LARGEST
from gradwire.ops.reference.largest import TINY, largest
from gradwire.ops.select import above, top_k

LEAST, MOST = 0.7, 2.0
"""Of k elements that an estimate aims at, so many times as many must, and may, pass it."""


def can_count(x: Tensor) -> bool:
    """Whether the host may ask how many elements of x pass a threshold."""
    return x.device.type == "cpu"


def top_k_by_estimate(x: Tensor, k: int, estimates: Callable[[], Iterable[float]]) -> Tensor:
    """Ascending indices of about the k largest |x| (n,), by the first of the estimated thresholds that is good; exactly
    the k largest where none is. On a CPU."""
    for threshold in estimates():
        if (chosen := passing(x, threshold, k)) is not None:
            return chosen
    return top_k(x, k)


def passing(x: Tensor, threshold: float, k: int) -> Tensor | None:
    """Ascending indices of the k largest elements of x (n,) that reach the threshold, fewer where fewer do; None
    where the threshold is no good estimate for k."""
    found = above(x, min(max(TINY, threshold), LARGEST), int(MOST * k))
    return largest(*found, k) if found and len(found[0]) >= LEAST * k else None


def fits(x: Tensor, threshold: float, k: int) -> Tensor:
    """Whether a threshold is a good estimate for k, (), wherever x (n,) is."""
    number = (x.abs() >= threshold).sum()
    return (number >= ceil(LEAST * k)) & (number <= floor(MOST * k))


def top_k_by_bound(x: Tensor, k: int, bounds: Tensor | float) -> Tensor:
    """Ascending indices (..., k) int64 of the k largest elements of each vector of x (..., n) that reach its bound
    (...,), on a GPU, whose host waits for nothing. Of more than 2 k that reach it the first 2 k are looked at; of fewer
    than k all are chosen, and others besides."""
    limits = bounds.contiguous() if isinstance(bounds, Tensor) else x.new_full(x.shape[:-1], bounds)
    indices, magnitudes = kernels_for(x).candidates(x, limits, min(x.shape[-1], int(MOST * k)), k)
    return indices.gather(-1, magnitudes.topk(k, sorted=False).indices).sort().values


def at_least(x: Tensor, threshold: float, k: int) -> tuple[Tensor, Tensor]:
    """Ascending indices (≤ k,) and values of the k largest elements of x (n,) that reach the threshold; on a GPU k of
    each vector of x (..., n), and the values of those that do not are 0."""
    if not can_count(x):
        indices = top_k(x, k)
        values = x.gather(-1, indices)
        return indices, values.masked_fill_(torch.lt(values.abs(), threshold), 0)
    found = above(x, threshold, int(MOST * k))
    indices = largest(*found, k) if found else top_k(x, k)
    return indices, x[indices]
