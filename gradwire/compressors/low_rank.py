"""Low-rank compressors: a matrix travels as the product of two thin ones."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.compressors.compressor import Codec, FixedSizeCompressor, MultiRound, ReduceCodec, Reduction
from gradwire.compressors.context import GroupContext
from gradwire.compressors.dense import FP32
from gradwire.compressors.error_bounds import energy_beyond_rank
from gradwire.ops.backend import Backend, backend_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.matrices import Batch, batches
from gradwire.ops.mean import Mean
from gradwire.ops.noise import uniform
from gradwire.ops.reference.products import COLUMNS, ROWS
from gradwire.slots import Layout, Slot
from gradwire.torch_private.foreach import copy_each, zero_each


@dataclass(frozen=True)
class LowRank(MultiRound, FixedSizeCompressor):
    """Each weight as a matrix M (rows, columns) of its outputs by all else, sent as thin factors P (r, rows) and
    Q (r, columns): by default those of one step of subspace iteration. A factor is the left operand of every product,
    which is faster on a CPU. Vectors are not factored.
    """

    rank: float = 4
    """r, or below 1 the ratio of r to the shorter side."""
    rounds: ClassVar[int] = 2
    summable: ClassVar[bool] = True
    carries_dense: ClassVar[bool] = True
    local_arithmetic: ClassVar[bool] = True
    multiplies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.rank < 1 or (self.rank >= 1 and self.rank == int(self.rank))):
            raise ValueError(
                f"rank={self.rank} is neither a number of rows nor a ratio to the shorter side; use e.g. rank=4 or "
                "rank=1/6"
            )

    @property
    def codec(self) -> Codec:
        """The codec of all that is sent: factors, and slots that are not factored."""
        return FP32()

    def factor_rank(self, rows: int, columns: int) -> int:
        """The r of a (rows, columns) slot's factors; 0 where it is not factored."""
        shorter = min(rows, columns)
        r = int(self.rank) if self.rank >= 1 else max(1, round(self.rank * shorter))
        return min(shorter, r) if shorter > 1 else 0

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        r = self.factor_rank(rows, columns)
        return {"q": uniform((r, columns), generator)} if r else {}

    def messages(self, layout: Layout, step: int) -> Sequence[tuple[Codec, Layout]]:
        return [(self.codec, vector) for vector in self._vectors(layout, step)]

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        return energy_beyond_rank(x.view(slot.matrix), [choice.factor_rank(*slot.matrix) for choice in choices])

    def _vectors(self, layout: Layout, step: int) -> Sequence[Layout]:
        """The vector that each round reduces."""
        return [self.vector(layout, ROWS, dense=True), self.vector(layout, COLUMNS, dense=False)]

    def batches(self, layout: Layout) -> tuple[list[Batch], list[Batch]]:
        """Batches of the slots that are factored, and of the others, in the order in which they travel."""
        factored = [bool(self.factor_rank(*slot.matrix)) for slot in layout.slots]
        low, dense = ([i for i, is_low in enumerate(factored) if is_low == wanted] for wanted in (True, False))
        return batches(layout, low), batches(layout, dense)

    def vector(self, layout: Layout, side: int, dense: bool) -> Layout:
        """The vector that travels: the factors of one side, row by row, and then, where `dense`, the slots that are not
        factored."""
        # rows of factors are matrices of one row, as codecs of blocks see them; vectors follow
        low, others = ([layout.slots[i] for batch in part for i in batch.slots] for part in self.batches(layout))
        vectors = [Slot(slot.name, (slot.numel,), (1,), torch.float32) for slot in others if dense]
        return Layout((*(row for slot in low for row in self._rows(slot, side)), *vectors))

    def _rows(self, slot: Slot, side: int) -> list[Slot]:
        """The rows of a slot's factor of one side."""
        length = slot.matrix[side]
        return [Slot(slot.name, (1, length), (length, 1), torch.float32)] * self.factor_rank(*slot.matrix)

    def reduce(self, vector: LazySum, mean: Mean, context: GroupContext, reduce_codec: ReduceCodec) -> Reduction:
        # add up residual and gradient
        x = vector.total()
        views = context.buffers.once((self, x.data_ptr()), lambda: LowRankViews(self, x, context))
        return self._reduce_factors(views, mean, context, reduce_codec)

    @abstractmethod
    def _reduce_factors(
        self, views: "LowRankViews", mean: Mean, context: GroupContext, reduce_codec: ReduceCodec
    ) -> Reduction: ...

    def _iterate(self, views: "LowRankViews", context: GroupContext, reduce_codec: ReduceCodec) -> Reduction:
        """A step of subspace iteration: leaves an orthonormal P, and the sum of all ranks' Q = P M."""
        p, q = views.p, views.q
        # warm start: Q of the step before
        copy_each(q.slots_before, context.slots.all("q"))
        # project: P = Q Mᵀ
        views.project(q.before, p)
        # sum P, and the slots that are not factored, over the ranks
        yield from p.reduce(context, reduce_codec, views.dense, sent=False)
        # orthonormalise P
        views.ops.orthogonalize(p.sums)
        # project: Q = P M
        views.project(p.sums, q)
        # sum Q over the ranks
        yield from q.reduce(context, reduce_codec)


