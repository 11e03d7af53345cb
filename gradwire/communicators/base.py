"""What a communicator is: how the payloads of all ranks become one mean."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors import Codec, Compressor, Reduction, State

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

    def init_slot(self, world: int) -> dict[str, Tensor]:
        """Small tensors on the host, equal on all ranks, that the algorithm keeps with each slot, as a compressor's
        `init_slot` does on the device; its own are those of the group's first slot."""
        return {}

    @abstractmethod
    def reduce(self, compressor: Compressor, x: Tensor, state: State) -> Reduction:
        """The collectives that this takes; returns the mean (n,), valid until this group's next reduction."""

    @abstractmethod
    def commit(self, compressor: Compressor, x: Tensor, state: State) -> None:
        """Ends the step: takes out of x, where `state.remember`, what this rank sent in the last `reduce`."""


def flagged(state: State, name: str, rows: int, codec: Codec, n: int) -> tuple[Tensor, Tensor]:
    """A (rows, bytes) uint8 buffer, kept as `name`, for payloads of n elements that end in a float32 flag;
    and the payloads' part of it. Payloads start on multiples of 4 bytes. n is the whole group's size where the
    codec is not divisible."""
    size = codec.payload_bytes(n) if codec.divisible else codec.group_bytes(state.layout, state.step)
    aligned = -(-size // 4) * 4
    buffer = state.kept.tensor(name, (rows, aligned + FLAG_BYTES), torch.uint8)
    return buffer, buffer[:, :size]


def flags(buffer: Tensor) -> Tensor:
    """The float32 flags (rows, 1) at the end of each row."""
    return buffer[:, -FLAG_BYTES:].view(torch.float32)
