"""The exchange of sparse gradients, such as those of Embedding(sparse=True): their rows travel as they are."""

from collections.abc import Sequence
from itertools import starmap
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Gather, Message
from gradwire.compressors import Reduction
from gradwire.ops.vectors import Scalar
from gradwire.plans import Group
from gradwire.runtime.exchange import GroupExchange, GroupInput, JobContext
from gradwire.runtime.store import StoredGroup
from gradwire.slots import Slot

WORD = 8
"""Bytes of an index; all parts of a payload begin on multiples of it."""
Rows = tuple[Tensor, Tensor]
"""Indices (n,) of rows, and the rows (n, ...)."""


class RowExchange(GroupExchange):
    """Gathers the rows of all ranks, each times its rank's part of the mean, and sums those of the same index.

    turn 0    the numbers of rows are gathered
    turn 1    the rows, in payloads as large as the largest rank's
    turn 2    each gradient becomes the mean, which has the rows of all ranks
    """

    compresses = False
    why_not_recorded: ClassVar[str] = "sparse gradients have other sizes at every step"

    def __init__(self, group: Group, index: int, stored: StoredGroup, job: JobContext) -> None:
        self.group, self.index, self.stored, self.rounds = group, index, stored, 2
        self._slots, self._world = stored.layout.slots, job.mesh.replica.world
        self.nonfinite = torch.zeros(1, dtype=torch.float32, device=stored.buffers.device)

    def __str__(self) -> str:
        return f"the sparse gradients of {', '.join(map(repr, self.group.slots))}"

    def run(self, given: GroupInput, step: int) -> Reduction:
        self.input = given
        self.nonfinite.zero_()
        own = list(map(_rows, given.gradients.tensors))
        # gather the numbers of rows, and whether a rank's backward pass failed
        counts = [len(indices) for indices, _ in own]
        sent = torch.tensor([*counts, given.lost], dtype=torch.int64, device=self.nonfinite.device)
        table = sent.new_empty(self._world, len(sent))
        yield Gather(Message.plain(sent), Message.plain(table))
        # gather the rows
        *by_slot, lost = table.T.tolist()
        by_rank = list(zip(*by_slot, strict=True))
        payload = self._bytes("payload", max(map(self._size, by_rank)))
        self._pack(own, payload[0], given.part(self._world))
        payloads = self._bytes("payloads", payload.shape[1], self._world)
        yield Gather(Message.plain(payload[0]), Message.plain(payloads))
        # sum rows of the same index
        parts = [self._views(*each) for each in zip(payloads, by_rank, strict=True)]
        for i, (slot, tensor) in enumerate(zip(self._slots, given.gradients.tensors, strict=True)):
            self._write(tensor, _sum(slot, [rows[i] for rows in parts]))
        if any(lost):
            self.nonfinite.fill_(torch.nan)

    def poison(self, nonfinite: Tensor | None) -> None:
        assert self.input is not None
        for tensor in self.input.gradients.tensors:
            numbers = tensor.values() if tensor.is_sparse else tensor
            numbers.fill_(torch.nan) if nonfinite is None else numbers.add_(nonfinite)

    def means(self) -> dict[str, Tensor]:
        """None: controllers see what plans have."""
        return {}

    def commit(self) -> None:
        self.stored.commit()

    def _write(self, tensor: Tensor, mean: Tensor) -> None:
        # the same on all ranks, which have the same rows
        self.nonfinite.add_(mean.values().sum(dtype=torch.float32) * 0)
        tensor.copy_(mean if tensor.is_sparse else mean.to_dense())

    def _bytes(self, name: str, size: int, rows: int = 1) -> Tensor:
        """A kept buffer (rows, size), which is never empty."""
        return self.stored.buffers.tensor(name, (rows, max(WORD, size)), torch.uint8)

    def _pack(self, own: Sequence[Rows], payload: Tensor, part: Scalar) -> None:
        """Writes this rank's part of the mean to the payload's beginning."""
        views = self._views(payload, [len(indices) for indices, _ in own])
        for (indices, rows), (indices_there, rows_there) in zip(own, views, strict=True):
            indices_there.copy_(indices)
            torch.mul(rows, part, out=rows_there)

    def _views(self, payload: Tensor, counts: Sequence[int]) -> list[Rows]:
        """The rows of each slot in a rank's payload, which has so many."""
        parts: list[Rows] = []
        at = 0
        for slot, count in zip(self._slots, counts, strict=True):
            middle, end = at + WORD * count, at + _size(slot, count)
            numbers = payload[middle:end].view(slot.dtype)[: count * _width(slot)]
            parts.append((payload[at:middle].view(torch.int64), numbers.view(count, *slot.shape[1:])))
            at = end
        return parts

    def _size(self, counts: Sequence[int]) -> int:
        """The bytes of so many rows of each slot."""
        return sum(starmap(_size, zip(self._slots, counts, strict=True)))


def _width(slot: Slot) -> int:
    return slot.numel // slot.shape[0]


def _size(slot: Slot, count: int) -> int:
    return WORD * count + -(-count * _width(slot) * slot.dtype.itemsize // WORD) * WORD


def _rows(gradient: Tensor) -> Rows:
    """The gradient's rows, each index once; of a dense one those that are not zero."""
    gradient = gradient.detach()
    rows = (gradient if gradient.is_sparse and gradient.sparse_dim() == 1 else gradient.to_sparse(1)).coalesce()
    return rows.indices()[0], rows.values()


def _sum(slot: Slot, parts: Sequence[Rows]) -> Tensor:
    """The sum of rows with the same index, added up in the order of ranks."""
    indices, values = (torch.cat(each) for each in zip(*parts, strict=True))
    return torch.sparse_coo_tensor(
        indices[None], values, slot.shape, dtype=slot.dtype, device=values.device, check_invariants=False
    ).coalesce()
