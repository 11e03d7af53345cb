"""Low-rank compressors: a matrix travels as the product of two thin ones."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Sum
from gradwire.compressors.base import Reduction, Rounds, State, copy_all
from gradwire.compressors.orthogonal import orthogonalize
from gradwire.layout import Layout


@dataclass(frozen=True)
class LowRank(Rounds):
    """Each weight is the matrix M (rows, columns) of its outputs by all else, of which M ≈ Pᵀ Q is sent: P (r, rows)
    and Q (r, columns), the thin matrix on the left of every product, which is faster on a CPU.

    Matrices that have no more than `min_compression_rate` times the elements of both factors, and all vectors,
    travel as they are, in the same message. Before step `start_step` everything does.
    """

    rank: int = 4
    min_compression_rate: float = 2.0
    start_step: int = 0
    carries_dense: ClassVar[bool] = True
    fills_sinks: ClassVar[bool] = True

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
        """Bytes of all the messages of a whole group at this step."""
        if step < self.start_step:
            return 4 * (layout.numel + 1)
        ranks = [self.factor_rank(*slot.matrix) for slot in layout.slots]
        lengths = [self._sent_length(*slot.matrix, step) for slot in layout.slots]
        factors = sum(r * length for r, length in zip(ranks, lengths, strict=True))
        dense = sum(slot.numel for slot, r in zip(layout.slots, ranks, strict=True) if not r)
        return 4 * (factors + dense + self.rounds)

    @abstractmethod
    def _sent_length(self, rows: int, columns: int, step: int) -> int:
        """How long the factors sent in this step are together."""

    def reduce(self, x: Tensor, state: State) -> Reduction:
        if state.step < self.start_step:
            return (yield from self._reduce_dense(x, state))
        return (yield from self._reduce_factors(self._views(x, state), state))

    def commit(self, x: Tensor, state: State) -> None:
        if state.step >= self.start_step:
            self._commit_factors(self._views(x, state), state)
        elif state.remember:
            x.mul_(state.verdict.ne(0))

    @abstractmethod
    def _reduce_factors(self, views: "Views", state: State) -> Reduction: ...

    @abstractmethod
    def _commit_factors(self, views: "Views", state: State) -> None: ...

    def _reduce_dense(self, x: Tensor, state: State) -> Reduction:
        """In as many messages as later, for the sequence of collectives must not depend on the step."""
        mean = _mean(len(x), state)
        mean[:-1].copy_(x)
        mean[-1:].copy_(state.flag)
        for part in mean.chunk(self.rounds):
            yield Sum(part)
        state.settle(mean[-1:])
        return mean[:-1]

    def _views(self, x: Tensor, state: State) -> "Views":
        return state.kept.once(self, lambda: Views(self, x, state))


def _mean(n: int, state: State) -> Tensor:
    """(n + 1,): the mean, and room for a flag."""
    return state.kept.tensor("mean", (n + 1,))


class Message:
    """A flat buffer of a factor (r, length) per matrix, then the dense slots, then a flag (1,)."""

    def __init__(self, state: State, name: str, shapes: Sequence[tuple[int, int]], dense: Sequence[int] = ()) -> None:
        sizes = [r * length for r, length in shapes]
        self.flat = state.kept.tensor(name, (sum(sizes) + sum(dense) + 1,))
        self.product = self.flat[: sum(sizes)]
        *pieces, self.flag = self.flat.split([*sizes, *dense, 1])
        self.factors = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=False)]
        self.dense = pieces[len(shapes) :]


class Views:
    """One group's tensors, made once: `matrices` (rows, columns) and `dense` slots of x (n,), which are those of the
    indices `low_rank` and `vectors`, the matrices' tensors that last (`kept`), the messages for P and Q, and this
    rank's own product, `own_p` or `own_q`, which outlives the sum."""

    def __init__(self, compressor: LowRank, x: Tensor, state: State) -> None:
        slots = state.layout.slots
        ranks = [compressor.factor_rank(*slot.matrix) for slot in slots]
        low = [i for i, r in enumerate(ranks) if r]
        dense = [i for i, r in enumerate(ranks) if not r]
        parts = state.layout.parts(x)
        self.low_rank, self.vectors = low, dense
        self.matrices = [parts[i].view(slots[i].matrix) for i in low]
        self.dense = [parts[i] for i in dense]
        self.kept = [state.slots[i] for i in low]
        rows = [(ranks[i], slots[i].matrix[0]) for i in low]
        columns = [(ranks[i], slots[i].matrix[1]) for i in low]
        sizes = [slots[i].numel for i in dense]
        self.p = Message(state, "p", rows, sizes)
        self.q = Message(state, "q", columns, sizes if compressor.rounds == 1 else ())
        self.own_p, self.own_q = Message(state, "own p", rows), Message(state, "own q", columns)

    def pack_dense(self, message: Message, flag: Tensor) -> None:
        """Writes what travels beside the factors."""
        copy_all(message.dense, self.dense)
        message.flag.copy_(flag)

    def decode(self, message: Message, state: State) -> Tensor | list[Tensor]:
        """The mean: Pᵀ Q, and what was dense in `message`."""
        mean = _mean(state.layout.numel, state)[:-1]
        parts = state.sinks or state.layout.parts(mean)
        for i, matrix, p, q in zip(self.low_rank, self.matrices, self.p.factors, self.q.factors, strict=True):
            torch.mm(p.T, q, out=parts[i].view(matrix.shape))
        copy_all([parts[i] for i in self.vectors], message.dense)
        return state.sinks or mean

    def take(self, p: Message, q: Message, state: State) -> None:
        """Takes Pᵀ Q and what was dense out of x; on a CUDA step that is skipped, P or Q is 0 and dense slots stay."""
        for matrix, left, right in zip(self.matrices, p.factors, q.factors, strict=True):
            matrix.addmm_(left.T, right, alpha=-1)
        skipped = state.verdict.ne(0)
        for vector in self.dense:
            vector.mul_(skipped)

    def keep(self, name: str, message: Message, state: State) -> None:
        """The next step starts from these sums; where there was no gradient at all, from the last ones."""
        going = state.verdict.eq(0)
        for kept, factor in zip(self.kept, message.factors, strict=True):
            torch.where(going & factor.any(), factor, kept[name], out=kept[name])


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
        return {"q": torch.randn(r, columns, generator=generator)} if r else {}

    def _sent_length(self, rows: int, columns: int, step: int) -> int:
        return rows + columns

    def _reduce_factors(self, views: Views, state: State) -> Reduction:
        for kept, matrix, p in zip(views.kept, views.matrices, views.p.factors, strict=True):
            torch.mm(kept["q"], matrix.T, out=p)
        views.pack_dense(views.p, state.flag)
        yield Sum(views.p.flat)
        state.settle(views.p.flag)
        orthogonalize(views.p.factors)
        for p, matrix, q in zip(views.p.factors, views.matrices, views.own_q.factors, strict=True):
            torch.mm(p, matrix, out=q)
        views.q.product.copy_(views.own_q.product)
        yield Sum(views.q.flat)
        return views.decode(views.p, state)

    def _commit_factors(self, views: Views, state: State) -> None:
        if state.remember:
            if state.verdict.device.type != "cpu":
                views.own_q.product.mul_(state.verdict.eq(0))
            views.take(views.p, views.own_q, state)
        views.keep("q", views.q, state)
