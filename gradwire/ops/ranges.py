"""A gradient's coordinates shared out among the ranks by index range."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil

import torch
from torch import Tensor

from gradwire.ops.host import to_device
from gradwire.ops.reference.largest import largest
from gradwire.ops.workspace import Workspace


def even(n: int, world: int) -> list[int]:
    """The bounds (world + 1,) of ranges of n elements that differ by one element at most."""
    return [rank * n // world for rank in range(world + 1)]


def equal_parts(x: Tensor, rows: Tensor, bounds: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """x (n,) cut at `bounds`, and a row for each part, in matrices: the parts that are as long as the first, and behind
    them, where it is shorter, the last."""
    length = max(1, bounds[1])  # of no elements there are no parts
    whole = len(x) // length
    yield x[: whole * length].view(whole, length), rows[:whole, :length]
    if rest := len(x) - whole * length:
        yield x[whole * length :][None], rows[whole : whole + 1, :rest]


def share(k: int, world: int, slack: float, most: int) -> int:
    """How many of k entries one of `world` ranges has room for: its share times `slack`, and no more than `most`."""
    return min(most, ceil(slack * k / world))


def split(
    x: Tensor, indices: Tensor, bounds: Sequence[int], capacity: int, buffers: Workspace
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each range the indices that lie in it, ascending, and their values of x (n,): of more than `capacity`
    those of largest magnitude. On CUDA, where the host does not ask how many there are, zeros for the range's last
    element fill it up."""
    edges = buffers.once(("edges", *bounds), lambda: to_device(torch.tensor(bounds), x.device))
    if x.device.type != "cpu":
        yield from split_on_device(x, indices, bounds, edges, capacity)
        return
    for start, end in pairwise(torch.searchsorted(indices, edges).tolist()):
        part = indices[start:end]
        if len(part) > capacity:
            part = largest(part, x[part].abs_(), capacity)
        yield part, x[part]


def split_on_device(
    x: Tensor, indices: Tensor, bounds: Sequence[int], edges: Tensor, capacity: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """`split` in shapes that do not depend on the data."""
    world, k = len(bounds) - 1, len(indices)
    order = x[indices].abs_().argsort(descending=True)
    owner = torch.searchsorted(edges, indices[order], right=True) - 1
    order = order[owner.argsort(stable=True)]  # range by range, the largest first
    indices = indices[order]
    owner = torch.searchsorted(edges, indices, right=True) - 1
    starts = torch.searchsorted(owner, torch.arange(world, device=x.device))
    position = torch.arange(k, device=x.device) - starts[owner]
    room = torch.where(position < capacity, owner * capacity + position, world * capacity)
    rows = x.new_full((world * capacity + 1,), len(x), dtype=torch.int64)
    rows = rows.scatter_(0, room, indices)[:-1].view(world, capacity).sort().values
    for row, (start, end) in zip(rows, pairwise(bounds), strict=True):
        missing = row == len(x)
        values = x[row.masked_fill(missing, 0)].masked_fill_(missing, 0)
        yield (row.masked_fill(missing, end - 1), values) if start < end else (row[:0], values[:0])
