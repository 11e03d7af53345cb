"""Alternating low rank: one factor a step."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Sum
from gradwire.compressors.base import Reduction, State, copy_all
from gradwire.compressors.low_rank import LowRank, Message, Views
from gradwire.compressors.orthogonal import orthogonalize


@dataclass(frozen=True)
class ACPSGD(LowRank):
    """PowerSGD's two halves in turn, with one all-reduce a step: P in even steps and Q in odd ones (Zhang et al.,
    ICDCS 2023, https://arxiv.org/abs/2306.08881). Wants `memory.Residual`.

    In even steps the last sum of Qs is made orthonormal, P = Q Mᵀ is summed over the ranks, and the mean is Pᵀ Q; in
    odd steps P and Q change places. The error kept is that of this rank's own product, known before the sum is.
    """

    min_compression_rate: float = 1.0
    rounds: ClassVar[int] = 1
    period: ClassVar[int] = 2

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        r = self.factor_rank(rows, columns)
        lengths = {"q": columns, "p": rows}
        return {name: torch.randn(r, length, generator=generator) for name, length in lengths.items() if r}

    def _sent_length(self, rows: int, columns: int, step: int) -> int:
        return rows if step % 2 == 0 else columns

    def _reduce_factors(self, views: Views, state: State) -> Reduction:
        basis, sent, own, name = _turn(views, state)
        copy_all(basis.factors, [kept[name] for kept in views.kept])
        orthogonalize(basis.factors)
        for thin, matrix, product in zip(basis.factors, views.matrices, own.factors, strict=True):
            torch.mm(thin, matrix.T if name == "q" else matrix, out=product)
        sent.product.copy_(own.product)
        views.pack_dense(sent, state.flag)
        yield Sum(sent.flat)
        state.settle(sent.flag)
        return views.decode(sent, state)

    def _commit_factors(self, views: Views, state: State) -> None:
        basis, sent, own, name = _turn(views, state)
        if state.remember:
            if state.verdict.device.type != "cpu":
                own.product.mul_(state.verdict.eq(0))
            views.take(*((own, basis) if name == "q" else (basis, own)), state)
        views.keep("p" if name == "q" else "q", sent, state)


def _turn(views: Views, state: State) -> tuple[Message, Message, Message, str]:
    """Whose turn it is: the basis, what is sent, this rank's own part of it, and the name of what the basis was."""
    if state.step % 2 == 0:
        return views.q, views.p, views.own_p, "q"
    return views.p, views.q, views.own_q, "p"
