"""Numbers as another type."""

from collections.abc import Sequence
from math import inf

from torch import Tensor

from gradwire.ops.vectors import equal_parts


def cast_parts(x: Tensor, rows: Tensor, bounds: Sequence[int], limit: float, *, keep: bool) -> None:
    """See `gradwire.ops.kernels`."""
    for parts, room in equal_parts(x, rows, bounds):
        values = room[:, : parts.shape[1]].copy_(parts)
        if limit < inf:
            values.clamp_(-limit, limit)
        if keep:
            parts.sub_(values)
