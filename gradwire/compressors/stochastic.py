"""Stochastic quantisers: unbiased, so that they need no memory."""

from dataclasses import dataclass

from gradwire.compressors.blockwise import Blockwise
from gradwire.ops.formats import Code, qsgd, ternary


@dataclass(frozen=True)
class QSGD(Blockwise, recordable=True):
    """8 bits per element: int8 levels of the block's largest magnitude, rounded up or down at random, so that the
    expectation is x (Alistarh et al., NeurIPS 2017, https://arxiv.org/abs/1610.02132, in the form with buckets and the
    maximum as norm). Odds have 16 bits on a CPU, so what is below 2^-17 of a level is never sent there."""

    levels: int = 127
    """The largest level, 1 to 127."""
    block: int = 1024
    """Elements that share a scale."""
    biased = False
    for_shards = "yes"

    @property
    def coarse(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.levels == 1

    @property
    def code(self) -> Code:
        return qsgd(self.levels, self.block)


@dataclass(frozen=True)
class TernGrad(Blockwise, recordable=True):
    """2 bits per element: -1, 0 or 1 times the block's largest magnitude, at random, so that the expectation is x
    (Wen et al., NeurIPS 2017, https://arxiv.org/abs/1705.07878, without clipping, and every rank has its own scales).
    Odds are drawn as `QSGD` draws them. Memories refuse it: its error is longer than what it encodes."""

    block: int = 1024
    """Elements that share a scale."""
    biased = False
    coarse = True
    for_shards = "yes"

    @property
    def code(self) -> Code:
        return ternary(self.block)
