"""Numbers as another type."""

from collections.abc import Sequence
from math import inf

from torch import Tensor

from gradwire.ops.tiles import spans
from gradwire.ops.vectors import equal_parts


def cast_parts(x: Tensor, rows: Tensor, bounds: Sequence[int], limit: float, *, keep: bool) -> None:
    """Writes the parts of x (n,) between `bounds`, all as long as the first but for the last, to rows (·, ≥ length) of
    another type, no magnitude above `limit`; where `keep`, leaves in x what is not sent."""
    for parts, room in equal_parts(x, rows, bounds):
        for start, end in spans(x[: parts.shape[1]]):
            part, values = parts[:, start:end], room[:, start:end]
            values.copy_(part)
            if limit < inf:
                values.clamp_(-limit, limit)
            if keep:
                part.sub_(values)
