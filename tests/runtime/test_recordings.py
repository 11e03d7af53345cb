"""Recorded turns, on a tape: what is replayed is what would have been computed, to the last bit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire as gw
from tests.support.cases import CASES, Case
from tests.support.harness import Job, draw, plan_of, slots_of
from tests.support.pretend_cuda import GPU, on_gpu, real
from tests.support.tape import Tape, taped

WORLD = 2
SLOTS = slots_of(
    {
        "first.weight": torch.empty(31, 17),
        "first.bias": torch.empty(31),
        "second.weight": torch.empty(12, 33),
        "scale": torch.empty(1),
        "third.weight": torch.empty(31, 17),
    }
)
FIRST = {type(part): case for case in CASES[::-1] for part in (case.compressor, case.communicator, case.memory)}
"""A row for each compressor, communicator and memory."""


class Fixed(Job):
    """A job whose gradients lie in the same places at every step, as in DDP's buckets."""

    device = GPU

    def begin(self) -> None:
        self.places = [[on_gpu(slot.view(torch.zeros(slot.numel))) for slot in self.slots] for _ in self.runtimes]
        for runtime in self.runtimes:
            runtime.fix_places(True)

    def step(self, grads: Any) -> list[list[Tensor]]:
        for runtime, places, own in zip(self.runtimes, self.places, grads, strict=True):
            runtime.open_step()
            for slot, grad in enumerate(own):
                real(places[slot]).zero_() if grad is None else real(places[slot]).copy_(grad)
                (runtime.submit if grad is not None else runtime.submit_absent)(slot, places[slot])
        self.finish()
        return [[real(place).clone() for place in own] for own in self.places]


Script = Callable[[Fixed, Callable[[Any], None]], None]
"""What is done with a job: steps, with what they return given to a function, and other calls."""


def outcome(plan: gw.Plan, script: Script, *, records: bool) -> tuple[list[Tensor], Fixed]:
    """All means, and in the end all state."""
    seen: list[Tensor] = []
    with taped(records=records):
        running = Fixed(plan, SLOTS, WORLD)
        try:
            running.begin()
            script(running, lambda means: seen.extend(mean for own in means for mean in own))
            for state in running.states():
                seen += [real(tensor) for _, tensor in sorted(state.items())]
        finally:
            running.close()
    return seen, running
