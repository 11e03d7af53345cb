"""No memory: what is not sent is dropped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gradwire.compressors import Compressor, DoubleBuffer
from gradwire.memories.memory import Memory
from gradwire.ops.lazy_sum import LazySum
from gradwire.slots import Layout


@dataclass(frozen=True)
class NoMemory(Memory, recordable=True):
    """Keeps nothing: what is not sent is dropped. For compressors that are unbiased, or vote."""

    flat_state: ClassVar[tuple[str, ...]] = ()

    def check(self, compressor: Compressor) -> None:
        """Accepts every compressor."""

    def add(self, flat: Mapping[str, DoubleBuffer], gradient: LazySum, layout: Layout, ranks: int) -> LazySum:
        raise AssertionError("there is nothing to add to")
