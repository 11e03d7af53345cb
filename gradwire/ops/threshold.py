"""Selecting by a threshold: cheap on a CPU, where counting what passes costs one pass; on a GPU, where the host would
have to wait for the count, selection is exact instead."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gradwire.ops.magnitudes import LARGEST
from gradwire.ops.select import TINY, few_above, largest, top_k
from gradwire.ops.workspace import Workspace

LEAST, MOST = 0.7, 2.0
"""Of k elements that an estimate aims at, so many times as many must, and may, pass it."""


def estimates_help(x: Tensor) -> bool:
    """Whether a threshold spares x's device anything."""
    return x.device.type == "cpu"


def top_k_by_estimate(x: Tensor, k: int, estimates: Callable[[], Iterable[float]], scratch: Workspace) -> Tensor:
    """Ascending indices of about the k largest |x| (n,), by the first of the estimated thresholds that is good; exactly
    the k largest where none is, and on a GPU."""
    for threshold in estimates() if estimates_help(x) else ():
        if (chosen := passing(x, threshold, k, scratch)) is not None:
            return chosen
    return top_k(x, k, scratch)


def passing(x: Tensor, threshold: float, k: int, scratch: Workspace) -> Tensor | None:
    """Ascending indices of the k largest elements of x (n,) that reach the threshold, fewer where fewer do; None
    where the threshold is no good estimate for k."""
    found = few_above(x, min(max(TINY, threshold), LARGEST), MOST * k, scratch)
    return largest(*found, k) if found and len(found[0]) >= LEAST * k else None


def at_least(x: Tensor, threshold: float, k: int, scratch: Workspace) -> tuple[Tensor, Tensor]:
    """Ascending indices (≤ k,) and values of the k largest elements of x (n,) that reach the threshold; on a GPU the
    values of those that do not are 0."""
    if not estimates_help(x):
        indices = top_k(x, k, scratch)
        values = x[indices]
        return indices, values.masked_fill_(torch.lt(values.abs(), threshold), 0)
    found = few_above(x, threshold, MOST * k, scratch)
    indices = largest(*found, k) if found else top_k(x, k, scratch)
    return indices, x[indices]
