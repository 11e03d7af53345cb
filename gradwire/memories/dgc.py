"""Deep Gradient Compression's memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar

from torch import Tensor

from gradwire.compressors import Compressor, DoubleBuffer
from gradwire.memories.memory import RESIDUAL, Memory
from gradwire.ops.backend import backend_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.slots import Layout
from gradwire.torch_private.foreach import norms_of, scale_each_by

VELOCITY = "velocity"


@dataclass(frozen=True)
class DGCMemory(Memory, recordable=True):
    """Deep Gradient Compression's memory: momentum is accumulated before compressing (momentum correction), and
    that of coordinates that were sent is zeroed (factor masking) (Lin et al., ICLR 2018,
    https://arxiv.org/abs/1712.01887). What travels dense beside the rest has the momentum too, and nothing masks it.

    Use a plain optimizer with it: its own momentum would count twice.
    """

    momentum: float = 0.9
    """In (0, 1)."""
    masking: bool = True
    """Zeroes the momentum of coordinates that were sent."""
    clip: float | None = None
    """The largest norm of one parameter's gradient, as in DGC's code; each rank clips its own at clip / sqrt(ranks),
    with `weight=` after multiplying it by its weight over the mean weight of the ranks."""
    flat_state: ClassVar[tuple[str, ...]] = (RESIDUAL, VELOCITY)
    wants_sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} must lie in (0, 1); without momentum use Residual()")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip={self.clip} is no norm; use a positive number or None")

    @property
    def masks_sent(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.masking

    def for_dense(self) -> "DGCMemory":
        return replace(self, masking=False)

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        if compressor.is_cast and self.masks_sent:
            raise ValueError(
                f"{compressor} sends all, of which DGCMemory keeps no momentum; use masking=False, or Residual()"
            )
        if not (compressor.sparse or compressor.is_cast):
            raise ValueError(
                f"DGCMemory masks the coordinates that were sent whole, and {compressor} sends none so; "
                "pair it with DGC(), TopK() or RandomK(), or use Residual()"
            )
        if compressor.may_send_all and self.masks_sent:
            raise ValueError(
                f"{compressor} sends all where its levels hold too little, of which DGCMemory keeps no momentum; "
                "use min_share=0, or Residual()"
            )

    def add(self, flat: Mapping[str, DoubleBuffer], gradient: LazySum, layout: Layout, ranks: int) -> LazySum:
        velocity = flat[VELOCITY]
        # clip each parameter's gradient
        if self.clip is not None:
            gradient = gradient.onto(None, velocity.write)
            self._clip(gradient.total(), layout, ranks)
        # accumulate momentum, and that in the residual
        return gradient.onto(*velocity, self.momentum).onto(*flat[RESIDUAL])

    def sent(self, flat: Mapping[str, DoubleBuffer]) -> None:
        # mask what was sent, which is zero in the residual
        if self.masking:
            velocity = flat[VELOCITY].write
            backend_for(velocity).mask_zeros(velocity, flat[RESIDUAL].write)

    def _clip(self, x: Tensor, layout: Layout, ranks: int) -> None:
        """Scales each slot's gradient in x (n,), which is divided by `ranks`, to the largest norm."""
        assert self.clip is not None
        parts = layout.parts(x)
        # a rank's gradient is clipped at clip / sqrt(ranks), and x is divided by the ranks
        limit = self.clip / (ranks * sqrt(ranks))
        # scale down where the norm is larger
        norms = norms_of(parts)
        scale_each_by(parts, (limit / norms.clamp_min(limit)).unbind())
