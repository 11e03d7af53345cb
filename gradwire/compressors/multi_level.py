"""Two nested levels of one sparsifier, of which each step sends the one that holds enough."""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gradwire.collective import Collective, Gather, Sum
from gradwire.compressors.base import AddUp, MultiRound, Reduction
from gradwire.compressors.context import GroupContext
from gradwire.compressors.sparse import Sparsifier, TopK
from gradwire.ops.host import to_device
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.magnitudes import magnitude_sum
from gradwire.ops.mean import Mean

DENSE, FIRST, SECOND = range(3)
TAIL = 3
"""Numbers behind each payload: the norms of everything and of both levels."""

Measure = Literal["energy", "magnitude"]
"""The norm in which levels are compared: the sum of squares, or of absolute values."""


@dataclass(frozen=True)
class MultiLevel(MultiRound):
    """Selects with `codec`, selects further from what that selected, and sends the second level where it holds at
    least `min_share` of gradient and residual by `measure`, the sum of their squares ("energy") or of their absolute
    values ("magnitude"), else the first where that does, else everything
    (multi-level compression: Tyagi and Swany, GraVAC, IEEE CLOUD 2023, https://arxiv.org/abs/2305.12201).

    The second level has `further` times fewer elements, the largest of the first's: for `TopK` exactly those that
    it would have selected alone. `RandomK`'s elements are not nested; both levels are drawn from the whole.

    A step's norms travel behind its payload, 12 bytes, and their sums over the ranks choose the next step's
    level, alike on all ranks: no message, and nothing waits for them. The first step sends everything. With `smoothing`
    below 1, moving averages of these sums do, in which a step has this weight: s·new + (1 - s)·old.
    """

    codec: Sparsifier = field(default=TopK(0.1))
    further: float = 10.0
    min_share: float = 0.02
    measure: Measure = "energy"
    smoothing: float = 1.0
    summable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.codec.biased:
            raise ValueError(
                f"MultiLevel() leaves a part of what its codec selects to a memory, and {self.codec} wants none; use "
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
    def flat_state(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.codec.flat_state

    @property
    def second(self) -> Sparsifier:
        """The second level's codec."""
        codec: Any = self.codec
        return replace(codec, ratio=codec.ratio / self.further)

    @property
    def local_arithmetic(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.codec.local_arithmetic

    def init_group(self) -> dict[str, Tensor]:
        return self.codec.init_group() | {"norms": torch.full((TAIL,), torch.nan, dtype=torch.float32, device="cpu")}

    def reduce(self, vector: LazySum, mean: Mean, context: GroupContext, add_up: AddUp) -> Reduction:
        x = vector.total()
        level, levels = self.level(context), self.select(x, context)
        norms = self._observe(x, levels, context)
        if level == DENSE:
            sums = yield from self._reduce_dense(x, mean, norms, context)
        else:
            reduce = self._reduce_values if self.codec.summable else self._reduce_entries
            sums = yield from reduce(x, mean, levels[level - 1], norms, context)
        context.group.stage("norms", self._smoothed(sums, context))

    def _smoothed(self, sums: Tensor, context: GroupContext) -> Tensor:
        """The moving averages of the norms' sums (3,), which begin with the first ones."""
        before = context.group["norms"]
        if self.smoothing == 1 or before.isnan().any():
            return sums
        return torch.lerp(to_device(before, context.device), sums, self.smoothing)

    def level(self, context: GroupContext) -> int:
        """What this step sends, DENSE, FIRST or SECOND: by the norms of the steps before, NaN where there was none."""
        whole, first, second = context.group["norms"].tolist()
        least = self.min_share * whole
        return SECOND if second >= least else FIRST if first >= least else DENSE

    def select(self, x: Tensor, context: GroupContext) -> tuple[Tensor, Tensor]:
        """Ascending indices of the elements of x (n,) that the first and the second level send."""
        return self.codec.levels(x, self.second.count(len(x)), context)

    def observed(self, context: GroupContext) -> Tensor:
        """Of this rank and step, (2, 3): the norms of x, first and second level, and their element counts."""
        return context.buffers.tensor("observed", (2, TAIL))

    def sent(self, context: GroupContext) -> Tensor:
        """Of this rank and step, (2,): the norm of what is sent, and its elements."""
        return self.observed(context)[:, self.level(context)]

    def _observe(self, x: Tensor, levels: tuple[Tensor, Tensor], context: GroupContext) -> Tensor:
        """Writes `observed`; returns its norms (3,)."""
        norms, elements = self.observed(context)
        values = [x[indices] for indices in levels]
        torch.stack([self._norm(part, context) for part in (x, *values)], out=norms)
        torch.stack([part.count_nonzero() for part in values], out=elements[1:])
        elements[0] = len(x)
        return norms

    def _norm(self, values: Tensor, context: GroupContext) -> Tensor:
        return torch.dot(values, values) if self.measure == "energy" else magnitude_sum(values, context.scratch)

    def _reduce_dense(
        self, x: Tensor, mean: Mean, norms: Tensor, context: GroupContext
    ) -> Generator[Collective, None, Tensor]:
        message = context.numbers("dense", len(x) + TAIL)
        message.body[:-TAIL].copy_(x)
        message.body[-TAIL:].copy_(norms)
        yield Sum(message)
        x.zero_()
        mean.vector().copy_(message.body[:-TAIL])
        return message.body[-TAIL:]

    def _reduce_values(
        self, x: Tensor, mean: Mean, indices: Tensor, norms: Tensor, context: GroupContext
    ) -> Generator[Collective, None, Tensor]:
        """Of coordinates that all ranks share the values alone travel."""
        message = context.numbers("values", len(indices) + TAIL)
        values = message.body[:-TAIL]
        self.codec.pack(x, indices, values.view(torch.uint8))
        message.body[-TAIL:].copy_(norms)
        yield Sum(message)
        mean.vector().zero_().index_add_(0, indices, values)
        return message.body[-TAIL:]

    def _reduce_entries(
        self, x: Tensor, mean: Mean, indices: Tensor, norms: Tensor, context: GroupContext
    ) -> Generator[Collective, None, Tensor]:
        codec = self.codec if self.level(context) == FIRST else self.second
        size = codec.payload_bytes(len(x))
        send = context.message(f"send {size}", size + 4 * TAIL)
        receive = context.message(f"receive {size}", size + 4 * TAIL, context.world)
        codec.pack(x, indices, send.body[:size])
        send.body[size:].view(torch.float32).copy_(norms)
        yield Gather(send, receive)
        codec.decode(receive.body[None, :, :size], mean, context.whole)
        return receive.body[:, size:].view(torch.float32).sum(0)