class Factors:
    """One side's factors of all batches of matrices, and the slots that travel with them, as views of flat vectors."""

    own: Sequence[Tensor]
    """(k, r, length) of each batch: this rank's factors."""
    sent: Sequence[Tensor]
    """(k, r, length) of each batch: `own` as the codec sent it."""
    sums: Sequence[Tensor]
    """(k, r, length) of each batch: the sums over the ranks."""
    before: Sequence[Tensor]
    """(k, r, length) of each batch: the sums of the step before."""
    dense_sums: Sequence[Tensor]
    """(k, rows, columns) of each batch that is not factored: the sums over the ranks."""
    slot_sums: Sequence[Tensor]
    """(r, length) of each slot in the group's order: the sums over the ranks."""
    slots_before: Sequence[Tensor]
    """(r, length) of each slot in the group's order: the sums of the step before."""

    def __init__(self, compressor: LowRank, side: int, dense: bool, context: GroupContext) -> None:
        self.side = side
        # shapes of the factors, and of the slots that travel with them
        self._codec, self._layout = compressor.codec, compressor.vector(context.layout, side, dense)
        self._sends_all, buffers = compressor.summable, context.buffers
        low, others = compressor.batches(context.layout)
        shapes = [(len(batch.slots), compressor.factor_rank(*batch.shape), batch.shape[side]) for batch in low]
        rest = [(len(batch.slots), *batch.shape) for batch in others if dense]
        # this rank's vector: its factors, then the slots that travel with them
        self._own = buffers.tensor(f"own {side}", (self._layout.numel,))
        own = _shaped(self._own, [*shapes, *rest])
        self.own, self._dense = own[: len(low)], own[len(low) :]
        # the vector of the sums, likewise
        self._sum = buffers.tensor(f"sum {side}", (self._layout.numel,))
        sums = _shaped(self._sum, [*shapes, *rest])
        self.sums, self.dense_sums = sums[: len(low)], sums[len(low) :]
        # the factors as they were sent
        factored = sum(map(prod, shapes))
        self._factors = self._own[:factored]
        self._sent = self._factors if self._sends_all else buffers.tensor(f"sent {side}", (factored,))
        self.sent = _shaped(self._sent, shapes)
        # the factors of the step before
        self.before = _shaped(buffers.tensor(f"before {side}", (factored,)), shapes)
        # both by slot, for the state
        self.slot_sums = _by_slot(low, self.sums)
        self.slots_before = _by_slot(low, self.before)

    def reduce(
        self, context: GroupContext, reduce_codec: ReduceCodec, dense: Sequence[Tensor] = (), *, sent: bool = True
    ) -> Reduction:
        """Sums the factors and the `dense` slots over the ranks, and leaves in the latter what was not sent. Without
        `sent`, the factors `sent` are not computed."""
        # gather what travels in one vector
        copy_each(self._dense, dense)
        keeps = context.error_feedback and not self._sends_all
        if keeps and sent:
            self._sent.copy_(self._factors)
        # sum over the ranks
        part = replace(context, layout=self._layout, error_feedback=keeps)
        yield from reduce_codec(self._codec, LazySum.of(self._own), Mean.of(self._sum), part)
        # sent = own - left
        if keeps and sent:
            self._sent.sub_(self._factors)
        # keep what was not sent of the slots that are not factored
        if keeps:
            copy_each(dense, self._dense)
        elif context.error_feedback:
            zero_each(dense)


