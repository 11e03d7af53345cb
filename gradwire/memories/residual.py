"""Plain error feedback."""

from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.compressors import DoubleBuffer
from gradwire.memories.memory import RESIDUAL, Memory
from gradwire.ops.lazy_sum import LazySum
from gradwire.slots import Layout


@dataclass(frozen=True)
class Residual(Memory, recordable=True):
    """Error feedback: what was not sent is added to the next gradient (Seide et al., Interspeech 2014;
    Karimireddy et al., ICML 2019, https://arxiv.org/abs/1901.09847)."""

    decay: float = 1.0
    """Multiplies the residual before that, in (0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay={self.decay} must lie in (0, 1]; 1 keeps all of it")

    def add(self, flat: Mapping[str, DoubleBuffer], gradient: LazySum, layout: Layout, ranks: int) -> LazySum:
        # decay·residual + gradient
        return gradient.onto(*flat[RESIDUAL], self.decay)
