"""One part of each kind as a user would write it in a package of their own: nothing but torch and what `gw` exports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

import gradwire as gw


@dataclass(frozen=True)
class Truncated(gw.SimpleCodec):
    """A codec: the upper 16 bits of every float32."""

    biased: ClassVar[bool] = True

    def payload_bytes(self, n: int) -> int:
        return 2 * n

    def compress(self, x: Tensor, payload: Tensor, context: gw.GroupContext) -> None:
        sent = payload.view(torch.bfloat16)
        sent.copy_(x)
        x.sub_(sent)

    def decompress(self, rows: Tensor, out: Tensor, context: gw.GroupContext) -> None:
        torch.sum(rows.view(torch.bfloat16).float(), dim=0, out=out)


@dataclass(frozen=True)
class Largest(gw.Sparse):
    """A sparsifier: the elements of largest magnitude."""

    ratio: float = 0.01
    value_bits: Literal[32, 4] = 32

    def select(self, x: Tensor, k: int, context: gw.GroupContext) -> Tensor:
        return x.abs().topk(k).indices.sort().values


@dataclass(frozen=True)
class SharedScale(gw.MultiRound, gw.FixedSizeCompressor):
    """A compressor with rounds of its own: all ranks agree on a scale, then add up integers.

    Mishchenko et al., IntSGD, ICLR 2022, https://arxiv.org/abs/2102.08374.
    """

    levels: int = 1 << 12
    rounds: ClassVar[int] = 2
    summable: ClassVar[bool] = True

    def messages(self, layout: gw.Layout, step: int) -> Sequence[tuple[gw.Codec, gw.Layout]]:
        return [(gw.FP32(), gw.Layout.vector(1)), (gw.FP32(), layout)]

    @classmethod
    def square_errors(cls, x: Tensor, slot: gw.Slot, choices: "Sequence[SharedScale]") -> list[float]:
        return [len(x) / 12 * float(x.square().sum()) / choice.levels**2 for choice in choices]

    def reduce(
        self, vector: gw.LazySum, mean: gw.Mean, context: gw.GroupContext, reduce_codec: gw.ReduceCodec
    ) -> gw.Reduction:
        x, norm = vector.total(), context.numbers("norm", 1)
        torch.linalg.vector_norm(x, keepdim=True, out=norm.body)
        yield gw.Sum(norm)
        step = norm.body.clamp_min(1e-30) / self.levels
        codes = context.numbers("codes", len(x))
        torch.round(x / step, out=codes.body)
        x.sub_(codes.body * step)
        yield gw.Sum(codes)
        torch.mul(codes.body, step, out=mean.vector())


@dataclass(frozen=True)
class Momentum(gw.Memory):
    """A memory: each rank's momentum is what is compressed, and what is not sent waits."""

    momentum: float = 0.9
    flat_state: ClassVar[tuple[str, ...]] = ("residual", "velocity")

    def add(
        self, flat: Mapping[str, gw.DoubleBuffer], gradient: gw.LazySum, layout: gw.Layout, ranks: int
    ) -> gw.LazySum:
        return gradient.onto(*flat["velocity"], self.momentum).onto(*flat["residual"])


@dataclass(frozen=True)
class InTurns(gw.Communicator):
    """A communicator: the ranks broadcast their payloads, one after another."""

    decodes_all: ClassVar[bool] = True

    def check(self, compressor: gw.Compressor) -> None:
        super().check(compressor)
        if not isinstance(compressor, gw.Codec):
            raise ValueError(f"InTurns() sends one payload, and {compressor} has rounds; pair it with AllGather()")

    def rounds(self, compressor: gw.Compressor, world: int) -> int:
        return world

    def wire(self, compressor: gw.Compressor, layout: gw.Layout, world: int, step: int = 0) -> gw.Wire:
        assert isinstance(compressor, gw.Codec)
        size = compressor.group_bytes(layout, step) + 4
        return gw.Wire(world, (world - 1) * size)

    def reduce(
        self, compressor: gw.Compressor, vector: gw.LazySum, mean: gw.Mean, context: gw.GroupContext
    ) -> gw.Reduction:
        assert isinstance(compressor, gw.Codec)
        size = compressor.group_bytes(context.layout, context.step)
        payloads = context.message("payloads", size, context.world)
        compressor.encode(vector, payloads.row(context.rank).body[None], context.whole)
        for rank in range(context.world):
            yield gw.Broadcast(payloads.row(rank), rank)
        compressor.decode(payloads.body[None], mean, context.whole)


@dataclass
class Halving(gw.Controller):
    """A controller: while less than `share` of the gradients' energy was sent, twice as many elements; else half."""

    share: float = 0.5
    numbers: ClassVar[int] = 2
    looks: ClassVar[bool] = True
    ratios: list[float] = field(default_factory=list, init=False)

    def look(self, context: gw.GroupContext, vector: gw.LazySum, numbers: Tensor) -> None:
        x = vector.total()
        numbers[0] += x.square().sum()
        numbers[1] += x.abs().topk(max(1, len(x) // 100)).values.square().sum()

    def decide(self, seen: gw.Observation) -> gw.Plan:
        whole, sent = seen.sums.tolist()
        factor = 2.0 if sent < self.share * whole else 0.5
        groups = [replace(group, compressor=self._changed(group.compressor, factor)) for group in seen.plan.groups]
        return replace(seen.plan, groups=tuple(groups))

    def _changed(self, compressor: gw.Compressor, factor: float) -> gw.Compressor:
        if not isinstance(compressor, gw.TopK):
            return compressor
        self.ratios.append(min(0.5, max(0.001, factor * compressor.ratio)))
        return gw.TopK(self.ratios[-1])


class Counting(gw.Transport):
    """A transport around another: counts what is started on it."""

    def __init__(self, inner: gw.Transport) -> None:
        self.inner, self.rank, self.world, self.store = inner, inner.rank, inner.world, inner.store
        self.bytes = 0

    def start(self, op: gw.Collective) -> gw.Pending:
        self.bytes += op.wire_bytes(self.world)
        return self.inner.start(op)

    def abort(self, reason: str) -> None:
        self.inner.abort(reason)

    def failure(self) -> str | None:
        return self.inner.failure()

    def close(self) -> None:
        self.inner.close()
