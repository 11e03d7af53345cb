"""A user's memory is tried before the first step: its mistakes would make residuals wrong in silence."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch

import gradwire as gw
from gradwire.plans import uniform
from tests.support.harness import slots_of
from tests.support.outside import Momentum

SLOTS = slots_of({"w": torch.empty(13, 5)})
Flat = Mapping[str, gw.DoubleBuffer]


@dataclass(frozen=True)
class InPlace(Momentum):
    def add(self, flat: Flat, gradient: gw.LazySum, layout: gw.Layout, ranks: int) -> gw.LazySum:
        flat["velocity"].read.mul_(self.momentum)
        return super().add(flat, gradient, layout, ranks)


@dataclass(frozen=True)
class Forgets(Momentum):
    def add(self, flat: Flat, gradient: gw.LazySum, layout: gw.Layout, ranks: int) -> gw.LazySum:
        return gradient.onto(*flat["residual"])


@dataclass(frozen=True)
class Swapped(Momentum):
    def add(self, flat: Flat, gradient: gw.LazySum, layout: gw.Layout, ranks: int) -> gw.LazySum:
        return gradient.onto(*flat["residual"]).onto(*flat["velocity"], self.momentum)


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        (InPlace(), r"^InPlace changes flat\['velocity'\]\.read, .* write to flat\['velocity'\]\.write$"),
        (Forgets(), r"^Forgets does not write flat\['velocity'\]\.write"),
        (Swapped(), r"^Swapped's residual is not zero after all was sent; .*\.onto\(\*flat\['residual'\]\) last$"),
    ],
    ids=str,
)
def test_a_memory_that_loses_or_repeats_gradients_is_refused(memory: gw.Memory, why: str):
    with pytest.raises(ValueError, match=why):
        uniform(SLOTS, gw.TopK(0.1), memory).check(SLOTS)


@dataclass(frozen=True)
class InSent(Momentum):
    """Sends from a buffer of its own, and keeps what is left of it at the end."""

    def add(self, flat: Flat, gradient: gw.LazySum, layout: gw.Layout, ranks: int) -> gw.LazySum:
        gradient.onto(*flat["residual"]).total()
        flat["velocity"].write.copy_(flat["residual"].write)
        return gw.LazySum.of(flat["velocity"].write)

    def sent(self, flat: Flat) -> None:
        flat["residual"].write.copy_(flat["velocity"].write)


@dataclass(frozen=True)
class Masked(gw.DGCMemory):
    """Of DGC's kind."""


@pytest.mark.parametrize("memory", [Momentum(), InSent(), Masked(clip=1.0), gw.NoMemory()], ids=str)
def test_others_are_not(memory: gw.Memory):
    uniform(SLOTS, gw.TopK(0.1), memory).check(SLOTS)
