"""Numbers as another type."""

from collections.abc import Sequence
from math import inf

from torch import Tensor

from gradwire.ops.tiles import spans
from gradwire.ops.vectors import equal_parts


def cast_parts(x: Tensor, rows: Tensor, bounds: Sequence[int], limit: float, *, keep: bool) -> None:
    """See `gradwire.ops.kernels`."""
    for parts, room in equal_parts(x, rows, bounds):
        for start, end in spans(x[: parts.shape[1]]):
            part, values = parts[:, start:end], room[:, start:end]
            values.copy_(part)
            if limit < inf:
                values.clamp_(-limit, limit)
            if keep:
                part.sub_(values)
