"""Candidates for selection: elements that reach a bound, found on a GPU without a host sync."""

import torch
from torch import Tensor


def candidates(x: Tensor, bounds: Tensor, capacity: int, k: int) -> tuple[Tensor, Tensor]:
    """Indices int64 and magnitudes (..., capacity + k) of elements of each vector of x (..., n): the first `capacity`
    that reach its bound (...,), and of its first `capacity` elements the first k that do not. Magnitudes are -1 behind
    the last of either."""
    # number the elements that reach the bound
    n = x.shape[-1]
    numbers = (x.abs() >= bounds[..., None]).cumsum(-1, dtype=torch.int32)
    count = torch.arange(1, capacity + 1, dtype=torch.int32, device=x.device).repeat(*x.shape[:-1], 1)
    # the first of each number, and the first others
    found = torch.searchsorted(numbers, count)
    others = torch.searchsorted(count - numbers[..., :capacity], count[..., :k].contiguous())
    indices = torch.cat([found, others.masked_fill_(others == capacity, n)], -1)
    magnitudes = x.gather(-1, indices.clamp(max=n - 1)).abs_()
    return indices, magnitudes.masked_fill_(indices == n, -1)
