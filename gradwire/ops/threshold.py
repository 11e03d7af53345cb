"""Selection by a threshold. A CPU counts the elements that pass, and selects exactly where an estimate was bad. On a
GPU, where that would need a host sync, an estimate is clamped to the range that a sample shows to be good."""

from collections.abc import Callable, Iterable
from math import ceil, floor

import torch
from torch import Tensor

from gradwire.ops.backend import backend_for
from gradwire.ops.host import on_host
from gradwire.ops.magnitude_sample import Sample
from gradwire.ops.magnitudes import LARGEST, LEAST, MOST
from gradwire.ops.reference.largest import TINY, largest


def top_k_by_estimate(
    x: Tensor, k: int, estimates: Callable[[Tensor], Iterable[float]], bound: Callable[[Tensor, Sample], Tensor]
) -> Tensor:
    """Ascending indices (..., ≤ k) of about the k largest elements of each vector of x (..., n), on a CPU of one.

    On a CPU by the first good one of the `estimates` of a threshold for x (n,), exactly where none is good; on a GPU by
    the `bound` (...,) for x and its sample.
    """
    # a CPU: the first good estimate
    if on_host(x.device):
        flat = x.view(-1)
        good = (chosen for threshold in estimates(flat) if (chosen := _passing(flat, threshold, k)) is not None)
        chosen = next(good, None)
        return (backend_for(x).top_k(flat, k) if chosen is None else chosen).view(*x.shape[:-1], -1)
    # a GPU: one estimate, clamped by a sample
    sample = Sample.of(x, k)
    return _top_k_by_bound(x, k, sample.held(bound(x, sample)))


def select_again(x: Tensor, threshold: float, k: int) -> tuple[Tensor, Tensor | float] | None:
    """Ascending indices (≤ k,) of about the k largest elements of x (n,) by an earlier step's threshold, and 1 where
    that is still a good estimate, else 0: on a GPU a tensor () that the host does not wait for. None on a CPU where the
    estimate is bad."""
    if not on_host(x.device):
        return _top_k_by_bound(x, k, threshold), _fits(x, threshold, k)
    chosen = _passing(x, threshold, k)
    return None if chosen is None else (chosen, 1.0)


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


def largest_above(x: Tensor, threshold: float, k: int, most: int) -> Tensor:
    """Ascending indices (≤ k,) of the k largest elements of x (n,) that reach the threshold; of all elements where more
    than `most` reach it. On a CPU."""
    found = backend_for(x).above(x, threshold, most)
    return largest(*found, k) if found else backend_for(x).top_k(x, k)


def usable(threshold: Tensor, x: Tensor) -> float | None:
    """The threshold (1,) that the host kept, as a number; None where it is 0, and for x on a GPU, which does not count
    the elements that pass, and so could not tell that it no longer fits."""
    return threshold.item() or None if on_host(x.device) else None


def counted(values: Tensor) -> int | None:
    """The number of values other than 0; None on a GPU, where that would need a host sync."""
    return int(values.count_nonzero()) if on_host(values.device) else None


def _passing(x: Tensor, threshold: float, k: int) -> Tensor | None:
    """Ascending indices (≤ k,) of the k largest elements of x (n,) that reach the threshold; None where that is a bad
    estimate for k."""
    found = backend_for(x).above(x, min(max(TINY, threshold), LARGEST), int(MOST * k))
    return largest(*found, k) if found and len(found[0]) >= LEAST * k else None


def _fits(x: Tensor, threshold: float, k: int) -> Tensor:
    """Whether a threshold is a good estimate for k, () on the device of x (n,)."""
    number = (x.abs() >= threshold).sum()
    return (number >= ceil(LEAST * k)) & (number <= floor(MOST * k))


def _top_k_by_bound(x: Tensor, k: int, bounds: Tensor | float) -> Tensor:
    """Ascending indices (..., k) int64 of the k largest elements of each vector of x (..., n) that reach its bound
    (...,), on a GPU without a host sync. Of more than 2 k that reach it the first 2 k compete; of fewer than k all are
    chosen, and others besides."""
    # candidates that reach the bound, and others where they are too few
    limits = bounds.contiguous() if isinstance(bounds, Tensor) else x.new_full(x.shape[:-1], bounds)
    indices, magnitudes = backend_for(x).candidates(x, limits, min(x.shape[-1], int(MOST * k)), k)
    # the largest of them
    return indices.gather(-1, magnitudes.topk(k, sorted=False).indices).sort().values
