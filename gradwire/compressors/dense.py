"""Casts: every element is sent, in fewer bits."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors.base import Codec, State
from gradwire.layout import spans


class Cast(Codec):
    """Sends each element rounded to `wire_dtype`."""

    biased = False
    summable = True

    def payload_bytes(self, n: int) -> int:
        return n * self.wire_dtype.itemsize

    def encode(self, x: Tensor, payload: Tensor, state: State) -> None:
        payload.view(self.wire_dtype).copy_(x)

    def decode(self, rows: Tensor, out: Tensor, state: State) -> None:
        values = rows.view(self.wire_dtype)  # (r, n)
        for start, end in spans(len(out)):  # adding mixed types makes a copy: a tile's is cheap
            out[start:end].copy_(values[0, start:end])
            for other in values[1:]:
                out[start:end].add_(other[start:end])

    def commit(self, payload: Tensor, x: Tensor, state: State) -> None:
        for start, end in spans(len(x)):
            part = x[start:end]
            sent = state.scratch.tensor("cast", (end - start,), self.wire_dtype)
            state.take(part, sent.copy_(part))


@dataclass(frozen=True)
class FP32(Cast):
    """No compression: float32, summed by all-reduce."""

    wire_dtype: ClassVar[torch.dtype] = torch.float32


LARGEST = 60_000.0
"""What a sum in half precision may reach: 65,504 with room for the roundings of its addends."""


@dataclass(frozen=True)
class FP16(Cast):
    """IEEE half precision: 16 bits per element, range 6e-8 to 65504.

    Gradients are divided by the number of ranks before the cast, as in torch's fp16 hook, so that the sum
    overflows only where the mean does.
    """

    wire_dtype: ClassVar[torch.dtype] = torch.float16

    def encode(self, x: Tensor, payload: Tensor, state: State) -> None:
        payload.view(torch.float16).copy_(x)
        if state.remember:  # an infinity would leave minus infinity in the residual
            payload.view(torch.float16).clamp_(-LARGEST / state.world, LARGEST / state.world)

    def commit(self, payload: Tensor, x: Tensor, state: State) -> None:
        for start, end in spans(len(x)):
            part = x[start:end]
            sent = state.scratch.tensor("cast", (end - start,), torch.float16)
            state.take(part, sent.copy_(part).clamp_(-LARGEST / state.world, LARGEST / state.world))


@dataclass(frozen=True)
class BF16(Cast):
    """bfloat16: 16 bits per element, float32's range with 8 bits of mantissa."""

    wire_dtype: ClassVar[torch.dtype] = torch.bfloat16
