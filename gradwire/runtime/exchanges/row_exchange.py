"""The exchange of sparse gradients, such as those of Embedding(sparse=True): their rows alone travel."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import ALIGNED, Gather, Message, aligned
from gradwire.compressors import Reduction
from gradwire.ops.vectors import Scalar, leave_out
from gradwire.plans import Group
from gradwire.runtime.exchanges.exchange import GroupExchange, JobContext
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.state.row_formats import format_of
from gradwire.runtime.state.row_memory import Rows
from gradwire.runtime.state.stored_group import StoredGroup
from gradwire.slots import Slot

INDEX = 8
"""Bytes of an index."""


class RowExchange(GroupExchange):
    """Gathers the rows of all ranks, each times its rank's part of the mean, and sums those of the same index. Rows go
    as they are, or in few bits; with a memory, a row's error goes with the next row of its index.

    turn 0    residuals are added; the numbers of rows are gathered
    turn 1    rows are encoded and gathered, in payloads as large as the largest rank's
    turn 2    each gradient becomes the mean, which has the rows of all ranks
    """

    compresses = False
    why_not_recorded: ClassVar[str] = "sparse gradients have other sizes at every step"

    def __init__(self, group: Group, index: int, stored: StoredGroup, job: JobContext) -> None:
        super().__init__(group, index, stored)
        self.rounds = 2
        self._slots, self._world = stored.layout.slots, job.mesh.replica.world
        assert stored.rows
        self._format, self._memory = format_of(group.compressor), stored.rows
        self._feeds_back = group.memory.error_feedback
        self.nonfinite = torch.zeros(1, dtype=torch.float32, device=stored.buffers.device)

    def __str__(self) -> str:
        return f"the sparse gradients of {', '.join(map(repr, self.group.slots))}"

    def run(self, given: GroupInput, step: int) -> Reduction:
        self.input = given
        self.nonfinite.zero_()
        # add residuals
        own = [self._weighted(i, tensor, given) for i, tensor in enumerate(given.gradients.tensors)]
        # gather the numbers of rows, and whether a rank's are not finite or its backward pass failed
        counts = [len(indices) for indices, _ in own]
        sent = torch.tensor([*counts, given.given_up], dtype=torch.int64, device=self.nonfinite.device)
        sent[-1:] |= self.nonfinite.isnan()
        table = sent.new_empty(self._world, len(sent))
        yield Gather(Message.plain(sent), Message.plain(table))
        # encode, gather the rows
        *by_slot, bad = table.T.tolist()
        by_rank = list(zip(*by_slot, strict=True))
        payload = self._bytes("payload", max(map(self._size, by_rank)))
        self._pack(own, payload[0])
        payloads = self._bytes("payloads", payload.shape[1], self._world)
        yield Gather(Message.plain(payload[0]), Message.plain(payloads))
        # sum rows of the same index
        parts = [self._unpack(*each) for each in zip(payloads, by_rank, strict=True)]
        for i, tensor in enumerate(given.gradients.tensors):
            self._write(tensor, *_sum([rows[i] for rows in parts]), given)
        if any(bad):
            self.nonfinite.fill_(torch.nan)

    def poison(self) -> None:
        for numbers in self._numbers():
            numbers.fill_(torch.nan)

    def firsts(self) -> list[Tensor]:
        """One element (1,) of each slot's mean, but for those without any rows."""
        return [numbers.view(-1)[:1] for numbers in self._numbers() if numbers.numel()]

    def _numbers(self) -> list[Tensor]:
        """The numbers of each slot's mean."""
        return [tensor.values() if tensor.is_sparse else tensor for tensor in self.input.gradients.tensors]

    def means(self) -> dict[str, Tensor]:
        """None: controllers see what plans have."""
        return {}

    def commit(self) -> None:
        self.stored.commit()
        self._memory.commit()

    def take_back(self) -> None:
        super().take_back()
        self._memory.take_back()

    def forget(self) -> None:
        super().forget()
        self._memory.forget()

    def _weighted(self, i: int, gradient: Tensor, given: GroupInput) -> Rows:
        """The rows of a slot that this rank sends: its part of the mean, and with a memory their errors before."""
        indices, rows = _rows(gradient)
        if not self._feeds_back:
            rows = _times(rows, given.part(self._world))
        else:
            residual = self._memory.read(self.stored.slots[i], indices)
            rows = residual.add_(_times(rows.to(torch.float32), given.weight(self._world)))
        # looked at before encoding: codes of few bits have no NaN
        self.nonfinite.masked_fill_(~rows.isfinite().all(), torch.nan)
        return indices, rows

    def _pack(self, own: Sequence[Rows], payload: Tensor) -> None:
        """Writes this rank's rows to the payload's beginning; with a memory, stages their errors."""
        views = self._views(payload, [len(indices) for indices, _ in own])
        for i, ((indices, rows), (place, slot, part)) in enumerate(zip(own, views, strict=True)):
            place.copy_(indices)
            error = self._format.write(slot, rows, part)
            if self._feeds_back and error is not None:
                self._memory.stage(self.stored.slots[i], indices, error)

    def _unpack(self, payload: Tensor, counts: Sequence[int]) -> list[Rows]:
        """The rows of each slot in a rank's payload."""
        # indices as they are, rows decoded
        views = zip(self._views(payload, counts), counts, strict=True)
        return [(place, self._format.read(slot, part, count)) for (place, slot, part), count in views]

    def _write(self, tensor: Tensor, indices: Tensor, rows: Tensor, given: GroupInput) -> None:
        if self._feeds_back and given.scale is not None:
            rows.mul_(given.scale)
        rows = rows.to(tensor.dtype)
        # the same on all ranks, which have the same rows
        self.nonfinite.add_(rows.sum(dtype=torch.float32) * 0)
        mean = torch.sparse_coo_tensor(
            indices[None], rows, tensor.shape, device=rows.device, is_coalesced=True, check_invariants=False
        )
        tensor.copy_(mean if tensor.is_sparse else mean.to_dense())

    def _bytes(self, name: str, size: int, rows: int = 1) -> Tensor:
        """A kept buffer (rows, size), which is never empty."""
        return self.stored.buffers.tensor(name, (rows, max(ALIGNED, size)), torch.uint8)

    def _views(self, payload: Tensor, counts: Sequence[int]) -> Iterator[tuple[Tensor, Slot, Tensor]]:
        """By slot, its indices (count,) and the bytes of its rows in a rank's payload with these counts of rows."""
        at = 0
        for slot, count in zip(self._slots, counts, strict=True):
            middle = at + aligned(INDEX * count)
            nbytes = self._format.nbytes(slot, count)
            yield payload[at : at + INDEX * count].view(torch.int64), slot, payload[middle : middle + nbytes]
            at = middle + aligned(nbytes)

    def _size(self, counts: Sequence[int]) -> int:
        """The bytes of a payload with these counts of rows by slot."""
        each = zip(self._slots, counts, strict=True)
        return sum(aligned(INDEX * count) + aligned(self._format.nbytes(slot, count)) for slot, count in each)


def _rows(gradient: Tensor) -> Rows:
    """The gradient's rows, each index once; of a dense gradient the rows that are not zero."""
    gradient = gradient.detach()
    rows = (gradient if gradient.is_sparse and gradient.sparse_dim() == 1 else gradient.to_sparse(1)).coalesce()
    return rows.indices()[0], rows.values()


def _times(rows: Tensor, weight: Scalar) -> Tensor:
    """The rows times a weight; zeros where that is 0, also of NaN."""
    weighted = rows * weight
    leave_out([weighted], weight)
    return weighted


def _sum(parts: Sequence[Rows]) -> Rows:
    """The sum of rows with the same index, each index once, added up in the order of ranks: in float32, or wider."""
    indices, places = torch.unique(torch.cat([indices for indices, _ in parts]), return_inverse=True)
    _, first = parts[0]
    dtype = torch.promote_types(first.dtype, torch.float32)
    total = torch.zeros(len(indices), *first.shape[1:], dtype=dtype, device=first.device)
    for own, (_, rows) in zip(places.split([len(indices) for indices, _ in parts]), parts, strict=True):
        total.index_add_(0, own, rows.to(dtype))
    return indices, total
