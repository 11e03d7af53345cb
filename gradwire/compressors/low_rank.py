"""Low-rank compressors: a matrix travels as the product of two thin ones."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.compressors.base import AddUp, Codec, MultiRound, Predictable, Reduction
from gradwire.compressors.context import GroupContext
from gradwire.compressors.dense import FP32
from gradwire.compressors.factors import FactorCodec
from gradwire.compressors.losses import beyond_rank
from gradwire.ops.formats import nearest
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.matrices import multiply, subtract_product
from gradwire.ops.mean import Mean
from gradwire.ops.noise import uniform
from gradwire.ops.orthogonal import orthogonalize
from gradwire.slots import Layout, Slot
from gradwire.torch_private import add_each, copy_each, largest_of, product_each, scale_each_by

ROWS, COLUMNS = 0, 1
"""What P's rows are as long as, and Q's."""


@dataclass(frozen=True)
class LowRank(MultiRound, Predictable):
    """Each weight is the matrix M (rows, columns) of its outputs by all else, of which M ≈ Pᵀ Q is sent: P (r, rows)
    and Q (r, columns), the thin matrix on the left of every product, which is faster on a CPU.

    `rank` is r, or below 1 the share of the shorter side that r is. Factors travel in float32 or, with `bits` of 8, 4,
    3 or 2, as codes with a scale per 64 elements of a row; then what is not factored travels in 8 bits. What codes lose
    stays in the memory. Not factored are vectors, and matrices that take no more than `min_compression_rate` times the
    bits of both factors. Before step `start_step` everything travels as it is.
    """

    rank: float = 4
    min_compression_rate: float = 2.0
    start_step: int = 0
    bits: int = 32
    carries_dense: ClassVar[bool] = True
    local_arithmetic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (0 < self.rank < 1 or (self.rank >= 1 and self.rank == int(self.rank))):
            raise ValueError(
                f"rank={self.rank} is neither a number of rows nor a share of the shorter side; use e.g. rank=4 or "
                "rank=1/6"
            )
        if not self.min_compression_rate >= 1:
            raise ValueError(
                f"min_compression_rate={self.min_compression_rate} would send more than the gradient; use 1 or more"
            )
        if self.start_step < 0:
            raise ValueError(f"start_step={self.start_step} is before the first; use 0 to compress from the start")
        if self.bits != 32:
            nearest(self.bits)

    @property
    def summable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.bits == 32

    @property
    def codec(self) -> Codec:
        """How factors, and what is not factored, travel."""
        return FP32() if self.bits == 32 else FactorCodec(self.bits)

    def factor_rank(self, rows: int, columns: int) -> int:
        """The r of a (rows, columns) slot's factors; 0 where it is not factored."""
        shorter = min(rows, columns)
        r = min(shorter, int(self.rank) if self.rank >= 1 else max(1, round(self.rank * shorter)))
        factor, other = (32, 32) if self.bits == 32 else (self.bits + 16 / 64, 8 + 16 / 128)
        pays = r * (rows + columns) * factor * self.min_compression_rate < rows * columns * other
        return r if pays and r < shorter else 0

    def messages(self, layout: Layout, step: int) -> Sequence[tuple[Codec, Layout]]:
        if step < self.start_step:
            return [(FP32(), layout.cut(start, end)) for start, end in self._equal_parts(layout.numel)]
        return [(self.codec, vector) for vector in self._vectors(layout, step)]

    def slot_bytes(self, slot: Slot) -> float:
        steps = range(self.start_step, self.start_step + self.period)
        return fmean(self.group_bytes(Layout((slot,)), step) for step in steps)

    @classmethod
    def square_errors(cls, x: Tensor, slot: Slot, choices: Sequence[Any]) -> list[float]:
        return beyond_rank(x.view(slot.matrix), [choice.factor_rank(*slot.matrix) for choice in choices])

    @abstractmethod
    def _vectors(self, layout: Layout, step: int) -> Sequence[Layout]:
        """What each round adds up."""

    def vector(self, layout: Layout, side: int, dense: bool) -> Layout:
        """The factors of one side, row by row, and then, where `dense`, the slots that are not factored."""
        rows: list[Slot] = []
        others: list[Slot] = []
        for slot in layout.slots:
            length = slot.matrix[side]
            if r := self.factor_rank(*slot.matrix):
                rows += [Slot(slot.name, (1, length), (length, 1), torch.float32)] * r
            elif dense:
                others.append(Slot(slot.name, (slot.numel,), (1,), torch.float32))
        return Layout((*rows, *others))

    def reduce(self, vector: LazySum, mean: Mean, context: GroupContext, add_up: AddUp) -> Reduction:
        x = vector.total()
        if context.step < self.start_step:
            return self._reduce_dense(x, mean.vector(), context, add_up)
        views = context.buffers.once((self, x.data_ptr()), lambda: Views(self, x, context))
        return self._reduce_factors(views, mean, context, add_up)

    @abstractmethod
    def _reduce_factors(self, views: "Views", mean: Mean, context: GroupContext, add_up: AddUp) -> Reduction: ...

    def _reduce_dense(self, x: Tensor, out: Tensor, context: GroupContext, add_up: AddUp) -> Reduction:
        """In as many rounds as later, for the sequence of collectives must not depend on the step."""
        for start, end in self._equal_parts(len(x)):
            yield from add_up(FP32(), LazySum.of(x[start:end]), Mean.of(out[start:end]), context.part(start, end))

    def _equal_parts(self, n: int) -> list[tuple[int, int]]:
        return list(pairwise(n * part // self.rounds for part in range(self.rounds + 1)))


class Factors:
    """One side's factors (r, length) of all matrices, and what travels with them: this rank's `own`, what of it this
    rank `sent`, and the `sums` over the ranks; `dense` and `dense_sums` are the slots that are not factored."""

    def __init__(self, compressor: LowRank, side: int, dense: bool, context: GroupContext) -> None:
        self._codec, self._layout = compressor.codec, compressor.vector(context.layout, side, dense)
        n, buffers = self._layout.numel, context.buffers
        matrices = [slot.matrix for slot in context.layout.slots]
        shapes = [(r, matrix[side]) for matrix in matrices if (r := compressor.factor_rank(*matrix))]
        sizes = [r * length for r, length in shapes]
        rest = [slot.numel for slot in self._layout.slots if len(slot.shape) == 1]
        self._own, self._sum = (buffers.tensor(f"{kind} {side}", (n,)) for kind in ("own", "sum"))
        self._sent = buffers.tensor(f"sent {side}", (sum(sizes),))
        pieces = [vector.split([*sizes, *rest]) for vector in (self._own, self._sum)]
        self.dense, self.dense_sums = (piece[len(sizes) :] for piece in pieces)
        self.own, self.sums, self.sent = (
            [factor.view(shape) for factor, shape in zip(piece, shapes, strict=False)]
            for piece in (*pieces, self._sent.split(sizes))
        )

    def add_up(self, context: GroupContext, add_up: AddUp) -> Reduction:
        """Own factors become sums; what of dense slots is not sent stays in `dense`."""
        factors = self._own[: len(self._sent)]
        self._sent.copy_(factors)
        yield from add_up(self._codec, LazySum.of(self._own), Mean.of(self._sum), replace(context, layout=self._layout))
        self._sent.sub_(factors)


class Views:
    """One group's tensors, made once: `matrices` (rows, columns) and `dense` slots of x (n,), and both sides'
    factors."""

    def __init__(self, compressor: LowRank, x: Tensor, context: GroupContext) -> None:
        slots = context.layout.slots
        self._low = [bool(compressor.factor_rank(*slot.matrix)) for slot in slots]
        parts = list(zip(self._low, slots, context.layout.parts(x), strict=True))
        self.matrices = [part.view(slot.matrix) for factored, slot, part in parts if factored]
        self._dense = [part for factored, _, part in parts if not factored]
        self.p = Factors(compressor, ROWS, True, context)
        self.q = Factors(compressor, COLUMNS, compressor.rounds == 1, context)

    def add_up(self, factors: Factors, context: GroupContext, add_up: AddUp) -> Reduction:
        """Adds up these factors and, with them, what is not factored."""
        copy_each(factors.dense, self._dense)
        yield from factors.add_up(context, add_up)
        copy_each(self._dense, factors.dense)

    def decode(self, dense: Sequence[Tensor], mean: Mean, context: GroupContext) -> None:
        """The mean: Pᵀ Q, and of what is not factored these sums."""
        slots = mean.slots(context.layout)
        copy_each([slot for slot, factored in zip(slots, self._low, strict=True) if not factored], dense)
        products = [slot for slot, factored in zip(slots, self._low, strict=True) if factored]
        shaped = [product.view(matrix.shape) for product, matrix in zip(products, self.matrices, strict=True)]
        multiply([p.T for p in self.p.sums], self.q.sums, shaped)

    def take(self, p: Sequence[Tensor], q: Sequence[Tensor]) -> None:
        """Takes out of x what this rank sent: Pᵀ Q."""
        subtract_product(self.matrices, [left.T for left in p], q)


def keep(name: str, sums: Sequence[Tensor], context: GroupContext) -> None:
    """The next step starts from these sums of factors; where there was no gradient at all, from the last ones.

    They become about 1 in size: as large as the gradient, its product with the next one could be no float32 any more.
    A power of two changes no bit of the bases that are made of them."""
    if sums:
        before, largest = context.slots.all(name), largest_of(sums)
        add_each(sums, product_each(before, largest.eq(0).unbind()))
        scale_each_by(sums, _to_one(largest).unbind())
        context.slots.stage(name, sums)


def _to_one(sizes: Tensor) -> Tensor:
    """The power of two that makes each of sizes (k,) 1/2 to 1; 1 for 0."""
    _, exponents = torch.frexp(sizes)
    return torch.ldexp(torch.ones_like(sizes), -exponents.clamp(-126, 126))


@dataclass(frozen=True)
class PowerSGD(LowRank):
    """One step of subspace iteration per training step, warm-started (Vogels et al., NeurIPS 2019,
    https://arxiv.org/abs/1905.13727). Wants `memory.Residual`.

    P = Q Mᵀ is summed over the ranks and made orthonormal, then Q = P M is summed. The error kept is that of this
    rank's own M (local error feedback), which gives the same averaged update as the paper's. What codes lose of P tilts
    the basis and no more, for all ranks make the same one orthonormal; what they lose of Q is a part of the error.
    """

    rounds: ClassVar[int] = 2

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        r = self.factor_rank(rows, columns)
        return {"q": uniform((r, columns), generator)} if r else {}

    def _vectors(self, layout: Layout, step: int) -> Sequence[Layout]:
        return [self.vector(layout, ROWS, dense=True), self.vector(layout, COLUMNS, dense=False)]

    def _reduce_factors(self, views: Views, mean: Mean, context: GroupContext, add_up: AddUp) -> Reduction:
        multiply(context.slots.all("q"), [matrix.T for matrix in views.matrices], views.p.own)
        yield from views.add_up(views.p, context, add_up)
        basis = views.p.sums
        orthogonalize(basis)
        multiply(basis, views.matrices, views.q.own)
        yield from views.q.add_up(context, add_up)
        views.decode(views.p.dense_sums, mean, context)
        if context.remember:
            views.take(basis, views.q.sent)
        keep("q", views.q.sums, context)
