"""Casts: every element is sent, in fewer bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.compressors.base import Codec
from gradwire.compressors.context import GroupContext
from gradwire.ops.backend import backend_for
from gradwire.ops.host import on_host
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.tiles import spans
from gradwire.ops.vectors import equal_parts
from gradwire.slots import Slot


class Cast(Codec):
    """Sends each element rounded to `wire_dtype`. `largest` is what a sum may reach there: what would be more stays in
    the memory."""

    largest: ClassVar[float] = inf
    biased = False
    is_cast = True
    summable = True

    def payload_bytes(self, n: int) -> int:
        return n * self.wire_dtype.itemsize

    def encode(self, vector: LazySum, payload: Tensor, context: GroupContext) -> None:
        self._send(vector.total(), payload.view(self.wire_dtype)[None], (0, vector.numel), context)

    def encode_parts(self, x: Tensor, rows: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        if on_host(x.device):
            super().encode_parts(x, rows, bounds, context)
        else:
            self._send(x, rows.view(self.wire_dtype), bounds, context)

    def _send(self, x: Tensor, rows: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        """Writes the parts of x (n,) to rows of `wire_dtype`, and leaves in x what is not sent."""
        limit = self.largest / context.world if context.remember else inf
        backend_for(x).cast_parts(x, rows, bounds, limit, keep=context.remember)

    def decode_parts(self, rows: Tensor, out: Tensor, bounds: Sequence[int], context: GroupContext) -> None:
        if on_host(out.device):
            super().decode_parts(rows, out, bounds, context)
            return
        for parts, values in equal_parts(out, rows.view(self.wire_dtype), bounds):
            parts.copy_(values[:, : parts.shape[1]])

    def decode(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        values = rows.view(self.wire_dtype)  # (r, n)
        if not on_host(out.device):
            torch.sum(values, 0, dtype=out.dtype, out=out)
            return
        for start, end in spans(out):  # adding mixed types makes a copy: a tile's is cheap
            out[start:end].copy_(values[0, start:end])
            for other in values[1:]:
                out[start:end].add_(other[start:end])

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        return [0.0] * len(choices)


@dataclass(frozen=True)
class FP32(Cast):
    """No compression: float32, summed by all-reduce."""

    wire_dtype: ClassVar[torch.dtype] = torch.float32


@dataclass(frozen=True)
class FP16(Cast):
    """IEEE half precision: 16 bits per element, range 6e-8 to 65504.

    Gradients are divided by the number of ranks before the cast, as in torch's fp16 hook, so that the sum
    overflows only where the mean does.
    """

    wire_dtype: ClassVar[torch.dtype] = torch.float16
    largest: ClassVar[float] = 60_000.0  # 65,504 with room for the roundings of its addends


@dataclass(frozen=True)
class BF16(Cast):
    """bfloat16: 16 bits per element, float32's range with 8 bits of mantissa."""

    wire_dtype: ClassVar[torch.dtype] = torch.bfloat16
