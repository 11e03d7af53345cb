"""A mean is written where gradients lie, in parts; what comes out is what a copy of one vector gives."""

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.ops import gradients
from gradwire.ops.backend import backend_for
from gradwire.ops.gradients import Gradients
from gradwire.ops.matrices import batches
from gradwire.ops.mean import Mean
from gradwire.slots import Layout, Slot
from tests.support.cases import CASES, Case, rows
from tests.support.harness import SMALL, draw, job, plan_of, slots_of
from tests.support.states import earlier

SLOTS = slots_of(SMALL)


def run(case: Case) -> tuple[list, list]:
    """The means of three steps, and what is kept then."""
    plan = plan_of(SLOTS, case.compressor, case.memory, case.communicator)
    with job(plan, SLOTS, 2) as running:
        means = [running.step(draw(SLOTS, 2, seed)) for seed in range(3)]
        return means, [*map(earlier, running.states())]


@rows(CASES)
def test_means_and_state_are_the_same_wherever_means_are_written(case: Case, monkeypatch: pytest.MonkeyPatch):
    copied = run(case)
    monkeypatch.setattr(gradients, "SMALL", 0)
    # torch's products of wide matrices round by where they are written, on an AMD EPYC
    rtol, atol = (1e-5, 1e-6) if isinstance(case.compressor, gw.Dion) else (0, 0)
    torch.testing.assert_close(run(case), copied, rtol=rtol, atol=atol, equal_nan=True)


def buckets(layout: Layout) -> list[Tensor]:
    """A tensor for each slot, as if two buckets held them, the second from the fourth slot on."""
    halves = Layout(layout.slots[:3]), Layout(layout.slots[3:])
    return [view for half in halves for view in half.views(torch.zeros(half.numel))]


ALIKE = slots_of({f"{i}.{name}": torch.empty(shape) for i in range(4) for name, shape in (("w", (12, 9)), ("b", (9,)))})


@pytest.mark.parametrize("slots", [SLOTS, ALIKE], ids=["other shapes", "equal shapes"])
@pytest.mark.parametrize("by_matrix", [False, True])
def test_parts_and_matrices_cover_the_gradients_and_nothing_else(
    by_matrix: bool, slots: list[Slot], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gradients, "SMALL", 0)
    layout, expected = Layout(tuple(slots)), torch.arange(float(sum(slot.numel for slot in slots)))
    tensors = buckets(layout)
    mean = Mean(lambda: torch.empty(layout.numel), Gradients.merged(layout, tensors))
    if by_matrix:
        for batch in batches(layout, range(len(slots))):
            targets, wanted = mean.matrices(batch), batch.of(expected[batch.start :])
            for target, part in zip(targets, wanted.split([len(each) for each in targets]), strict=True):
                target.copy_(part)
    else:
        targets = mean.parts()
        assert len(targets) == (2 if backend_for(expected).writes_anywhere else 1)
        for target, part in zip(targets, expected.split([each.numel() for each in targets]), strict=True):
            target.copy_(part)
    mean.write_means(None)
    for found, wanted in zip(tensors, layout.views(expected), strict=True):
        assert torch.equal(found, wanted)


def test_means_are_multiplied_before_they_are_float16():
    """By the loss scale: alone, such small ones would be 0, or a subnormal of few digits."""
    slots = slots_of({"a": torch.empty(4, 2), "b": torch.empty(3)})
    layout, means = Layout(tuple(slots)), torch.tensor([1e-7, 4e-8, 2e-8, -1e-9, 1e-3, 0, -3e-6, 1e-7, 1, 5e-8, 1e-5])
    tensors = [torch.empty(slot.shape, dtype=torch.float16) for slot in slots]
    expected = (means * 4096).half()
    mean = Mean(lambda: torch.empty(11), Gradients.merged(layout, tensors))
    mean.vector().copy_(means)
    mean.write_means(torch.tensor(4096.0))
    assert torch.equal(torch.cat([tensor.flatten() for tensor in tensors]), expected)


@pytest.mark.parametrize("compressor", [gw.PowerSGD(2), gw.ACPSGD(2)], ids=str)
def test_batches_of_matrices_may_lie_in_several_tensors(compressor: gw.Compressor, monkeypatch: pytest.MonkeyPatch):
    means = []
    for least in (1 << 14, 0):
        monkeypatch.setattr(gradients, "SMALL", least)
        with job(plan_of(ALIKE, compressor, gw.Residual(), gw.AllReduce(), groups=1), ALIKE, 2) as running:
            tensors = [buckets(Layout(tuple(ALIKE))) for _ in range(2)]
            for runtime, own, drawn in zip(running.runtimes, tensors, draw(ALIKE, 2, 0), strict=True):
                runtime.open_step()
                for slot, (tensor, gradient) in enumerate(zip(own, drawn, strict=True)):
                    runtime.became_ready(slot)
                    runtime.submit(slot, tensor.copy_(gradient))
            running.finish()
            means.append(tensors)
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=0)


LOW_RANK = [gw.PowerSGD(2), gw.ACPSGD(2)]
BY_LIBRARY = [gw.TopK(0.05), gw.Quantized(4)] if backend_for(torch.empty(1)).writes_anywhere else []


@pytest.mark.parametrize("compressor", LOW_RANK + BY_LIBRARY, ids=str)
def test_what_is_written_in_place_needs_no_room(compressor: gw.Compressor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gradients, "SMALL", 0)
    with job(gw.plans.uniform(SLOTS, compressor), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        assert "mean" not in running.runtimes[0]._steps.job.scratch._tensors


def test_gradients_are_one_part_where_they_follow_without_a_gap_and_are_of_one_type():
    layout, memory = Layout(tuple(slots_of({"a": torch.empty(4), "b": torch.empty(4)}))), torch.zeros(12)
    behind = {memory[4:8]: 1, memory[6:10]: 2, torch.zeros(12)[4:8]: 2, memory.view(torch.bfloat16)[4:8]: 2}
    for second, parts in behind.items():
        assert len(Gradients.merged(layout, [memory[:4], second]).tensors) == parts
