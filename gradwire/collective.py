"""The collectives that a reduction may ask for: plain values, so that no algorithm touches the network.

A reduction is a generator that yields one of these and goes on once all ranks took part. `wire_bytes(world)` is what
one rank sends in a bandwidth-optimal implementation, which gloo's and NCCL's rings are.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

REPLICA = "replica"
"""The axis along which gradients are reduced: the ranks that compress among each other."""
HOST = "host"
"""The axis of the ranks of one host, which first add up their gradients dense."""
SHARD = "shard"
"""The axis of the ranks that hold one replica together. Nothing is reduced along it but what all ranks must know."""

FLAG_BYTES = 4
ALIGNED = 16
"""Rows of payloads, and pieces in a parcel, start on multiples of so many bytes, groups in a state on multiples of so
many elements. From other places NCCL copies byte by byte, no view of another type can begin there, and kernels would
need a variant that reads shorter words."""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Message:
    """A buffer that is sent or received by a collective.

    `body` (n,) or (rows, n) is what an algorithm reads and writes. Behind it, or behind each of its rows, is a flag in
    `flags`, which the runtime sends along: NaN where a gradient was not finite, else 0. `whole` is both.
    """

    whole: Tensor
    body: Tensor
    flags: Tensor | None = None

    @classmethod
    def plain(cls, tensor: Tensor) -> Self:
        """A message without a flag, such as a gradient that is summed where it lies. Raises ValueError for one with
        gaps, of which a backend would send other memory."""
        if not tensor.is_contiguous():
            raise ValueError(
                f"a message of shape {tuple(tensor.shape)} has strides {tensor.stride()}; send tensor.contiguous()"
            )
        return cls(tensor, tensor)

    @classmethod
    def of_bytes(cls, buffer: Tensor, size: int) -> Self:
        """Rows of `size` bytes with a float32 flag each; buffer: (rows, `framed(size)`) uint8."""
        return cls(buffer, buffer[:, :size], buffer[:, -FLAG_BYTES:].view(torch.float32))

    @classmethod
    def of_numbers(cls, buffer: Tensor) -> Self:
        """A vector of numbers and, of the same type, its flag; buffer: (n + 1,)."""
        return cls(buffer, buffer[:-1], buffer[-1:])

    def row(self, index: int) -> "Message":
        """One row as a message of its own."""
        flags = None if self.flags is None else self.flags[index]
        return Message(self.whole[index], self.body[index], flags)


def framed(size: int) -> int:
    """The bytes that a row of `size` bytes takes with its flag."""
    return aligned(size + FLAG_BYTES)


def aligned(size: int) -> int:
    """Bytes or elements, rounded up to a multiple of ALIGNED."""
    return -(-size // ALIGNED) * ALIGNED


@dataclass(frozen=True, eq=False, slots=True)
class _InPlace:
    """A collective that overwrites the message with its result."""

    message: Message

    @property
    def send(self) -> Message:
        return self.message

    @property
    def receive(self) -> Message:
        return self.message


@dataclass(frozen=True, eq=False, slots=True)
class Sum(_InPlace):
    """All-reduce: the message becomes, in place and on every rank, the sum over the ranks."""

    axis: str = REPLICA

    def wire_bytes(self, world: int) -> int:
        return 2 * (world - 1) * self.message.whole.nbytes // world


@dataclass(frozen=True, eq=False, slots=True)
class Gather:
    """All-gather: row r of `receive` (world, m) becomes rank r's `send` (m,)."""

    send: Message
    receive: Message
    axis: str = REPLICA
    parts: Message | None = None
    """Where row r is about part r of a vector, this rank's own payloads (world, m) of all parts: a transport without
    other ranks has them in place of theirs."""

    def wire_bytes(self, world: int) -> int:
        return (world - 1) * self.send.whole.nbytes


@dataclass(frozen=True, eq=False, slots=True)
class AllToAll:
    """Row r of `send` (world, m) goes to rank r; row r of `receive` (world, m) came from it."""

    send: Message
    receive: Message
    axis: str = REPLICA

    def wire_bytes(self, world: int) -> int:
        return (world - 1) * self.send.whole.nbytes // world


@dataclass(frozen=True, eq=False, slots=True)
class Broadcast(_InPlace):
    """The message of rank `source` overwrites all others'; counted as one send per rank, as in a ring."""

    source: int
    axis: str = REPLICA

    def wire_bytes(self, world: int) -> int:
        return (world - 1) * self.message.whole.nbytes // world


@dataclass(frozen=True, eq=False, slots=True)
class SendReceive:
    """One message from rank to rank: `send` goes to `target`, `receive` (as large) comes from `source`; None where
    this rank does not. All ranks take the turn together, also those that have no part in it."""

    send: Message
    """To `target`."""
    receive: Message
    """From `source`."""
    target: int | None = None
    """The rank that this one sends to; None where it sends nothing."""
    source: int | None = None
    """The rank that this one receives from; None where it receives nothing."""
    axis: str = REPLICA

    def wire_bytes(self, world: int) -> int:
        return 0 if self.target is None else self.send.whole.nbytes


Collective = Sum | Gather | AllToAll | Broadcast | SendReceive
