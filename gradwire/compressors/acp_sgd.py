"""ACP-SGD: alternating low rank, one factor a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors.approximation import LowRankEstimate
from gradwire.compressors.compressor import ReduceCodec, Reduction
from gradwire.compressors.context import GroupContext
from gradwire.compressors.low_rank import LowRankViews, keep
from gradwire.ops.mean import Mean
from gradwire.ops.noise import uniform
from gradwire.ops.reference.products import COLUMNS, ROWS
from gradwire.slots import Layout
from gradwire.torch_private.foreach import copy_each


@dataclass(frozen=True)
class ACPSGD(LowRankEstimate, recordable=True):
    """PowerSGD's two projections in turn, with one sum a step: P in even steps and Q in odd ones (Zhang et al.,
    ICDCS 2023, https://arxiv.org/abs/2306.08881). Wants `memory.Residual`.

    In even steps the last sum of Qs is made orthonormal, P = Q Mᵀ is summed over the ranks, and the mean is Pᵀ Q; in
    odd steps P and Q change places. The error kept is that of this rank's own product.
    """

    min_compression_rate: float = 1.0
    rounds: ClassVar[int] = 1
    period: ClassVar[int] = 2

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        r = self.factor_rank(rows, columns)
        lengths = {"q": columns, "p": rows}
        return {name: uniform((r, length), generator) for name, length in lengths.items() if r}

    def _vectors(self, layout: Layout, step: int) -> Sequence[Layout]:
        return [self.vector(layout, ROWS if step % 2 == 0 else COLUMNS, dense=True)]

    def _reduce_factors(
        self, views: LowRankViews, mean: Mean, context: GroupContext, reduce_codec: ReduceCodec
    ) -> Reduction:
        # whose turn it is
        even = context.step % 2 == 0
        sides = ("q", views.q), ("p", views.p)
        (held, basis), (name, factors) = sides if even else sides[::-1]
        # the factors of the last two steps
        kept = [*context.slots.all(held), *context.slots.all(name)]
        copy_each([*basis.slot_sums, *factors.slots_before], kept)
        # orthonormalise the other side's factor
        views.ops.orthogonalize(basis.sums)
        # project: P = Q Mᵀ, or Q = P M
        views.project(basis.sums, factors)
        # sum it, and the slots that are not factored, over the ranks
        yield from factors.reduce(context, reduce_codec, views.dense)
        # the mean: Pᵀ Q
        views.write(factors.dense_sums, mean)
        # keep the error of this rank's own product
        if context.error_feedback:
            sent = (factors.sent, basis.sums) if even else (basis.sums, factors.sent)
            views.subtract(*sent)
        # the step after next starts from this factor
        keep(name, factors, context)
