"""What a communicator is: how the payloads of all ranks become one mean."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.communicators.wire import Wire
from gradwire.compressors import Codec, Compressor, RandomK, Reduction, Sparse, State
from gradwire.layout import Layout

FLAG_BYTES = 4


class Communicator(ABC):
    """A frozen dataclass. `reduce` sums x (n,) over the ranks; x is already divided by their number."""

    name: ClassVar[str]

    def check(self, compressor: Compressor) -> None:
        """Raises ValueError, naming the pairing that works, where this one makes no sense."""
        if not isinstance(compressor, Codec):
            raise ValueError(
                f"{type(compressor).__name__} sums its own factors; pair it with AllReduce(), not {self.name}()"
            )

    def rounds(self, compressor: Compressor, world: int) -> int:
        """How many collectives `reduce` takes among `world` ranks, one after another."""
        return 1

    def init_slot(self) -> dict[str, Tensor]:
        """Small tensors on the host, equal on all ranks, that the algorithm keeps with each slot, as a compressor's
        `init_slot` does on the device; its own are those of the group's first slot."""
        return {}

    @abstractmethod
    def wire(self, compressor: Compressor, layout: Layout, world: int, step: int = 0) -> Wire:
        """What it costs one of `world` ranks to reduce a group at this step, flags included."""

    @abstractmethod
    def reduce(self, compressor: Compressor, x: Tensor, state: State) -> Reduction:
        """The collectives that this takes; returns the mean (n,), valid until this group's next reduction."""

    @abstractmethod
    def commit(self, compressor: Compressor, x: Tensor, state: State) -> None:
        """Ends the step: takes out of x, where `state.remember`, what this rank sent in the last `reduce`."""


class SparseCommunicator(Communicator):
    """Moves selected elements by their indices, so it wants a compressor that selects: TopK, DGC and the like.

    Every buffer has a size that the plan alone determines. What does not fit stays in, or goes back to, the
    memory of the rank that had it.
    """

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        if isinstance(compressor, RandomK):
            raise ValueError(
                f"RandomK's ranks share their indices already; pair it with AllReduce(), not {self.name}()"
            )
        if not isinstance(compressor, Sparse):
            other = "AllReduce" if isinstance(compressor, Codec) and compressor.summable else "AllGather"
            raise ValueError(
                f"{self.name}() moves elements by their indices, and {type(compressor).__name__} shows none; "
                f"pair it with {other}(), or {self.name}() with TopK()"
            )


def framed(state: State, name: str, rows: int, size: int) -> tuple[Tensor, Tensor]:
    """A (rows, bytes) uint8 buffer, kept as `name`, for payloads of `size` bytes that end in a float32 flag; and the
    payloads' part of it. Payloads start on multiples of 4 bytes."""
    buffer = state.kept.tensor(name, (rows, frame(size)), torch.uint8)
    return buffer, buffer[:, :size]


def flagged(state: State, name: str, rows: int, codec: Codec, n: int) -> tuple[Tensor, Tensor]:
    """`framed` for the codec's payloads of n elements: the whole group, where the codec is not divisible."""
    size = codec.payload_bytes(n) if codec.divisible else codec.group_bytes(state.layout, state.step)
    return framed(state, name, rows, size)


def frame(size: int) -> int:
    """The bytes of a payload of `size` bytes with its flag."""
    return -(-size // 4) * 4 + FLAG_BYTES


def flags(buffer: Tensor) -> Tensor:
    """The float32 flags (rows, 1) at the end of each row."""
    return buffer[:, -FLAG_BYTES:].view(torch.float32)
