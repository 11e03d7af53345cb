"""Selection by a threshold. A CPU counts the elements that pass, and selects exactly where an estimate was bad; a GPU
selects exactly."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gradwire.ops.backend import backend_for
from gradwire.ops.host import on_host
from gradwire.ops.magnitudes import LARGEST, LEAST, MOST
from gradwire.ops.reference.largest import TINY, largest

UNUSED = 1 << 62
"""Stands behind the last index where a GPU, which the host does not ask, has chosen fewer than there is room for."""


def counts(device: torch.device) -> bool:
    """Whether exact selection takes fewer passes than an estimated threshold: on a GPU, which counts digits."""
    return not on_host(device)


def top_k_by_estimate(x: Tensor, k: int, estimates: Callable[[Tensor], Iterable[float]]) -> Tensor:
    """Ascending indices (..., ≤ k) of about the k largest elements of x (n,) or (1, n), by the first good one of the
    `estimates` of a threshold for x (n,), exactly where none is good. On a CPU."""
    flat = x.view(-1)
    good = (chosen for threshold in estimates(flat) if (chosen := passing(flat, threshold, k)) is not None)
    chosen = next(good, None)
    return (backend_for(x).top_k(flat, k) if chosen is None else chosen).view(*x.shape[:-1], -1)


def passing(x: Tensor, threshold: float, k: int) -> Tensor | None:
    """Ascending indices (≤ k,) of the k largest elements of x (n,) that reach the threshold; None where that is a bad
    estimate for k. On a CPU."""
    found = backend_for(x).above(x, min(max(TINY, threshold), LARGEST), int(MOST * k))
    return largest(*found, k) if found and len(found[0]) >= LEAST * k else None


def at_least(x: Tensor, threshold: float, k: int) -> tuple[Tensor, Tensor]:
    """Ascending indices (..., ≤ k) and values of the k largest elements of each vector of x (..., n), on a CPU of one,
    that reach the threshold; on a GPU always k, of which those below the threshold have value 0."""
    # a GPU selects exactly, and zeros what is below the threshold
    if not on_host(x.device):
        indices = backend_for(x).top_k(x, k)
        values = x.gather(-1, indices)
        return indices, values.masked_fill_(torch.lt(values.abs(), threshold), 0)
    # a CPU selects among the elements that pass
    indices = largest_above(x.view(-1), threshold, k, int(MOST * k)).view(*x.shape[:-1], -1)
    return indices, x.gather(-1, indices)


def used_at_least(x: Tensor, threshold: float, k: int) -> Tensor:
    """The indices of `at_least`; on a GPU those below the threshold become UNUSED, behind the others."""
    indices, values = at_least(x, threshold, k)
    return indices if on_host(x.device) else torch.where(values != 0, indices, UNUSED).sort(-1).values


def values_at(x: Tensor, indices: Tensor) -> Tensor:
    """The elements of x (n,) at indices (m,); 0 at UNUSED."""
    return x[indices.clamp(max=len(x) - 1)].masked_fill_(indices == UNUSED, 0)


def largest_above(x: Tensor, threshold: float, k: int, most: int) -> Tensor:
    """Ascending indices (≤ k,) of the k largest elements of x (n,) that reach the threshold; of all elements where more
    than `most` reach it. On a CPU."""
    found = backend_for(x).above(x, threshold, most)
    return largest(*found, k) if found else backend_for(x).top_k(x, k)


def usable(threshold: Tensor, x: Tensor) -> float | None:
    """The threshold (1,) that the host kept, as a number. None where it is 0, and for x on a GPU: there the elements
    that pass are not counted, so nothing would show that the threshold no longer fits."""
    return threshold.item() or None if on_host(x.device) else None


def count_nonzero(values: Tensor) -> int | None:
    """The number of values other than 0; None on a GPU, where that would need a host sync."""
    return int(values.count_nonzero()) if on_host(values.device) else None
