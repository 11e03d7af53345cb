"""A lazy sum of residual and gradient: added up in the pass that encodes it, where a kernel can."""

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

    Where x is not finite, a CPU replaces it and its payload by zeros, so that what travels is harmless. On a GPU, where
    that would need a host sync, results of the step are dropped later.
    """

    next: Tensor
    """(n,) float32, where x goes; `old`, the gradient's memory, or a buffer of its own."""
    old: Tensor | None
    """(n,) float32 or bfloat16, the residual; None for zeros."""
    gradient: Gradient
    decay: float = 1.0
    weight: Scalar = 1.0
    """Of a gradient in the mean, such as 1 / ranks."""
    nonfinite: Tensor | None = None
    """(1,) becomes NaN where x is not finite."""

    @classmethod
    def of(cls, x: Tensor) -> "LazySum":
        """The sum that is a vector (n,) itself."""
        return cls(x, x, None)

    def onto(self, old: Tensor | None, next: Tensor, decay: float = 1.0) -> "LazySum":
        """The sum of decay·old (n,) and this one, into `next`; this one is added up first where it has an `old` of its
        own."""
        if self.old is not None:
            self.total()
        gradient, weight = (self.next, 1.0) if self._is_added else (self.gradient, self.weight)
        return LazySum(next, old, gradient, decay, weight, self.nonfinite)

    @property
    def numel(self) -> int:
        """n, the number of elements."""
        return len(self.next)

    def total(self) -> Tensor:
        """x (n,), added up, which may be changed."""
        if not self._is_added:
            self._added(backend_for(self.next).add_in(*self._addends(), nonfinite=self.nonfinite))
        return self.next

    def select(self, layouts: Sequence[Entries], payloads: Tensor) -> None:
        """Moves the k largest elements of each part of x to a row of payloads (parts, ≥ nbytes) uint8; the rest of x is
        in `next`. One part is added up and encoded in one pass."""
        if len(layouts) > 1:
            self.total()
        select = backend_for(self.next).add_select
        self._added(select(*self._addends(), layouts, payloads, nonfinite=self.nonfinite), payloads)

    def quantise(self, layouts: Sequence[Blocks], payloads: Tensor, *, keep: bool, seeds: Sequence[Seed]) -> None:
        """Writes each part of x in blocks to a row of payloads (parts, ≥ nbytes) uint8; the error is in `next` only
        where `keep`. One part is added up and encoded in one pass."""
        if len(layouts) > 1:
            self.total()
        quantise = backend_for(self.next).add_quantise
        options = {"keep": keep, "seeds": seeds, "nonfinite": self.nonfinite}
        self._added(quantise(*self._addends(), layouts, payloads, **options), payloads)

    def drop(self) -> None:
        """Marks x as not finite."""
        self._added(False)

    @property
    def _is_added(self) -> bool:
        return self.old is self.next and self.gradient is None

    def _addends(self) -> tuple[Tensor, Tensor | None, Gradient, float, Scalar]:
        return self.next, self.old, self.gradient, self.decay, self.weight

    def _added(self, finite: bool, *sent: Tensor) -> None:
        """Notes that x, or what is left of it, is in `next`."""
        self.old = self.next
        self.gradient = None
        self.decay = 1.0
        # harmless zeros travel, and the flag says why
        if not finite:
            for tensor in (self.next, *sent):
                tensor.zero_()
            if self.nonfinite is not None:
                self.nonfinite.fill_(torch.nan)
