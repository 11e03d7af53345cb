"""PowerSGD: low rank by one step of subspace iteration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors.compressor import ReduceCodec, Reduction
from gradwire.compressors.context import GroupContext
from gradwire.compressors.low_rank import COLUMNS, ROWS, LowRank, Views, keep
from gradwire.ops.mean import Mean
from gradwire.ops.noise import uniform
from gradwire.slots import Layout
from gradwire.torch_private.foreach import copy_each


@dataclass(frozen=True)
class PowerSGD(LowRank, recordable=True):
    """One step of subspace iteration per training step, warm-started (Vogels et al., NeurIPS 2019,
    https://arxiv.org/abs/1905.13727). Wants `memory.Residual`.

    P = Q Mᵀ is summed over the ranks and made orthonormal, then Q = P M is summed. The error kept is that of this
    rank's own M (local error feedback), which gives the same averaged update as the paper's. The codes' error in P
    only tilts the basis, for all ranks make the same one orthonormal; their error in Q is part of the error kept.
    """

    rounds: ClassVar[int] = 2

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        r = self.factor_rank(rows, columns)
        return {"q": uniform((r, columns), generator)} if r else {}

    def _vectors(self, layout: Layout, step: int) -> Sequence[Layout]:
        return [self.vector(layout, ROWS, dense=True), self.vector(layout, COLUMNS, dense=False)]

    def _reduce_factors(self, views: Views, mean: Mean, context: GroupContext, reduce_codec: ReduceCodec) -> Reduction:
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
        # the mean: Pᵀ Q
        views.write(p.dense_sums, mean)
        # keep the error of this rank's own product
        if context.error_feedback:
            views.subtract(p.sums, q.sent)
        # the next step starts from Q
        keep("q", q, context)
