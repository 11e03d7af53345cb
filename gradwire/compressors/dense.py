"""Casts: every element is sent, in fewer bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.compressors.compressor import Codec
from gradwire.compressors.context import Parts
from gradwire.ops.backend import backend_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Slot


class Cast(Codec):
    """Sends each element rounded to `wire_dtype`."""

    largest: ClassVar[float] = inf
    """The largest sum that the type can hold; what would exceed it stays in the memory."""
    biased = False
    is_cast = True
    summable = True
    for_shards = "yes"

    def payload_bytes(self, n: int) -> int:
        return n * self.wire_dtype.itemsize

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        x, keep = vector.total(), parts.context.error_feedback
        # clip, so that the sum over the ranks stays finite
        limit = self.largest / parts.context.world if keep else inf
        # cast, and keep what rounding and clipping lose
        backend_for(x).cast_parts(x, payloads.view(self.wire_dtype), parts.bounds, limit, keep=keep)

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        # sum in float32
        backend_for(payloads).sum_casts(payloads.view(self.wire_dtype), mean.vector(), parts.bounds)

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        return [0.0] * len(choices)


@dataclass(frozen=True)
class FP32(Cast, recordable=True):
    """No compression: float32, summed by all-reduce."""


@dataclass(frozen=True)
class FP16(Cast, recordable=True):
    """IEEE half precision: 16 bits per element, range 6e-8 to 65504.

    Gradients are divided by the number of ranks before the cast, as in torch's fp16 hook. The sum overflows where the
    mean, one rank's part of it or a partial sum exceeds 65,504; with a memory what would exceed it stays there.
    Without one, gradients travel with the loss's scale, which keeps the small ones.
    """

    wire_dtype: ClassVar[torch.dtype] = torch.float16
    largest: ClassVar[float] = 60_000.0  # 65,504 less the roundings of its addends


@dataclass(frozen=True)
class BF16(Cast, recordable=True):
    """bfloat16: 16 bits per element, float32's range with 8 bits of mantissa."""

    wire_dtype: ClassVar[torch.dtype] = torch.bfloat16
