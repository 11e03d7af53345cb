"""Dion: PowerSGD's factors as an orthonormal update."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors.compressor import ReduceCodec, Reduction
from gradwire.compressors.context import GroupContext
from gradwire.compressors.low_rank import LowRank, LowRankViews, keep
from gradwire.ops.mean import Mean
from gradwire.torch_private.foreach import scale_each

EPSILON = 1e-8
"""Added to the norm of a row, as in the paper's code: a row of rounding errors is not made as long as the others."""


@dataclass(frozen=True)
class Dion(LowRank, recordable=True):
    """Orthonormal updates of low rank, made of momentum that stays on the ranks (Dion, Ahn et al., 2025,
    https://arxiv.org/abs/2504.05295). Wants `memory.Residual`, which is each rank's momentum M.

    P and Q are summed over the ranks as by PowerSGD. Then this rank's own Pᵀ Q times 1 - `mu` leaves M, the rows of the
    summed Q are made 1 long, and the gradient of a matrix (rows, columns) becomes the update √(rows / columns) Pᵀ Q,
    which `torch.optim.SGD(matrices, lr)` subtracts. The gradients of vectors, and of matrices of one row or column,
    become their mean, for AdamW or another optimizer.

    The paper leaves embeddings and output layers to AdamW, too: give them rules, such as ("embedding.*", gw.FP32()).
    """

    rank: float = 1 / 8
    mu: float = 0.95
    """The part of the momentum along P that remains, in [0, 1)."""
    is_update: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mu < 1:
            raise ValueError(f"mu={self.mu} must lie in [0, 1), e.g. mu=0.95")

    def makes_update(self, rows: int, columns: int) -> bool:
        return bool(self.factor_rank(rows, columns))

    def _reduce_factors(
        self, views: LowRankViews, mean: Mean, context: GroupContext, reduce_codec: ReduceCodec
    ) -> Reduction:
        yield from self._iterate(views, context, reduce_codec)
        p, q = views.p, views.q
        # decay the momentum along P: M -= (1 - mu) Pᵀ Q of this rank's own
        if context.error_feedback:
            scale_each(q.sent, 1 - self.mu)
            views.subtract(p.sums, q.sent)
        # the update: √(rows / columns) Pᵀ Q with rows of Q that are 1 long
        for left, right in zip(p.sums, q.sums, strict=True):
            _to_length(right, sqrt(left.shape[-1] / right.shape[-1]))
        views.write(p.dense_sums, mean)
        # the next step starts from Q
        keep("q", q, context)


def _to_length(factors: Tensor, length: float) -> None:
    """Makes each row of the factors (k, r, n) so long."""
    # float32 has no squares of 1e20
    norms = torch.linalg.vector_norm(factors, dim=-1, keepdim=True, dtype=torch.float64)
    factors.div_(norms.add_(EPSILON).div_(length).float())
