"""The collectives that a reduction may ask for: plain values, so that no algorithm touches the network.

A reduction is a generator that yields one of these and is sent its `result` once all ranks took part.
`wire_bytes(world)` is what one rank sends in a bandwidth-optimal implementation, which gloo's and NCCL's
rings are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Sum:
    """All-reduce: `tensor` becomes, in place and on every rank, the sum over the ranks."""

    tensor: Tensor

    @property
    def result(self) -> Tensor:
        return self.tensor

    def wire_bytes(self, world: int) -> int:
        return 2 * (world - 1) * self.tensor.nbytes // world


@dataclass(frozen=True, eq=False, slots=True)
class Gather:
    """All-gather: row r of `receive` (world, m) becomes rank r's `send` (m,)."""

    send: Tensor
    receive: Tensor

    @property
    def result(self) -> Tensor:
        return self.receive

    def wire_bytes(self, world: int) -> int:
        return (world - 1) * self.send.nbytes


@dataclass(frozen=True, eq=False, slots=True)
class Exchange:
    """All-to-all: row r of `send` (world, m) goes to rank r; row r of `receive` (world, m) came from it."""

    send: Tensor
    receive: Tensor

    @property
    def result(self) -> Tensor:
        return self.receive

    def wire_bytes(self, world: int) -> int:
        return (world - 1) * self.send.nbytes // world


@dataclass(frozen=True, eq=False, slots=True)
class Broadcast:
    """`tensor` of rank `source` overwrites everybody's; counted as one send per rank, as in a ring."""

    tensor: Tensor
    source: int

    @property
    def result(self) -> Tensor:
        return self.tensor

    def wire_bytes(self, world: int) -> int:
        return (world - 1) * self.tensor.nbytes // world


@dataclass(frozen=True, eq=False, slots=True)
class Hop:
    """One message from rank to rank: `send` goes to `target`, `receive` (as large) comes from `source`; None where
    this rank does not. All ranks take the hop together, also those that have no part in it."""

    send: Tensor
    receive: Tensor
    target: int | None = None
    source: int | None = None

    @property
    def result(self) -> Tensor:
        return self.receive

    def wire_bytes(self, world: int) -> int:
        return 0 if self.target is None else self.send.nbytes


@dataclass(frozen=True, eq=False, slots=True)
class Local:
    """A collective among the ranks of one host only; see `transports.Hierarchical`."""

    inner: "Sum | Broadcast"

    @property
    def result(self) -> Tensor:
        return self.inner.result

    def wire_bytes(self, world: int) -> int:
        """Nothing leaves the host."""
        return 0


@dataclass(frozen=True, eq=False, slots=True)
class Idle:
    """A turn in which another rank of this host talks to its peers: so a host's ranks keep one sequence."""

    @property
    def result(self) -> Tensor:
        return torch.empty(0)

    def wire_bytes(self, world: int) -> int:
        return 0


Collective = Sum | Gather | Exchange | Broadcast | Hop | Local | Idle
