"""The base of memories and communicators."""

from abc import ABC, abstractmethod

from gradwire.compressors.compressor import Compressor
from gradwire.options import Options
from gradwire.recordable import Recordable


class Companion(Options, Recordable, ABC):
    """A memory or a communicator: a frozen dataclass of its options, which may not work with every compressor."""

    @abstractmethod
    def check(self, compressor: Compressor) -> None:
        """Raises ValueError, naming a pairing that works, for a compressor that this one cannot work with."""

    def takes(self, compressor: Compressor) -> bool:
        """Whether this one can work with a compressor."""
        try:
            self.check(compressor)
        except ValueError:
            return False
        return True
