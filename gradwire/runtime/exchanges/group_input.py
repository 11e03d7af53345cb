"""One group's input to a step: its gradients, and how they count in the mean."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwire.ops.gradients import Gradients
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.vectors import Scalar, leave_out
from gradwire.plans import Group


@dataclass(frozen=True)
class GroupInput:
    """A group's input to a step. A rank sends gradient·part / scale, and memories keep what is lacking of that; the sum
    over the ranks, times the scale, is the mean."""

    gradients: Gradients
    absent: Sequence[int] = ()
    """The slots without a gradient on this rank."""
    scale: Scalar | None = None
    """The factor that the loss was multiplied by, which gradients are divided by before they travel."""
    given_up: bool = False
    """Backward failed: no rank takes the step."""
    share: Scalar | None = None
    """This rank's part of the mean over all ranks; None where each has the same. Where it is 0, the gradients may be
    NaN."""
    float_residual: Tensor | None = None
    """(n,) float32, to compute the next residual in where it is kept in another type: see `FloatResiduals`."""
    sent_scale: Scalar | None = None
    """The factor of the loss, where gradients keep it while they travel; `scale` is None then."""

    def without_gradients(self) -> "GroupInput":
        """This input without its gradients, once the means are in place."""
        return replace(self, gradients=Gradients(self.gradients.split, ()))

    def sent_by(self, group: Group) -> "GroupInput":
        """This input as a group sends it. A cast without a memory sends gradients with the loss's scale: in 16 bits
        small ones would be lost without it."""
        casts = group.compressor.is_cast and not group.memory.error_feedback
        return replace(self, scale=None, sent_scale=self.scale) if casts else self

    def as_sent(self, residual: Tensor) -> Tensor:
        """A residual (n,), which is kept without the loss's scale, times `sent_scale` if gradients travel with it."""
        return residual if self.sent_scale is None else residual * self.sent_scale

    def part(self, ranks: int, hosts: int = 1) -> Scalar:
        """This rank's part of a mean over `ranks` ranks, which is then averaged over `hosts` hosts."""
        return 1 / ranks if self.share is None else self.share * hosts

    def weight(self, ranks: int, hosts: int = 1) -> Scalar:
        """That part, divided by the loss's scale, which the gradients still have."""
        part = self.part(ranks, hosts)
        return part if self.scale is None else part / self.scale

    def lazily(self, scratch: Tensor, weight: Scalar, nonfinite: Tensor) -> LazySum:
        """The weighted gradients, to be summed in scratch (n,)."""
        return LazySum(scratch, None, self.gradients.vectors(scratch), 1.0, weight, nonfinite)

    def copied(self, old: Tensor | None, scratch: Tensor, ranks: int) -> LazySum:
        """The sum of weighted gradients and `old` (n,), in scratch (n,); the gradients stay as they are."""
        weight = self.weight(ranks)
        return self.finish(LazySum(scratch, old, self.gradients.vectors(scratch), 1.0, weight), weight)

    def finish(self, x: LazySum, weight: Scalar) -> LazySum:
        """Completes x: dropped where the step is given up; where slots are absent, summed without their residuals."""
        if self.given_up:
            x.drop()
        elif self.absent:
            parts = self.gradients.split.layout.views(x.total())
            for slot in self.absent:
                torch.mul(self.gradients.slot(slot), weight, out=parts[slot])
                leave_out([parts[slot]], weight)
        return x
