"""What is compressed: what was kept and a gradient, added up in the pass that encodes it where a kernel can."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.ops.backend import backend_for
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.noise import Seed
from gradwire.ops.vectors import Gradient, Scalar


@dataclass(eq=False)
class LazySum:
    """x (n,) = decay·old + weight·gradient, which is added up once, into `next` (n,), when it is first needed.

    `next` may be `old`, or the gradient's memory. `nonfinite` (1,) becomes NaN where x is not finite; on a CPU x is
    then 0, and what is sent of it too, so that what travels is harmless. A GPU is not asked, and what it computes from
    x is forgotten.
    """

    next: Tensor
    old: Tensor | None
    gradient: Gradient
    decay: float = 1.0
    weight: Scalar = 1.0
    nonfinite: Tensor | None = None

    @classmethod
    def of(cls, x: Tensor) -> "LazySum":
        """A vector (n,) as it is."""
        return cls(x, x, None)

    def onto(self, old: Tensor | None, next: Tensor, decay: float = 1.0) -> "LazySum":
        """decay·old (n,) plus this, into `next`; this is itself added up first only where `total` was called."""
        gradient, weight = (self.next, 1.0) if self._is_added else (self.gradient, self.weight)
        return LazySum(next, old, gradient, decay, weight, self.nonfinite)

    @property
    def numel(self) -> int:
        """n."""
        return len(self.next)

    def total(self) -> Tensor:
        """x (n,), which may be changed."""
        if not self._is_added:
            self._added(backend_for(self.next).add_in(*self._addends(), nonfinite=self.nonfinite))
        return self.next

    def select(self, layouts: Sequence[Entries], payloads: Tensor) -> None:
        """Writes the k largest elements of each part of x to a row of payloads (parts, ≥ nbytes) uint8; what is left of
        x is in `next`. Of one part in the pass that adds it up."""
        if len(layouts) > 1:
            self.total()
        select = backend_for(self.next).add_select
        self._added(select(*self._addends(), layouts, payloads, nonfinite=self.nonfinite), payloads)

    def quantise(self, layouts: Sequence[Blocks], payloads: Tensor, *, keep: bool, seeds: Sequence[Seed]) -> None:
        """As `select`, writes x in blocks; what is left of x is in `next` only where `keep`."""
        if len(layouts) > 1:
            self.total()
        quantise = backend_for(self.next).add_quantise
        options = {"keep": keep, "seeds": seeds, "nonfinite": self.nonfinite}
        self._added(quantise(*self._addends(), layouts, payloads, **options), payloads)

    def drop(self) -> None:
        """x counts as not finite, whatever it is."""
        self._added(False)

    @property
    def _is_added(self) -> bool:
        return self.old is self.next and self.gradient is None

    def _addends(self) -> tuple[Tensor, Tensor | None, Gradient, float, Scalar]:
        return self.next, self.old, self.gradient, self.decay, self.weight

    def _added(self, finite: bool, *sent: Tensor) -> None:
        """x is in `next` now, or what is left of it."""
        self.old, self.gradient, self.decay = self.next, None, 1.0
        if not finite:
            for tensor in (self.next, *sent):
                tensor.zero_()
            if self.nonfinite is not None:
                self.nonfinite.fill_(torch.nan)
