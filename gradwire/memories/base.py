"""Memories: what becomes of the part of a gradient that was not sent.

The vector x (n,) that a compressor reads is made by the memory: what it keeps, plus the gradient times this rank's
share of the mean. What the compressor leaves in x is kept. So what is kept is this rank's share of what the mean still
lacks, and the sum over the ranks stays right when their number changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from gradwire.compressors import Compressor, Halves
from gradwire.ops.lazy_sum import LazySum
from gradwire.options import Options
from gradwire.recordable import Recordable
from gradwire.slots import Layout

RESIDUAL = "residual"
"""The tensor of a memory that is compressed: what the mean still lacks."""


class Memory(Options, Recordable, ABC):
    """A frozen dataclass. `flat_state` names its tensors of gradient size, "residual" among them; none where nothing is
    kept."""

    flat_state: ClassVar[tuple[str, ...]] = (RESIDUAL,)

    @property
    def remembers(self) -> bool:
        """Whether anything is kept."""
        return bool(self.flat_state)

    def check(self, compressor: Compressor) -> None:
        """Raises ValueError, naming the pairing that works, where this one makes no sense."""
        if compressor.votes:
            raise ValueError(
                f"{type(compressor).__name__} votes, so nothing can be taken out of a memory; "
                "use memory=NoMemory(), or EFSignSGD() with Residual()"
            )
        if not compressor.biased and compressor.sparse:
            raise ValueError(
                f"{compressor} multiplies what it sends to be unbiased; use memory=NoMemory(), or rescale=False"
            )

    @abstractmethod
    def add(self, flat: Mapping[str, Halves], gradient: LazySum, layout: Layout, ranks: int) -> LazySum:
        """What is compressed, a sum into the residual's new half, of old halves and the `gradient`: this rank's part of
        a mean over so many `ranks`, which nobody has added up yet. Writes all other new halves."""

    def sent(self, flat: Mapping[str, Halves]) -> None:
        """Called when what was sent is out of the new residual."""
