"""Low-rank compressors: a matrix travels as the product of two thin ones."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Message, Sum
from gradwire.compressors.base import MultiRound, Reduction
from gradwire.compressors.context import GroupContext
from gradwire.ops.noise import uniform
from gradwire.ops.orthogonal import orthogonalize
from gradwire.slots import Layout
from gradwire.torch_private import add_each, copy_each, norms_of, product_each, zero_each


@dataclass(frozen=True)
class LowRank(MultiRound):
    """Each weight is the matrix M (rows, columns) of its outputs by all else, of which M ≈ Pᵀ Q is sent: P (r, rows)
    and Q (r, columns), the thin matrix on the left of every product, which is faster on a CPU.

    Matrices that have no more than `min_compression_rate` times the elements of both factors, and all vectors,
    travel as they are, in the same message. Before step `start_step` everything does.
    """

    rank: int = 4
    min_compression_rate: float = 2.0
    start_step: int = 0
    carries_dense: ClassVar[bool] = True
    local_arithmetic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank={self.rank} sends nothing; use rank=1 or more, e.g. rank=4")
        if not self.min_compression_rate >= 1:
            raise ValueError(
                f"min_compression_rate={self.min_compression_rate} would send more than the gradient; use 1 or more"
            )
        if self.start_step < 0:
            raise ValueError(f"start_step={self.start_step} is before the first; use 0 to compress from the start")

    def factor_rank(self, rows: int, columns: int) -> int:
        """The r of a (rows, columns) slot's factors; 0 where it travels dense."""
        r = min(self.rank, rows, columns)
        return r if r * (rows + columns) * self.min_compression_rate < rows * columns else 0

    def group_bytes(self, layout: Layout, step: int) -> int:
        """Bytes of all the messages of a whole group at this step, without their flags."""
        if step < self.start_step:
            return 4 * layout.numel
        ranks = [self.factor_rank(*slot.matrix) for slot in layout.slots]
        lengths = [self._sent_length(*slot.matrix, step) for slot in layout.slots]
        factors = sum(r * length for r, length in zip(ranks, lengths, strict=True))
        dense = sum(slot.numel for slot, r in zip(layout.slots, ranks, strict=True) if not r)
        return 4 * (factors + dense)

    @abstractmethod
    def _sent_length(self, rows: int, columns: int, step: int) -> int:
        """How long the factors sent in this step are together."""

    def reduce(self, x: Tensor, out: Tensor, context: GroupContext) -> Reduction:
        if context.step < self.start_step:
            return self._reduce_dense(x, out, context)
        key = (self, x.data_ptr(), out.data_ptr())
        return self._reduce_factors(context.buffers.once(key, lambda: Views(self, x, out, context)), context)

    @abstractmethod
    def _reduce_factors(self, views: "Views", context: GroupContext) -> Reduction: ...

    def _reduce_dense(self, x: Tensor, out: Tensor, context: GroupContext) -> Reduction:
        """In as many messages as later, for the sequence of collectives must not depend on the step."""
        bounds = [len(x) * part // self.rounds for part in range(self.rounds + 1)]
        for start, end in pairwise(bounds):
            message = context.numbers("dense", end - start)
            message.body.copy_(x[start:end])
            yield Sum(message)
            out[start:end].copy_(message.body)
        if context.remember:
            x.zero_()


class Factors:
    """A message of a factor (r, length) per matrix, then the dense slots."""

    def __init__(
        self, context: GroupContext, name: str, shapes: Sequence[tuple[int, int]], dense: Sequence[int] = ()
    ) -> None:
        sizes = [r * length for r, length in shapes]
        self.message: Message = context.numbers(name, sum(sizes) + sum(dense))
        self.product = self.message.body[: sum(sizes)]
        pieces = self.message.body.split([*sizes, *dense])
        self.factors = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=False)]
        self.dense = pieces[len(shapes) :]


class Views:
    """One group's tensors, made once: `matrices` (rows, columns) and `dense` slots of x (n,), where their means go in
    out (n,), the messages for P and Q, and this rank's own product, `own_p` or `own_q`, which outlives the sum."""

    def __init__(self, compressor: LowRank, x: Tensor, out: Tensor, context: GroupContext) -> None:
        slots = context.layout.slots
        ranks = [compressor.factor_rank(*slot.matrix) for slot in slots]
        low = [i for i, r in enumerate(ranks) if r]
        dense = [i for i, r in enumerate(ranks) if not r]
        parts, means = context.layout.parts(x), context.layout.parts(out)
        self.matrices = [parts[i].view(slots[i].matrix) for i in low]
        self.products = [means[i].view(slots[i].matrix) for i in low]
        self.dense, self.dense_means = [parts[i] for i in dense], [means[i] for i in dense]
        rows = [(ranks[i], slots[i].matrix[0]) for i in low]
        columns = [(ranks[i], slots[i].matrix[1]) for i in low]
        sizes = [slots[i].numel for i in dense]
        self.p = Factors(context, "p", rows, sizes)
        self.q = Factors(context, "q", columns, sizes if compressor.rounds == 1 else ())
        self.own_p, self.own_q = Factors(context, "own p", rows), Factors(context, "own q", columns)

    def decode(self, sent: Factors) -> None:
        """The mean: Pᵀ Q, and what is dense in the message that was `sent`."""
        for product, p, q in zip(self.products, self.p.factors, self.q.factors, strict=True):
            torch.mm(p.T, q, out=product)
        copy_each(self.dense_means, sent.dense)

    def take(self, p: Factors, q: Factors) -> None:
        """Takes out of x what this rank sent: Pᵀ Q, and what is dense."""
        for matrix, left, right in zip(self.matrices, p.factors, q.factors, strict=True):
            matrix.addmm_(left.T, right, alpha=-1)
        zero_each(self.dense)


def keep(name: str, sums: Sequence[Tensor], context: GroupContext) -> None:
    """The next step starts from these sums of factors; where there was no gradient at all, from the last ones."""
    if sums:
        before = context.slots.all(name)
        empty = norms_of(sums).eq_(0)
        add_each(sums, product_each(before, empty.unbind()))
        context.slots.stage(name, sums)


@dataclass(frozen=True)
class PowerSGD(LowRank):
    """One step of subspace iteration per training step, warm-started (Vogels et al., NeurIPS 2019,
    https://arxiv.org/abs/1905.13727). Wants `memory.Residual`.

    P = Q Mᵀ is summed over the ranks and made orthonormal, then Q = P M is summed. The error kept is that of this
    rank's own M (local error feedback), which gives the same averaged update as the paper's.
    """

    rounds: ClassVar[int] = 2

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        r = self.factor_rank(rows, columns)
        return {"q": uniform((r, columns), generator)} if r else {}

    def _sent_length(self, rows: int, columns: int, step: int) -> int:
        return rows + columns

    def _reduce_factors(self, views: Views, context: GroupContext) -> Reduction:
        for q, matrix, p in zip(context.slots.all("q"), views.matrices, views.p.factors, strict=True):
            torch.mm(q, matrix.T, out=p)
        copy_each(views.p.dense, views.dense)
        yield Sum(views.p.message)
        orthogonalize(views.p.factors)
        for p, matrix, q in zip(views.p.factors, views.matrices, views.own_q.factors, strict=True):
            torch.mm(p, matrix, out=q)
        views.q.product.copy_(views.own_q.product)
        yield Sum(views.q.message)
        views.decode(views.p)
        if context.remember:
            views.take(views.p, views.own_q)
        keep("q", views.q.factors, context)
