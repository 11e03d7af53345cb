"""Error feedback."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gradwire.compressors import Halves
from gradwire.memories.base import RESIDUAL, Memory
from gradwire.ops.lazy_sum import LazySum
from gradwire.slots import Layout
from gradwire.torch_private.foreach import norms_of


@dataclass(frozen=True)
class Residual(Memory, recordable=True):
    """Error feedback: what was not sent is added to the next gradient (Seide et al., Interspeech 2014;
    Karimireddy et al., ICML 2019, https://arxiv.org/abs/1901.09847). `decay` multiplies it before that.

    With `limit` a step's residual is scaled down to at most that many times the norm of the one before it, so that one
    batch of huge gradients does not come back for many steps. What is beyond the limit is lost. The first residual of a
    group has no limit, nor has any that follows one of zeros.
    """

    decay: float = 1.0
    limit: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay={self.decay} must lie in (0, 1]; 1 forgets nothing")
        if self.limit is not None and self.limit <= 1:
            raise ValueError(f"limit={self.limit} would let no residual grow; use e.g. limit=4, or None")

    def add(self, flat: Mapping[str, Halves], gradient: LazySum, layout: Layout, ranks: int) -> LazySum:
        return gradient.onto(*flat[RESIDUAL], self.decay)

    def sent(self, flat: Mapping[str, Halves]) -> None:
        if self.limit is not None:
            old, new = norms_of(flat[RESIDUAL]).unbind()
            share = torch.where(old > 0, self.limit * old / new, 1.0)
            flat[RESIDUAL].new.mul_(share.nan_to_num(1.0).clamp(max=1.0))
