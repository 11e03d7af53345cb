"""Multi-level compression: two nested selections, of which each step sends the one that holds enough."""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradwire.collective import Collective, Gather, Sum
from gradwire.compressors.compressor import MultiRound, ReduceCodec, Reduction
from gradwire.compressors.context import COMMON, GroupContext
from gradwire.compressors.sparse import Sparsifier, TopK
from gradwire.ops.host import to_device
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.magnitudes import magnitude_sum
from gradwire.ops.mean import Mean

DENSE, FIRST, SECOND = range(3)
TAIL = 3
"""Numbers behind each payload: the norms of everything and of both levels."""

NORMS = COMMON + "norms"

Measure = Literal["energy", "magnitude"]
"""The norm in which levels are compared: the sum of squares, or of absolute values."""


@dataclass(frozen=True)
class MultiLevel(MultiRound):
    """Selects with `codec`, selects further from that selection, and sends the second level where it holds enough of
    gradient and residual, else the first where that does, else everything
    (multi-level compression: Tyagi and Swany, GraVAC, IEEE CLOUD 2023, https://arxiv.org/abs/2305.12201).

    The second level is nested: the largest elements of the first, for `TopK` exactly those that it would have selected
    alone. `RandomK`'s levels are not nested; both are drawn from the whole.

    A step's norms travel behind its payload, 12 bytes, and their sums over the ranks choose the next step's level,
    the same on all ranks: no message, and nothing waits for them. The first step sends the first level.
    """

    codec: Sparsifier = field(default=TopK(0.1))
    """Selects the first level."""
    further: float = 10.0
    """How many times fewer elements the second level has."""
    min_share: float = 0.02
    """The least part of gradient and residual, by `measure`, that a level holds to be sent, in [0, 1]."""
    measure: Measure = "energy"
    """The sum of squares ("energy") or of absolute values ("magnitude")."""
    smoothing: float = 1.0
    """The weight s of a step's norms in their moving averages s·new + (1 - s)·old, which choose the level."""
    summable: ClassVar[bool] = True
    # factors change often
    shares_buffers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # a codec that leaves the rest to a memory, and numbers in their ranges
        if not self.codec.biased:
            raise ValueError(
                f"MultiLevel() leaves a part of its codec's selection to a memory, and {self.codec} wants none; use "
                "e.g. MultiLevel(TopK(0.1), further=10)"
            )
        if not self.further >= 1:
            raise ValueError(f"further={self.further} sends more at the second level; use 1 or more, e.g. further=10")
        if not 0 <= self.min_share <= 1:
            raise ValueError(f"min_share={self.min_share} is no share; it lies in [0, 1], e.g. min_share=0.02")
        if not 0 < self.smoothing <= 1:
            raise ValueError(f"smoothing={self.smoothing} is no weight of a step; it lies in (0, 1], e.g. 0.32")

    @property
    def sparse(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.codec.sparse

    @property
    def may_send_all(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.min_share > 0

    @property
    def second(self) -> Sparsifier:
        """The second level's codec."""
        codec: Any = self.codec
        return replace(codec, ratio=codec.ratio / self.further)

    @property
    def local_arithmetic(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.codec.local_arithmetic

    def init_group(self) -> dict[str, Tensor]:
        return self.codec.init_group() | {NORMS: torch.full((TAIL,), torch.nan, dtype=torch.float32, device="cpu")}

    def reduce(self, vector: LazySum, mean: Mean, context: GroupContext, reduce_codec: ReduceCodec) -> Reduction:
        x = vector.total()
        # choose the level by the norms of the step before; select both
        level, levels = self.level(context), self.select(x, context)
        # measure both
        norms = self._observe(x, levels, context)
        # sum the chosen level, and the norms, over the ranks
        if level == DENSE:
            sums = yield from self._reduce_dense(x, mean, norms, context)
        else:
            reduce = self._reduce_values if self.codec.summable else self._reduce_entries
            sums = yield from reduce(x, mean, levels[level - 1], norms, context)
        # the next step's level follows from the sums of norms
        context.group.stage(NORMS, self._smoothed(sums, context))

    def _smoothed(self, sums: Tensor, context: GroupContext) -> Tensor:
        """The moving averages of the norms' sums (3,), which begin with the first ones."""
        before = context.group[NORMS]
        if self.smoothing == 1 or before.isnan().any():
            return sums
        return torch.lerp(to_device(before, context.device), sums, self.smoothing)

    def level(self, context: GroupContext) -> int:
        """The level that this step sends: DENSE, FIRST or SECOND; FIRST in the first step, which has NaN for norms."""
        whole, first, second = context.group[NORMS].tolist()
        if isnan(whole):
            return FIRST
        least = self.min_share * whole
        return SECOND if second >= least else FIRST if first >= least else DENSE

    def select(self, x: Tensor, context: GroupContext) -> tuple[Tensor, Tensor]:
        """Ascending indices of the elements of x (n,) that the first and the second level send."""
        return self.codec.levels(x, self.second.count(len(x)), context)

    def observed(self, context: GroupContext) -> Tensor:
        """(2, 3) of this rank and step: the norms of x, first and second level, and their counts of elements."""
        return context.buffers.tensor("observed", (2, TAIL))

    def sent(self, context: GroupContext) -> Tensor:
        """(2,) of this rank and step: the norm of the level that is sent, and its count of elements."""
        return self.observed(context)[:, self.level(context)]

    def _observe(self, x: Tensor, levels: tuple[Tensor, Tensor], context: GroupContext) -> Tensor:
        """Writes `observed`; returns its norms (3,)."""
        norms, elements = self.observed(context)
        values = [self.codec.values(x, indices) for indices in levels]
        # the norm of x and of each level, and how many of their elements are not zero
        torch.stack([self._norm(part, context) for part in (x, *values)], out=norms)
        torch.stack([part.count_nonzero() for part in values], out=elements[1:])
        elements[0].fill_(len(x))
        return norms

    def _norm(self, values: Tensor, context: GroupContext) -> Tensor:
        return torch.dot(values, values) if self.measure == "energy" else magnitude_sum(values, context.scratch)

    def _reduce_dense(
        self, x: Tensor, mean: Mean, norms: Tensor, context: GroupContext
    ) -> Generator[Collective, None, Tensor]:
        # everything, and the norms behind it
        message = context.numbers("dense", len(x) + TAIL)
        message.body[:-TAIL].copy_(x)
        message.body[-TAIL:].copy_(norms)
        yield Sum(message)
        # all was sent: the residual is zero
        x.zero_()
        mean.vector().copy_(message.body[:-TAIL])
        return message.body[-TAIL:]

    def _reduce_values(
        self, x: Tensor, mean: Mean, indices: Tensor, norms: Tensor, context: GroupContext
    ) -> Generator[Collective, None, Tensor]:
        """Sums values at coordinates that all ranks share: no indices travel."""
        # values, and the norms behind them
        message = context.numbers("values", len(indices) + TAIL)
        values = message.body[:-TAIL]
        self.codec.pack(x, indices, values.view(torch.uint8))
        message.body[-TAIL:].copy_(norms)
        yield Sum(message)
        # decode: all coordinates differ
        mean.vector().zero_().index_add_(0, indices, values)
        return message.body[-TAIL:]

    def _reduce_entries(
        self, x: Tensor, mean: Mean, indices: Tensor, norms: Tensor, context: GroupContext
    ) -> Generator[Collective, None, Tensor]:
        """Gathers the payloads of all ranks."""
        # payload, and the norms behind it
        codec = self.codec if self.level(context) == FIRST else self.second
        size = codec.payload_bytes(len(x))
        send = context.message("send", size + 4 * TAIL)
        receive = context.message("receive", size + 4 * TAIL, context.world)
        codec.pack(x, indices, send.body[:size])
        send.body[size:].view(torch.float32).copy_(norms)
        # all-gather
        yield Gather(send, receive)
        # decode and sum over the ranks
        codec.decode(receive.body[None, :, :size], mean, context.whole)
        return receive.body[:, size:].view(torch.float32).sum(0)
