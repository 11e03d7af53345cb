"""Stochastic quantisers: unbiased, so that they need no memory."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors.blockwise import Blockwise
from gradwire.compressors.context import GroupContext
from gradwire.ops.bits import pack_ternary, unpack_ternary
from gradwire.ops.noise import Noise

BELOW_ONE = 1 - 2.0**-21
"""Keeps the largest element at its level: two roundings up and the most noise would make 128 of 127."""


class Stochastic(Blockwise):
    """Rounds x·top / max|block| up or down at random, so that the expectation is x."""

    biased = False

    @property
    @abstractmethod
    def top(self) -> int:
        """The level of the block's largest magnitude."""

    def quantize(self, part: Tensor, scales: Tensor, codes: Tensor, context: GroupContext) -> None:
        rounded = context.scratch.tensor("rounded", tuple(part.shape))
        torch.amax(torch.abs(part, out=rounded), 1, keepdim=True, out=scales)  # vector_norm is 10 times slower
        inverse = self.top * BELOW_ONE / scales
        inverse.masked_fill_(scales == 0, 0)
        torch.mul(part, inverse, out=rounded)
        Noise(context.own_seed(), part.device).add_to(rounded)
        self.pack(rounded.round_(), codes, context)

    @abstractmethod
    def pack(self, q: Tensor, codes: Tensor, context: GroupContext) -> None:
        """From whole numbers q (rows, width) float32 in [-top, top] to codes (bytes,)."""


@dataclass(frozen=True)
class QSGD(Stochastic):
    """8 bits per element: int8 levels of the block's largest magnitude (Alistarh et al., NeurIPS 2017,
    https://arxiv.org/abs/1610.02132, in the form with buckets and the maximum as norm)."""

    levels: int = 127
    block: int = 1024
    bits: ClassVar[int] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.levels <= 127:
            raise ValueError(f"levels={self.levels} do not fit 8 bits with a sign; use 1 to 127")

    @property
    def top(self) -> int:
        return self.levels

    def pack(self, q: Tensor, codes: Tensor, context: GroupContext) -> None:
        codes.view(torch.int8).copy_(q.view(-1))

    def dequantize(self, scales: Tensor, codes: Tensor, out: Tensor) -> None:
        out.view(-1).copy_(codes.view(torch.int8))
        out.mul_(scales / self.levels)


@dataclass(frozen=True)
class TernGrad(Stochastic):
    """2 bits per element: -1, 0 or 1 times the block's largest magnitude (Wen et al., NeurIPS 2017,
    https://arxiv.org/abs/1705.07878, without clipping)."""

    block: int = 1024
    bits: ClassVar[int] = 2
    top: ClassVar[int] = 1  # pyright: ignore[reportIncompatibleMethodOverride]

    def pack(self, q: Tensor, codes: Tensor, context: GroupContext) -> None:
        small = context.scratch.tensor("ternary", (q.numel(),), torch.int8)
        pack_ternary(small.copy_(q.view(-1)), codes)

    def dequantize(self, scales: Tensor, codes: Tensor, out: Tensor) -> None:
        unpack_ternary(codes, out)
        out.mul_(scales)
