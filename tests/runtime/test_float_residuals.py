"""Residuals in bfloat16: vectors that groups share, and state on its way to another type and back."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradwire as gw
from gradwire.script import IN_FLIGHT, script, under_way
from tests.support.harness import SMALL, Job, draw, hosts, job, plan_of, slots_of, total

SLOTS = slots_of(SMALL)
SHORT, LONG = gw.Residual(dtype=torch.bfloat16), gw.Residual()


def plan(memory: gw.Memory, compressor: gw.Compressor | None = None, groups: int = 3) -> gw.Plan:
    return plan_of(SLOTS, compressor or gw.TopK(0.05), memory, gw.AllGather(), groups=groups)


@given(rounds=st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_groups_under_way_together_have_other_numbers(rounds: list[int]):
    entries = script(range(len(rounds)), rounds)
    numbers = under_way(entries)
    spans = {group: [at for at, entry in enumerate(entries) if entry.group == group] for group in numbers}
    for a in numbers:
        for b in numbers:
            if a != b and spans[a][0] <= spans[b][-1] and spans[b][0] <= spans[a][-1]:
                assert numbers[a] != numbers[b]
    assert set(numbers.values()) <= set(range(IN_FLIGHT + 1))


def test_a_residual_takes_half_of_the_memory_and_groups_share_vectors():
    slots = slots_of({f"{i}.weight": torch.empty(64, 10 + i) for i in range(16)})
    held = {}
    for memory in (SHORT, LONG):
        with job(plan_of(slots, gw.TopK(0.05), memory, gw.AllGather(), groups=16), slots, 2) as running:
            for step in range(2):
                running.step(draw(slots, 2, step))
            steps = running.runtimes[0]._states._steps
            held[memory] = steps.store.nbytes
            # one collective each: besides the group that is encoded, one is under way
            numels = sorted(slot.numel for slot in slots)
            assert steps.float_residuals.nbytes == (4 * sum(numels[-2:]) if memory == SHORT else 0)
            assert running.runtimes[0].stats().held_bytes >= held[memory] + steps.float_residuals.nbytes
    assert held[LONG] - held[SHORT] >= 4 * sum(slot.numel for slot in slots)


def bits(running: Job) -> list[list[Tensor]]:
    return [[tensor.clone() for tensor in own] for own in running.state("residual")]


def test_a_plan_of_another_type_keeps_the_state():
    with job(plan(LONG), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        before = bits(running)
        # to bfloat16: rounded, once
        running.install(plan(SHORT, groups=2))
        assert same(bits(running), before)  # until the next step begins
        running.step(draw(SLOTS, 2, 1))
        running.install(plan(LONG, gw.EFSignSGD()))
        short = bits(running)
        assert all(torch.equal(tensor, tensor.bfloat16().float()) for own in short for tensor in own)
        # and back: exact; a plan without memory sends it
        running.step(draw(SLOTS, 2, 2))
        before = bits(running)
        assert not all(torch.equal(tensor, tensor.bfloat16().float()) for own in before for tensor in own)


@pytest.mark.parametrize("memory", [SHORT, LONG], ids=str)
def test_what_two_types_keep_adds_up(memory: gw.Memory):
    """Of a plan in one type, one in the other, and one without memory."""
    other = LONG if memory == SHORT else SHORT
    with job(plan(memory), SLOTS, 2) as running:
        given, sent = zeros(), zeros()
        for step, follows in enumerate([other, other, memory, None]):
            grads = draw(SLOTS, 2, step)
            add(given, total(grads), 1 / 2)
            add(sent, running.step(grads)[0])
            if follows is not None:
                running.install(plan(follows, groups=1 + step))
        dense = plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce())
        running.install(dense)
        grads = draw(SLOTS, 2, 9)
        add(given, total(grads), 1 / 2)
        add(sent, running.step(grads)[0])
        for all_given, all_sent in zip(given, sent, strict=True):
            torch.testing.assert_close(all_sent, all_given, rtol=0, atol=0.1)
        assert not any(tensor.any() for own in running.state("residual") for tensor in own)


def test_where_a_group_keeps_float32_all_do():
    names = [slot.name for slot in SLOTS]
    mixed = gw.Plan((
        gw.Group(tuple(names[:3]), gw.TopK(0.05), SHORT, gw.AllGather()),
        gw.Group(tuple(names[3:]), gw.DGC(0.05), gw.DGCMemory(), gw.AllGather()),
    ))  # fmt: skip
    with job(mixed, SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        kept = running.state("residual")[0]
        assert not all(torch.equal(tensor, tensor.bfloat16().float()) for tensor in kept)


def test_a_state_goes_to_another_type_and_back():
    with job(plan(SHORT), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
    assert all(tensor.dtype == torch.float32 for key, tensor in saved[0].items() if key.endswith("//residual"))
    with job(plan(LONG), SLOTS, 2) as other, job(plan(SHORT), SLOTS, 2) as again:
        other.load(saved)
        again.load(other.states())
        for loaded in (other, again):
            assert same(loaded.state("residual"), residuals(saved))


def test_ranks_of_a_host_need_no_vector_unless_they_lead():
    with job(plan(SHORT), SLOTS, 4, transports=hosts(2, 2)) as running:
        running.step(draw(SLOTS, 4, 0))
        vectors = [runtime._states._steps.float_residuals for runtime in running.runtimes]
        for rank in range(4):
            assert [vectors[rank].of(group) is not None for group in range(3)] == [rank % 2 == g % 2 for g in range(3)]


def residuals(states: Sequence[dict[str, Tensor]]) -> list[list[Tensor]]:
    return [[state[f"{slot.name}//residual"] for slot in SLOTS] for state in states]


def same(some: Sequence[Sequence[Tensor]], others: Sequence[Sequence[Tensor]]) -> bool:
    return all(torch.equal(a, b) for own, his in zip(some, others, strict=True) for a, b in zip(own, his, strict=True))


def zeros() -> list[Tensor]:
    return [torch.zeros(slot.shape, dtype=torch.float64) for slot in SLOTS]


def add(sums: list[Tensor], tensors: Sequence[Tensor], weight: float = 1.0) -> None:
    for all_of, tensor in zip(sums, tensors, strict=True):
        all_of.add_(tensor.double(), alpha=weight)
