"""Ways to send slots, as users name them: in whole or in part."""

from dataclasses import dataclass

from gradwire.compressors import Compressor
from gradwire.memories import Memory
from gradwire.plans import Group


@dataclass(frozen=True)
class CompressorWithMemory:
    """A compressor with a memory, over the communicator that suits ranks and slots. Raises ValueError where the memory
    cannot work with the compressor."""

    compressor: Compressor
    memory: Memory

    def __post_init__(self) -> None:
        self.memory.check(self.compressor)


Way = Compressor | CompressorWithMemory | Group
"""How slots are sent: what a user leaves out is what suits. A group here has no slots."""
