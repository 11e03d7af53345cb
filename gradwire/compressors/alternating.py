"""Alternating low rank: one factor a step."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.collective import Sum
from gradwire.compressors.base import Reduction
from gradwire.compressors.context import GroupContext
from gradwire.compressors.low_rank import Factors, LowRank, Views, keep
from gradwire.ops.noise import uniform
from gradwire.ops.orthogonal import orthogonalize
from gradwire.torch_private import copy_each


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
        return {name: uniform((r, length), generator) for name, length in lengths.items() if r}

    def _sent_length(self, rows: int, columns: int, step: int) -> int:
        return rows if step % 2 == 0 else columns

    def _reduce_factors(self, views: Views, context: GroupContext) -> Reduction:
        if context.step % 2 == 0:
            return self._reduce_one(views.q, views.p, views.own_p, views, context)
        return self._reduce_one(views.p, views.q, views.own_q, views, context)

    def _reduce_one(
        self, basis: Factors, sent: Factors, own: Factors, views: Views, context: GroupContext
    ) -> Reduction:
        """Sends one kind of factor, the product with the other one's orthonormal rows."""
        basis_name, sent_name = ("q", "p") if basis is views.q else ("p", "q")
        copy_each(basis.factors, context.slots.all(basis_name))
        orthogonalize(basis.factors)
        for thin, matrix, product in zip(basis.factors, views.matrices, own.factors, strict=True):
            torch.mm(thin, matrix.T if sent_name == "p" else matrix, out=product)
        sent.product.copy_(own.product)
        copy_each(sent.dense, views.dense)
        yield Sum(sent.message)
        views.decode(sent)
        if context.remember:
            views.take(*((own, basis) if sent_name == "p" else (basis, own)))
        keep(sent_name, sent.factors, context)
