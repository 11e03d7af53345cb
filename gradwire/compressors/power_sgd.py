"""PowerSGD: low rank by one step of subspace iteration."""

from dataclasses import dataclass

from gradwire.compressors.approximation import LowRankEstimate
from gradwire.compressors.compressor import ReduceCodec, Reduction
from gradwire.compressors.context import GroupContext
from gradwire.compressors.low_rank import LowRankViews, keep
from gradwire.ops.mean import Mean


@dataclass(frozen=True)
class PowerSGD(LowRankEstimate, recordable=True):
    """One step of subspace iteration per training step, warm-started (Vogels et al., NeurIPS 2019,
    https://arxiv.org/abs/1905.13727). Wants `memory.Residual`.

    P = Q Mᵀ is summed over the ranks and made orthonormal, then Q = P M is summed. The error kept is that of this
    rank's own M (local error feedback), which gives the same averaged update as the paper's. The codes' error in P
    only tilts the basis, for all ranks make the same one orthonormal; their error in Q is part of the error kept.
    """

    def _reduce_factors(
        self, views: LowRankViews, mean: Mean, context: GroupContext, reduce_codec: ReduceCodec
    ) -> Reduction:
        yield from self._iterate(views, context, reduce_codec)
        p, q = views.p, views.q
        # the mean: Pᵀ Q
        views.write(p.dense_sums, mean)
        # keep the error of this rank's own product
        if context.error_feedback:
            views.subtract(p.sums, q.sent)
        # the next step starts from Q
        keep("q", q, context)
