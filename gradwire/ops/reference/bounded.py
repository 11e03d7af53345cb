"""What passes a bound, for a GPU, whose host is not asked how many elements do."""

import torch
from torch import Tensor


def candidates(x: Tensor, bounds: Tensor, room: int, k: int) -> tuple[Tensor, Tensor]:
    """Of each vector of x (..., n) the first `room` elements that reach its bound (...,), and of its first `room`
    elements the first k that do not: their indices int64 and magnitudes (..., room + k), which are -1 where there were
    not so many."""
    n = x.shape[-1]
    numbers = (x.abs() >= bounds[..., None]).cumsum(-1, dtype=torch.int32)  # of those up to each that reach it
    count = torch.arange(1, room + 1, dtype=torch.int32, device=x.device).repeat(*x.shape[:-1], 1)
    found = torch.searchsorted(numbers, count)
    others = torch.searchsorted(count - numbers[..., :room], count[..., :k].contiguous())
    indices = torch.cat([found, others.masked_fill_(others == room, n)], -1)
    magnitudes = x.gather(-1, indices.clamp(max=n - 1)).abs_()
    return indices, magnitudes.masked_fill_(indices == n, -1)