def _shaped(vector: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Tensors of these shapes, one after another in a vector (n,)."""
    return [part.view(shape) for part, shape in zip(vector.split([*map(prod, shapes)]), shapes, strict=True)]


def _by_slot(low: Sequence[Batch], factors: Sequence[Tensor]) -> list[Tensor]:
    """The factors of each slot, in the group's order."""
    slots = [i for batch in low for i in batch.slots]
    views = dict(zip(slots, (view for factor in factors for view in factor), strict=True))
    return [views[i] for i in sorted(slots)]


class LowRankViews:
    """One group's tensors as views, made once: a step makes none."""

    matrices: Sequence[Tensor]
    """(k, rows, columns) of each batch of x (n,) that is factored."""
    dense: Sequence[Tensor]
    """(k, rows, columns) of each batch of x that is not."""
    p: Factors
    """The factors P, whose rows are as long as the matrices have rows."""
    q: Factors
    """The factors Q, whose rows are as long as the matrices have columns."""

    def __init__(self, compressor: LowRank, x: Tensor, context: GroupContext) -> None:
        self._x, (self._low, self._others) = x, compressor.batches(context.layout)
        self.matrices = [batch.of(x[batch.start :]) for batch in self._low]
        self.dense = [batch.of(x[batch.start :]) for batch in self._others]
        self.p = Factors(compressor, ROWS, True, context)
        self.q = Factors(compressor, COLUMNS, compressor.rounds == 1, context)

    @property
    def ops(self) -> Backend:
        """The functions that compute with the matrices."""
        return backend_for(self._x)

    def project(self, basis: Sequence[Tensor], factors: Factors) -> None:
        """Writes this rank's own factors: the matrices projected on a basis, (k, r, length) of each batch."""
        self.ops.project(self.matrices, basis, factors.own, factors.side)

    def write(self, dense: Sequence[Tensor], mean: Mean) -> None:
        """Writes the mean: Pᵀ Q, and the sums `dense` where slots are not factored."""
        # slots that are not factored
        slots = [mean.matrices(batch) for batch in self._others]
        parts = [sums.split([len(view) for view in views]) for views, sums in zip(slots, dense, strict=True)]
        copy_each([*chain(*slots)], [*chain(*parts)])
        # Pᵀ Q
        matrices = [mean.matrices(batch) for batch in self._low]
        self.ops.multiply(matrices, self.p.sums, self.q.sums, subtract=False)

    def subtract(self, p: Sequence[Tensor], q: Sequence[Tensor]) -> None:
        """Subtracts Pᵀ Q from the matrices."""
        self.ops.multiply([[matrix] for matrix in self.matrices], p, q, subtract=True)


def keep(name: str, factors: Factors, context: GroupContext) -> None:
    """Stages the sums of factors as the state from which the next step starts; where they are zero, because no rank had
    a gradient, those of the step before.

    They are scaled to about 1: if they were as large as the gradient, their product with the next gradient could exceed
    float32.
    """
    # replace zeros by the factors of before, and scale to 1/2 to 1
    if factors.sums:
        largest = backend_for(factors.sums[0]).renew(factors.sums, factors.before)
        context.slots.stage(name, factors.slot_sums, largest)
