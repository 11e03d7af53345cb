"""Selecting by a threshold: cheap on a CPU, where counting what passes costs one pass; on a GPU, where the host would
have to wait for the count, selection is exact instead."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gradwire.ops.magnitudes import LARGEST
from gradwire.ops.reference.largest import TINY, largest
from gradwire.ops.select import above, top_k

LEAST, MOST = 0.7, 2.0
"""Of k elements that an estimate aims at, so many times as many must, and may, pass it."""


def estimates_help(x: Tensor) -> bool:
    """Whether a threshold spares x's device anything."""
    return x.device.type == "cpu"


def top_k_by_estimate(x: Tensor, k: int, estimates: Callable[[], Iterable[float]]) -> Tensor:
    """Ascending indices of about the k largest |x| (n,), by the first of the estimated thresholds that is good; exactly
    the k largest where none is, and on a GPU."""
    for threshold in estimates() if estimates_help(x) else ():
        if (chosen := passing(x, threshold, k)) is not None:
            return chosen
    return top_k(x, k)


def passing(x: Tensor, threshold: float, k: int) -> Tensor | None:
    """Ascending indices of the k largest elements of x (n,) that reach the threshold, fewer where fewer do; None
    where the threshold is no good estimate for k."""
    found = above(x, min(max(TINY, threshold), LARGEST), int(MOST * k))
    return largest(*found, k) if found and len(found[0]) >= LEAST * k else None


def at_least(x: Tensor, threshold: float, k: int) -> tuple[Tensor, Tensor]:
    """Ascending indices (≤ k,) and values of the k largest elements of x (n,) that reach the threshold; on a GPU the
    values of those that do not are 0."""
    if not estimates_help(x):
        indices = top_k(x, k)
        values = x[indices]
        return indices, values.masked_fill_(torch.lt(values.abs(), threshold), 0)
    found = above(x, threshold, int(MOST * k))
    indices = largest(*found, k) if found else top_k(x, k)
    return indices, x[indices]
