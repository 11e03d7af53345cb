"""Entries divided among the ranks by ranges of their indices."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil

import torch
from torch import Tensor

from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from gradwire.ops.host import to_device
from gradwire.ops.reference.largest import largest
from gradwire.ops.workspace import Workspace


def even(n: int, world: int) -> list[int]:
    """The bounds (world + 1,) of ranges of n elements that differ by one element at most."""
    return [rank * n // world for rank in range(world + 1)]


def capacity(k: int, world: int, slack: float, most: int) -> int:
    """The entries that a message of one of `world` ranges can hold: k / world times `slack`, at most `most`."""
    return min(most, ceil(slack * k / world))


def send_ranges(
    x: Tensor, rows: Tensor, layout: Entries, indices: Tensor, bounds: Sequence[int], buffers: Workspace, *,
    relative: bool,
) -> None:  # fmt: skip
    """Moves the elements of x (n,) at ascending indices (m,) to payloads (ranges, ≥ nbytes): of each range between two
    bounds, those of largest magnitude up to the layout's capacity. Where `relative`, indices count from the start of
    their range. On a GPU indices of n or more are unused."""
    edges = _edges(bounds, buffers)
    # a GPU: all ranges at once
    if x.device.type != "cpu":
        found, values = split_on_device(x, indices, edges, layout.k)
        sent = backend_for(x).pack_entries(rows, layout, found - edges[:-1, None] if relative else found, values)
        x.index_add_(0, found.view(-1).clamp(max=len(x) - 1), sent.view(-1), alpha=-1)
        return
    # a CPU: range by range
    for row, start, (found, values) in zip(rows, bounds, split(x, indices, edges, layout.k), strict=False):
        origin = start if relative else 0
        send_entries(x[None, origin:], row[None], layout, found[None] - origin, values[None])


def send_entries(x: Tensor, payloads: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> None:
    """Moves the values of vectors x (rows, n) at ascending indices (rows, ≤ k) to payloads (rows, ≥ nbytes): subtracts
    from x what the payloads stand for."""
    sent = backend_for(x).pack_entries(payloads, layout, indices, values)
    if len(x) == 1:
        x[0].index_add_(0, indices[0], sent[0], alpha=-1)
    else:
        x.scatter_add_(1, indices, sent.neg())


def split(x: Tensor, indices: Tensor, edges: Tensor, capacity: int) -> Iterator[tuple[Tensor, Tensor]]:
    """For each range between two edges its indices (≤ capacity,), ascending, and their values in x (n,): of more than
    `capacity` those of largest magnitude. On a CPU."""
    for start, end in pairwise(torch.searchsorted(indices, edges).tolist()):
        # the indices of this range
        part = indices[start:end]
        if len(part) > capacity:
            part = largest(part, x[part].abs_(), capacity)
        yield part, x[part]


def split_on_device(x: Tensor, indices: Tensor, edges: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """`split` without a host sync: indices and values (ranges, ≤ capacity) each, n and 0 behind a range's last
    entry. Indices of n or more are unused."""
    ranges, room = len(edges) - 1, min(len(indices), capacity)
    # sort by range, the largest magnitudes first: as indices ascend, `owner` is the same before and after
    owner = torch.searchsorted(edges[1:], indices, right=True)
    order = x[indices.clamp(max=len(x) - 1)].abs_().argsort(descending=True)
    order = order[owner[order].argsort(stable=True)]
    # the first of each range go to its row; all others, and unused ones, to one more row
    place = torch.arange(len(indices), dtype=torch.int64, device=x.device)
    place -= torch.searchsorted(indices, edges)[owner]
    to = torch.where(place < room, place.add(owner, alpha=room), ranges * room)
    found = indices.new_full(((ranges + 1) * room,), len(x)).scatter_(0, to, indices[order])
    found = found[: ranges * room].view(ranges, room).sort().values
    return found, x[found.clamp(max=len(x) - 1)].masked_fill_(found == len(x), 0)


def receive_ranges(rows: Tensor, out: Tensor, layout: Entries, bounds: Sequence[int], buffers: Workspace) -> None:
    """Writes the entries of payloads (ranges, ≥ nbytes) to the ranges of out (n,), zero elsewhere; indices count from
    the start of their range. All ranges have as many elements as the layout, or one less."""
    # a GPU: all ranges at once
    if out.device.type != "cpu":
        indices, values = backend_for(rows).unpack_entries(rows, layout)
        indices = indices.view(len(rows), -1) + _edges(bounds, buffers)[:-1, None]
        out.zero_().index_add_(0, indices.view(-1), values)  # all indices differ, but for those of zeros
        return
    # a CPU: range by range
    sum_entries = backend_for(out).sum_entries
    for row, start in zip(rows, bounds, strict=False):  # a shorter range overlaps the next, which is written after it
        sum_entries(row[None, None], out[start : start + layout.n], [layout])


def _edges(bounds: Sequence[int], buffers: Workspace) -> Tensor:
    """The bounds (ranges + 1,) int64, on the device of the buffers."""

    def make() -> Tensor:
        return to_device(torch.tensor(bounds, dtype=torch.int64, device="cpu"), buffers.device)

    # the last ones alone: OkTopk's move
    return buffers.latest("edges", tuple(bounds), make)
