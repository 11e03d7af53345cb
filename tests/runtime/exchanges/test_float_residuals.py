"""Residuals in bfloat16 and in 8 bits: vectors that groups share, and state on its way to another type and back."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradwire as gw
from gradwire.ops.gradients import Gradients
from gradwire.ops.noise import Seed
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.state.state_buffers import StateBuffers
from gradwire.script import IN_FLIGHT, script, under_way
from tests.support.harness import CPU, SMALL, Job, draw, hosts, job, plan_of, slots_of, total

SLOTS = slots_of(SMALL)
SHORT, LONG, EIGHT = gw.Residual(dtype=torch.bfloat16), gw.Residual(), gw.Residual(dtype=torch.int8)
narrow = pytest.mark.parametrize("narrow", [SHORT, EIGHT], ids=str)


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


def test_a_residual_takes_half_of_the_memory_or_a_quarter_and_groups_share_vectors():
    slots = slots_of({f"{i}.weight": torch.empty(64, 10 + i) for i in range(16)})
    held = {}
    for memory in (SHORT, LONG, EIGHT):
        with job(plan_of(slots, gw.TopK(0.05), memory, gw.AllGather(), groups=16), slots, 2) as running:
            for step in range(2):
                running.step(draw(slots, 2, step))
            steps = running.runtimes[0]._states._steps
            held[memory] = steps.store.nbytes
            # one collective each: besides the group that is encoded, one is under way
            numels = sorted(slot.numel for slot in slots)
            assert steps.float_residuals.nbytes == (0 if memory == LONG else 4 * sum(numels[-2:]))
            assert running.runtimes[0].stats().held_bytes >= held[memory] + steps.float_residuals.nbytes
    numel = sum(slot.numel for slot in slots)
    assert held[LONG] - held[SHORT] >= 4 * numel
    # two halves of a byte an element, 2 for each 128 of them, and gaps
    assert held[LONG] - held[EIGHT] >= (8 - 2 * (1 + 2 / 128)) * numel - 16 * 128


def bits(running: Job) -> list[list[Tensor]]:
    return [[tensor.clone() for tensor in own] for own in running.state("residual")]


@narrow
def test_a_plan_of_another_type_keeps_the_state(narrow: gw.Memory):
    with job(plan(LONG), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        before = bits(running)
        # to the narrow type: rounded, once
        running.install(plan(narrow, groups=2))
        assert same(bits(running), before)  # until the next step begins
        running.step(draw(SLOTS, 2, 1))
        running.install(plan(LONG, gw.EFSignSGD()))
        short = bits(running)
        assert all(fits(narrow, tensor) for own in short for tensor in own)
        # and back: exact; a plan without memory sends it
        running.step(draw(SLOTS, 2, 2))
        before = bits(running)
        assert not all(fits(narrow, tensor) for own in before for tensor in own)


@pytest.mark.parametrize(("memory", "other"), [*permutations([SHORT, LONG, EIGHT], 2)], ids=str)
def test_what_two_types_keep_adds_up(memory: gw.Memory, other: gw.Memory):
    """Of a plan in one type, one in the other, and one without memory."""
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


@narrow
def test_where_a_group_keeps_float32_all_do(narrow: gw.Memory):
    names = [slot.name for slot in SLOTS]
    mixed = gw.Plan((
        gw.Group(tuple(names[:3]), gw.TopK(0.05), narrow, gw.AllGather()),
        gw.Group(tuple(names[3:]), gw.DGC(0.05), gw.DGCMemory(), gw.AllGather()),
    ))  # fmt: skip
    with job(mixed, SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        kept = running.state("residual")[0]
        assert not all(fits(narrow, tensor) for tensor in kept)


@narrow
def test_a_state_goes_to_another_type_and_back(narrow: gw.Memory):
    with job(plan(narrow), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
    assert all(tensor.dtype == torch.float32 for key, tensor in saved[0].items() if key.endswith("//residual"))
    with job(plan(LONG), SLOTS, 2) as other, job(plan(narrow), SLOTS, 2) as again:
        other.load(saved)
        again.load(other.states())
        for loaded in (other, again):
            assert same(loaded.state("residual"), residuals(saved))


@narrow
@pytest.mark.parametrize("compressor", [gw.TopK(0.05), gw.FP32()], ids=str)
def test_slots_without_a_gradient_keep_their_residual_bit_for_bit(narrow: gw.Memory, compressor: gw.Compressor):
    with job(plan(narrow), SLOTS, 2, find_unused=True) as running:
        running.step(draw(SLOTS, 2, 0))
        before = bits(running)
        # with a memory or, dense, with what that has left
        memory = narrow if compressor != gw.FP32() else gw.NoMemory()
        running.install(plan_of(SLOTS, compressor, memory, gw.AllGather(), groups=3))
        grads = [[None if i % 2 else grad for i, grad in enumerate(own)] for own in draw(SLOTS, 2, 1)]
        running.step(grads)
        for own, his in zip(bits(running), before, strict=True):
            for i, (new, old) in enumerate(zip(own, his, strict=True)):
                assert torch.equal(new, old) == bool(i % 2), SLOTS[i].name


@narrow
def test_a_residual_goes_to_the_rank_of_its_host_that_leads_now(narrow: gw.Memory):
    with job(plan(narrow, groups=2), SLOTS, 4, transports=hosts(2, 2), find_unused=True) as running:
        given, sent = zeros(), zeros()
        plans = plan(narrow, groups=2).groups
        for step in range(3):
            grads = draw(SLOTS, 4, step)
            # another rank leads each group, and one slot has no gradient on any rank
            if step == 1:
                running.install(gw.Plan(plans[::-1]))
                grads, before = [[None, *own[1:]] for own in grads], bits(running)
            means = running.step(grads)[0]
            if step == 1:
                now = bits(running)
                for host in (slice(0, 2), slice(2, 4)):
                    assert torch.equal(total(now[host])[0], total(before[host])[0])
                grads, means[0] = [[torch.zeros_like(means[0]), *own[1:]] for own in grads], torch.zeros_like(means[0])
            add(given, total(grads), 1 / 4)
            add(sent, means)
        for all_given, all_sent, kept in zip(given, sent, total(bits(running)), strict=True):
            torch.testing.assert_close(all_sent + kept, all_given, rtol=0, atol=0.05)


WAYS = {
    "residual": (gw.TopK(0.05), LONG), "short": (gw.TopK(0.05), SHORT), "eight": (gw.TopK(0.05), EIGHT),
    "velocity": (gw.DGC(0.05), gw.DGCMemory()), "momentum": (gw.Signum(), gw.NoMemory()),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_rank_that_leads_and_never_uses_a_slot_sends_what_others_of_its_host_gave(way: tuple[gw.Compressor, Any]):
    """As if it had given zeros."""
    compressor, memory = way
    unused = gw.Plan((gw.Group(tuple(slot.name for slot in SLOTS), compressor, memory, gw.AllGather()),))
    with (
        job(unused, SLOTS, 4, transports=hosts(2, 2), find_unused=True) as running,
        job(unused, SLOTS, 4, transports=hosts(2, 2), find_unused=True) as same_numbers,
    ):
        for step in range(4):
            absent, zeroed = draw(SLOTS, 4, step), draw(SLOTS, 4, step)
            # local rank 0 leads the group, and lacks a gradient for every other slot
            for rank, slot in ((rank, slot) for rank in (0, 2) for slot in range(0, len(SLOTS), 2)):
                absent[rank][slot], zeroed[rank][slot] = None, torch.zeros_like(zeroed[rank][slot])
            assert same(running.step(absent), same_numbers.step(zeroed))
            for kind in (*memory.flat_state, *compressor.flat_state):
                assert same(running.state(kind), same_numbers.state(kind))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_slot_that_no_rank_of_any_host_uses_keeps_its_state_where_a_rank_leads(way: tuple[gw.Compressor, Any]):
    compressor, memory = way
    unused = gw.Plan((gw.Group(tuple(slot.name for slot in SLOTS), compressor, memory, gw.AllGather()),))
    with job(unused, SLOTS, 4, transports=hosts(2, 2), find_unused=True) as running:
        running.step(draw(SLOTS, 4, 0))
        kinds = (*memory.flat_state, *compressor.flat_state)
        before = {kind: running.state(kind) for kind in kinds}
        assert any(own[3].any() for kept in before.values() for own in kept)
        means = running.step([[*own[:3], None, *own[4:]] for own in draw(SLOTS, 4, 1)])
        for kind in kinds:
            for own, kept in zip(running.state(kind), before[kind], strict=True):
                assert torch.equal(own[3], kept[3]), kind
        # nothing of it is in a mean: the optimizer would take it again at every such step
        assert not any(own[3].any() for own in means)


def test_ranks_of_a_host_need_no_vector_unless_they_lead():
    with job(plan(SHORT), SLOTS, 4, transports=hosts(2, 2)) as running:
        running.step(draw(SLOTS, 4, 0))
        vectors = [runtime._states._steps.float_residuals for runtime in running.runtimes]
        for rank in range(4):
            assert [vectors[rank].of(group) is not None for group in range(3)] == [rank % 2 == g % 2 for g in range(3)]


def fits(memory: gw.Memory, tensor: Tensor) -> bool:
    """Whether a slot's residual is what a memory's type holds."""
    (slot,) = slots_of({"x": tensor})
    buffers = StateBuffers([slot], CPU)
    buffers.hold([0])
    buffers.need("residual", memory.residual_dtype)
    buffers.write("residual", 0, tensor)
    return torch.equal(buffers.read("residual", 0).float(), tensor)


def residuals(states: Sequence[dict[str, Tensor]]) -> list[list[Tensor]]:
    return [[state[f"{slot.name}//residual"] for slot in SLOTS] for state in states]


def same(some: Sequence[Sequence[Tensor]], others: Sequence[Sequence[Tensor]]) -> bool:
    return all(torch.equal(a, b) for own, his in zip(some, others, strict=True) for a, b in zip(own, his, strict=True))


def zeros() -> list[Tensor]:
    return [torch.zeros(slot.shape, dtype=torch.float64) for slot in SLOTS]


def add(sums: list[Tensor], tensors: Sequence[Tensor], weight: float = 1.0) -> None:
    for all_of, tensor in zip(sums, tensors, strict=True):
        all_of.add_(tensor.double(), alpha=weight)


@narrow
def test_what_is_added_to_an_absent_slot_s_residual_is_right_on_average(narrow: gw.Memory):
    slots = slots_of({"weight": torch.empty(128, 128), "bias": torch.empty(128)})
    with job(plan_of(slots, gw.TopK(0.05), narrow, gw.AllGather()), slots, 2, find_unused=True) as running:
        running.step(draw(slots, 2, 0))
        exchange = running.runtimes[0]._steps.exchanges[0]
        part, scratch = exchange.stored.parts["residual"], exchange.context.scratch
        read, written = exchange.context.flat["residual"]
        # less than half a step of either type remains of the others' sums
        for half, number in ((read, 1.0), (written, 0.003)):
            part.keep(torch.full((exchange.stored.layout.numel,), number), half, Seed(0))
        exchange.input = GroupInput(Gradients.of_vector(exchange.stored.layout, torch.zeros(0)), absent=[0])
        exchange.keep_absent(torch.ones(len(slots)))
        kept = exchange.stored.layout.parts(part.numbers_of(written, scratch).float())[0]
        assert 1.002 < kept.mean() < 1.004
        assert kept.max() < 1.02
