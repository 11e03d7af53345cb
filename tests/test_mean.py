"""A mean is written where gradients lie, in parts; what comes out is what a copy of one vector gives."""

import pytest
import torch
from cases import CASES, Case
from harness import SMALL, draw, job, plan_of, slots_of
from torch import Tensor

import gradwire as gw
from gradwire.ops import gradients
from gradwire.ops.gradients import Gradients
from gradwire.ops.kernels import native_for
from gradwire.ops.mean import Mean
from gradwire.slots import Layout

SLOTS = slots_of(SMALL)


def run(case: Case) -> tuple[list, list]:
    """The means of three steps, and what is kept then."""
    plan = plan_of(SLOTS, case.compressor, case.memory, case.communicator)
    with job(plan, SLOTS, 2) as running:
        means = [running.step(draw(SLOTS, 2, seed)) for seed in range(3)]
        return means, running.states()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_means_and_state_are_the_same_wherever_means_are_written(case: Case, monkeypatch: pytest.MonkeyPatch):
    copied = run(case)
    monkeypatch.setattr(gradients, "SMALL", 0)
    torch.testing.assert_close(run(case), copied, rtol=0, atol=0, equal_nan=True)


def buckets(layout: Layout) -> list[Tensor]:
    """A tensor for each slot, as if two buckets held them, the second from the third slot on."""
    halves = Layout(layout.slots[:2]), Layout(layout.slots[2:])
    return [view for half in halves for view in half.views(torch.zeros(half.numel))]


def test_parts_and_slots_cover_the_gradients_and_nothing_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gradients, "SMALL", 0)
    layout, expected = Layout(tuple(SLOTS)), torch.arange(float(sum(slot.numel for slot in SLOTS)))
    buckets_in_place = 2 if native_for(expected) else 1
    for by_slot in (False, True):
        tensors = buckets(layout)
        mean = Mean(lambda: torch.empty(layout.numel), Gradients.merged(layout, tensors))
        targets = mean.slots(layout) if by_slot else mean.parts()
        assert len(targets) == (len(SLOTS) if by_slot else buckets_in_place)
        for target, part in zip(targets, expected.split([each.numel() for each in targets]), strict=True):
            target.copy_(part)
        mean.hand_out(None)
        for found, wanted in zip(tensors, layout.views(expected), strict=True):
            assert torch.equal(found, wanted)


LOW_RANK = [gw.PowerSGD(2), gw.ACPSGD(2)]
BY_LIBRARY = [gw.TopK(0.05), gw.Quantized(4)] if native_for(torch.empty(1)) else []


@pytest.mark.parametrize("compressor", LOW_RANK + BY_LIBRARY, ids=str)
def test_what_is_written_in_place_needs_no_room(compressor: gw.Compressor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gradients, "SMALL", 0)
    with job(gw.plans.uniform(SLOTS, compressor), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        for stored in running.runtimes[0]._steps.store.groups:
            assert "mean" not in stored.buffers._tensors
