"""The laws that every algorithm obeys, over all rows of `cases.py`."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import is_dataclass

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.collective import ALIGNED, FLAG_BYTES, Broadcast, Sum
from gradwire.communicators.communicator import SparseCommunicator
from gradwire.compressors import Cast, Codec
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout, Slot
from tests.support.cases import CASES, FEW, Case, rows
from tests.support.harness import SMALL, WIDE, Job, alone, draw, hosts, job, plan_of, slots_of, total
from tests.support.states import same_states

SMALL_SLOTS, WIDE_SLOTS = slots_of(SMALL), slots_of(WIDE)
CONSERVING = [case for case in CASES if case.conserves]
CODECS = list({case.compressor: None for case in CASES if isinstance(case.compressor, Codec)})

FRAME = FLAG_BYTES + ALIGNED - 1
"""The most bytes that a row has beside its payload."""

all_cases = pytest.mark.parametrize("case", CASES, ids=str)
codecs = pytest.mark.parametrize("codec", CODECS, ids=str)


def is_dense(case: Case) -> bool:
    """Whether a group only passes through: what is not finite is then in its own mean, and no flag travels."""
    memoryless = not case.memory.error_feedback
    return memoryless and isinstance(case.compressor, Cast) and isinstance(case.communicator, gw.AllReduce)


def start(case: Case, slots: Sequence[Slot], world: int, groups: int = 2, **options) -> Job:
    return job(
        plan_of(slots, case.compressor, case.memory, case.communicator, groups=groups),
        slots,
        world,
        **options,
    )


def kept(running: Job) -> list[Tensor]:
    return total(running.state("residual"))


def added(case: Case, running: Job, grads: list[list[Tensor]]) -> list[Tensor]:
    """What the memories hold, over all ranks, once they were given `grads`."""
    world = running.world
    memory = case.memory
    residual = running.state("residual")
    if isinstance(memory, gw.DGCMemory):
        velocity = running.state("velocity")
        limit = math.inf if memory.clip is None else memory.clip / math.sqrt(world)
        gained = [
            [
                v * memory.momentum + g * min(1.0, limit / max(float(g.norm()), 1e-30)) / world
                for v, g in zip(vs, gs, strict=True)
            ]
            for vs, gs in zip(velocity, grads, strict=True)
        ]
    else:
        gained = [[grad / world for grad in own] for own in grads]
        decay = memory.decay if isinstance(memory, gw.Residual) else 0.0
        residual = [[r * decay for r in own] for own in residual]
    return [a + b for a, b in zip(total(residual), total(gained), strict=True)]


def conserved(case: Case, running: Job, means: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Means and residuals add up to `before`, but for rounding."""
    residuals = running.state("residual")
    after = [r + m.double() for r, m in zip(total(residuals), means, strict=True)]
    sizes = total([[case.size(r) for r in own] for own in residuals])
    close(after, before, case.rounding, slack=[case.residual_rounding * size for size in sizes])


def close(
    actual: Sequence[Tensor], expected: Sequence[Tensor], relative: float, steps: int = 1, least: float = 1e-3,
    slack: Sequence[Tensor] = (),
) -> None:  # fmt: skip
    """Equal but for a few errors of `relative` times the largest element (or `least`), a step; and of `slack` in each
    element."""
    for a, e, more in zip(actual, expected, slack or [torch.zeros(())] * len(expected), strict=True):
        error = ((a.double() - e.double()).abs() - more).clamp(min=0).max().item()
        limit = 4 * steps * relative * max(least, e.abs().max().item())
        assert error <= limit, f"off by {error:.2e}, where {limit:.2e} may be"


def same_bits(by_rank: Sequence[Sequence[Tensor]]) -> None:
    for other in by_rank[1:]:
        assert all(torch.equal(a, b) for a, b in zip(by_rank[0], other, strict=True))


def test_every_compressor_memory_and_communicator_has_a_row():
    exported = {getattr(gw, name) for name in gw.__all__ if inspect.isclass(getattr(gw, name))}
    rows = {type(part) for case in CASES for part in (case.compressor, case.memory, case.communicator)}
    parts = {
        part
        for part in exported
        if issubclass(part, gw.Compressor | gw.Memory | gw.Communicator) and is_dataclass(part)
    }
    assert parts == rows


def test_of_a_memory_and_a_communicator_every_default_pairing_has_a_row():
    rows = {(type(case.compressor), type(case.memory), type(case.communicator)) for case in CASES}
    for compressor in {type(case.compressor): case.compressor for case in CASES}.values():
        group = gw.plans.uniform(WIDE_SLOTS, compressor).groups[0]
        assert (type(compressor), type(group.memory), type(group.communicator)) in rows


def lawful_step(case: Case, running: Job, grads: list[list[Tensor]]) -> list[Tensor]:
    """The means of a step, equal and finite on all ranks; what they lack is kept."""
    before = added(case, running, grads)
    means = running.step(grads)
    same_bits(means)
    assert all(mean.isfinite().all() for mean in means[0])
    assert all(mean.shape == slot.shape for mean, slot in zip(means[0], running.slots, strict=True))
    if case.conserves:
        conserved(case, running, means[0], before)
    return means[0]


@all_cases
def test_replicas_are_identical_and_keep_what_is_not_sent(case: Case):
    drawn = torch.get_rng_state()
    with start(case, SMALL_SLOTS, 3, groups=3) as running:
        for step in range(6):
            lawful_step(case, running, draw(SMALL_SLOTS, 3, step))
    # dropout and samplers draw from it
    assert torch.equal(torch.get_rng_state(), drawn)


@rows(CONSERVING)
def test_all_elements_travel_in_time(case: Case):
    """Of a gradient that stays the same, and none of whose elements is small."""
    generator = torch.Generator().manual_seed(0)
    grads = [
        [g.sign() * (1 + torch.rand(g.shape, generator=generator)) for g in own] for own in draw(SMALL_SLOTS, 2, 0)
    ]
    sent = [torch.zeros_like(g, dtype=torch.bool) for g in grads[0]]
    steps = 0
    with start(case, SMALL_SLOTS, 2) as running:
        while torch.cat([each.flatten() for each in sent]).float().mean() <= 0.7:
            assert (steps := steps + 1) <= 100
            for travelled, mean in zip(sent, running.step(grads)[0], strict=True):
                travelled |= mean != 0


@codecs
@pytest.mark.parametrize("n", [1, 7, 8, 1000, 70_001])
def test_a_codec_takes_out_what_its_payload_stands_for(codec: Codec, n: int):
    if isinstance(codec, gw.SignSGD):
        pytest.skip("votes, and keeps no memory")
    if not codec.biased and codec.sparse:
        pytest.skip("rescales, and keeps no memory")
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    context = alone(n, codec)
    before, payload = x.clone(), torch.zeros(codec.payload_bytes(n), dtype=torch.uint8)
    codec.encode(LazySum.of(x), payload[None], context.whole)
    decoded = torch.empty(n)
    codec.decode(payload[None, None], Mean.of(decoded), context.whole)
    close([x + decoded], [before], 1e-6)


@codecs
def test_decode_adds_up_its_rows(codec: Codec):
    n, world = 70_001, 3
    context = alone(n, codec)
    aligned = -(-codec.payload_bytes(n) // 4) * 4
    rows = torch.zeros(world, aligned, dtype=torch.uint8)[:, : codec.payload_bytes(n)]
    for row, x in zip(rows, torch.randn(world, n, generator=torch.Generator().manual_seed(1)), strict=True):
        codec.encode(LazySum.of(x), row[None], context.whole)
    single = torch.zeros(world, n)
    for row, out in zip(rows, single, strict=True):
        codec.decode(row[None, None], Mean.of(out), context.whole)
    out = torch.full((n,), torch.nan)
    codec.decode(rows[None], Mean.of(out), context.whole)
    expected = single.sum(0).sign() if isinstance(codec, gw.SignSGD) else single.sum(0)
    close([out], [expected], 1e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case.exact], ids=str)
def test_the_exact_ones_give_the_mean(case: Case):
    with start(case, SMALL_SLOTS, 3) as running:
        grads = draw(SMALL_SLOTS, 3, 0)
        close(running.step(grads)[0], [s / 3 for s in total(grads)], case.rounding)


@pytest.mark.parametrize(
    ("case", "world"), [(case, world) for case in CASES for world in (3, 2) if world == 3 or case in FEW], ids=str
)
def test_declared_bytes_are_sent_bytes(case: Case, world: int):
    if isinstance(case.compressor, gw.MultiLevel):
        pytest.skip("sends one of three sizes; see test_multi_level.py")
    with start(case, WIDE_SLOTS, world, groups=1) as running:
        transport = running.transports[0]
        handed = len(transport.started)
        running.step(draw(WIDE_SLOTS, world, 0))
        ops = transport.started[handed:]
        numel = sum(slot.numel for slot in WIDE_SLOTS)
        assert running.runtimes[0].stats().wire_bytes == sum(op.wire_bytes(world) for op in ops)
        layout = Layout(tuple(WIDE_SLOTS))
        wire = case.communicator.wire(case.compressor, layout, world)
        if not isinstance(case.communicator, gw.GlobalTopK | gw.LeaderIndices):  # trees: the busiest rank counts
            assert abs(wire.wire_bytes - running.runtimes[0].stats().wire_bytes) <= 2 * FLAG_BYTES
        if isinstance(case.communicator, SparseCommunicator):
            assert len(ops) == case.communicator.rounds(case.compressor, world)
            return
        if isinstance(case.compressor, gw.compressors.LowRank):
            assert len(ops) == case.communicator.rounds(case.compressor, world)
            if not isinstance(case.communicator, gw.ScatterReduce):
                declared = case.compressor.group_bytes(layout, step=0)
                assert declared <= sum(op.send.whole.nbytes for op in ops) <= declared + FRAME * len(ops)
            return
        assert isinstance(case.compressor, Codec)
        payload = case.compressor.group_bytes(layout, step=0)
        slack = 4 * -(-numel // 65_536) + 16  # counts of the sparse, whole numbers of scales
        assert 8 * payload <= case.bits * numel + 8 * slack * world
        sizes = [op.send.whole.nbytes for op in ops]
        if isinstance(case.communicator, gw.ScatterReduce):
            parts = case.compressor.payload_bytes(-(-numel // world) + 4096)
            assert sizes[0] == world * sizes[1] <= world * (parts + FRAME)
        else:
            assert len(sizes) == 1
            assert payload <= sizes[0] <= payload + FRAME


REGROUPED = [SMALL_SLOTS[3:] + SMALL_SLOTS[:3], SMALL_SLOTS[::-1]]


@rows(CONSERVING)
def test_memories_survive_a_new_grouping(case: Case):
    with start(case, SMALL_SLOTS, 2) as running:
        running.step(draw(SMALL_SLOTS, 2, 0))
        for groups, order in enumerate(REGROUPED, 1):
            before = running.states()
            plan = plan_of(order, case.compressor, case.memory, case.communicator, groups=groups)
            running.install(plan)
            running.step(draw(SMALL_SLOTS, 2, 0, scale=math.inf))  # no rank takes it: state moves, and that is all
            for old, new in zip(before, running.states(), strict=True):
                assert old.keys() == new.keys()
                assert all(torch.equal(old[key], new[key]) for key in old if "//" in key)  # the rest names the plan
            expected = added(case, running, grads := draw(SMALL_SLOTS, 2, groups))
            means = running.step(grads)
            conserved(case, running, means[0], expected)


@rows(CONSERVING)
def test_a_plan_without_memory_sends_what_the_old_one_kept(case: Case):
    with start(case, SMALL_SLOTS, 3) as running:
        running.step(draw(SMALL_SLOTS, 3, 0))
        before = kept(running)
        running.install(plan_of(SMALL_SLOTS[::-1], gw.FP32(), gw.NoMemory(), gw.AllReduce(), groups=3))
        close(kept(running), before, 1e-6)
        grads = draw(SMALL_SLOTS, 3, 1)
        means = running.step(grads)
        close(means[0], [s / 3 + o for s, o in zip(total(grads), before, strict=True)], 2e-6)
        assert all(not residual.any() for residual in kept(running))


@pytest.mark.parametrize("case", [case for case in CASES if case.unbiased], ids=str)
def test_the_unbiased_ones_are(case: Case):
    """The mean of many runs of the same gradient lies within 6.5 standard errors of it, in every element."""
    slots, world, runs = slots_of({"w": torch.empty(7, 31)}), 2, 250
    grads = draw(slots, world, 5)
    with start(case, slots, world) as running:
        means = torch.stack([running.step(grads)[0][0] for _ in range(runs)]).double()
    error = means.mean(0) - total(grads)[0] / world
    deviation = means.std(0).clamp_min(1e-6) / math.sqrt(runs)
    assert (error / deviation).abs().max() < 6.5
    assert abs((error / deviation).sum() / math.sqrt(error.numel())) < 5.5, "a small bias in all elements"


@rows(CASES)
def test_steps_that_count_for_no_rank_leave_no_trace(case: Case):
    """Bit for bit: what is not finite, not on the rank that overflows, and not on the others, whatever is finite and
    huge there; and what the user skips, before all but the first of the steps that follow."""
    bads = [math.nan, -math.inf, 1e38]
    if is_dense(case) or (isinstance(case.memory, gw.DGCMemory) and case.memory.clip):
        bads.remove(1e38)  # its mean is finite, as in DDP, or it is clipped to what is finite
    world = 2
    later: list[list[Tensor]] = []
    for poisoned in (True, False):
        with start(case, SMALL_SLOTS, world, groups=2) as running:
            running.step(draw(SMALL_SLOTS, world, 0))
            before = running.states()
            for bad in bads if poisoned else ():
                grads = draw(SMALL_SLOTS, world, 1, scale=1e30)
                for group in (0, 1):
                    grads[1][group].fill_(bad)
                spoilt = running.step(grads)
                assert not any(own[group].isfinite().any() for own in spoilt for group in (0, 1))
                same_states(before, running.states())
            for step in (2, 3, 4):
                if poisoned and step > 2:  # the first one follows what is not finite
                    running.step(draw(SMALL_SLOTS, world, 10 * step, scale=1e4))
                    running.skip()
                    same_states(before, running.states())
                later.append(running.step(draw(SMALL_SLOTS, world, step))[0])
                before = running.states()
    for poisoned_means, means in zip(later[:3], later[3:], strict=True):
        same_bits([poisoned_means, means])


@rows(CASES)
def test_after_a_huge_step_that_is_finite_a_normal_one_is_lawful(case: Case):
    """Squares of such numbers are none in float32; and above 2^96 a number counts as infinite."""
    if isinstance(case.memory, gw.DGCMemory) and case.memory.clip:
        pytest.skip("is clipped, by a norm that float32 does not hold")
    if isinstance(case.compressor, gw.FP16) and not case.memory.error_feedback:
        pytest.skip("beyond half precision's range, as in DDP")
    with start(case, SMALL_SLOTS, 2) as running:
        for step, size in enumerate([1.0, 1e20, 1.0, 1e30, 1.0, 1.0]):
            grads = draw(SMALL_SLOTS, 2, step, scale=size)
            before = added(case, running, grads)
            means = running.step(grads)
            finite = all(mean.isfinite().all() for mean in means[0])
            assert finite or size == 1e30
            assert all(t.isfinite().all() for state in running.states() for key, t in state.items() if "//" in key)
            if finite:
                same_bits(means)
            if finite and case.conserves:
                conserved(case, running, means[0], before)


@rows(CASES)
def test_unused_parameters_keep_their_memory(case: Case):
    unused_on_one, unused_everywhere, world = 3, 6, 2
    with start(case, SMALL_SLOTS, world, find_unused=True) as running:
        running.step(draw(SMALL_SLOTS, world, 0))
        before, states = kept(running), running.states()
        grads: list[list[Tensor | None]] = [list(own) for own in draw(SMALL_SLOTS, world, 1)]
        grads[1][unused_on_one] = None
        grads[0][unused_everywhere] = grads[1][unused_everywhere] = None
        means = running.step(grads)
        same_bits(means)
        name = SMALL_SLOTS[unused_everywhere].name
        for old, new in zip(states, running.states(), strict=True):
            for key in old:
                if key.startswith(name) and "//shared/" not in key and "//group/" not in key:
                    assert torch.equal(old[key], new[key])
        assert [running.runtimes[0].used(slot) for slot in range(len(SMALL_SLOTS))] == [
            slot != unused_everywhere for slot in range(len(SMALL_SLOTS))
        ]
        if case.conserves and case.memory == gw.Residual():
            after = kept(running)[unused_on_one] + means[0][unused_on_one]
            grad = grads[0][unused_on_one]
            assert grad is not None
            close([after], [before[unused_on_one] + grad / world], case.rounding)
        assert all(mean.isfinite().all() for mean in running.step(draw(SMALL_SLOTS, world, 2))[0])


def outcome(case: Case, seed: int) -> list[Tensor]:
    with start(case, WIDE_SLOTS, 2, seed=seed) as running:
        return [lawful_step(case, running, draw(WIDE_SLOTS, 2, step)) for step in range(3)][-1]


@rows(CASES)
def test_wide_groups_are_lawful_and_the_same_seed_gives_the_same_bits(case: Case):
    same_bits([outcome(case, 3), outcome(case, 3)])


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.unbiased or isinstance(case.compressor, gw.RandomK)], ids=str
)
def test_another_seed_gives_other_noise(case: Case):
    assert not torch.equal(outcome(case, 3)[0], outcome(case, 4)[0])


@pytest.mark.parametrize("compressor", [gw.QSGD(), gw.TernGrad()], ids=str)
def test_ranks_and_steps_have_noise_of_their_own(compressor: Codec):
    n = 1000
    x, decoded = torch.rand(n, generator=torch.Generator().manual_seed(0)), []
    for rank, step in [(0, 0), (1, 0), (0, 1)]:
        context = alone(n, compressor, rank=rank, world=2, step=step)
        payload, out = torch.zeros(compressor.payload_bytes(n), dtype=torch.uint8), torch.empty(n)
        compressor.encode(LazySum.of(x.clone()), payload[None], context.whole)
        compressor.decode(payload[None, None], Mean.of(out), context.whole)
        decoded.append(out)
    assert not any(torch.equal(a, b) for i, a in enumerate(decoded) for b in decoded[:i])


@rows(CASES)
def test_hosts_send_what_single_ranks_would(case: Case):
    """Where a host's ranks agree, two hosts of two are as two ranks: the same bits, and bytes."""
    with start(case, SMALL_SLOTS, 4, transports=hosts(2, 2)) as running, start(case, SMALL_SLOTS, 2) as flat:
        for step in range(3):
            first, second = draw(SMALL_SLOTS, 2, step)
            means = running.step([first, first, second, second])
            same_bits(means)
            same_bits([means[0], flat.step([first, second])[0]])
        sent = [runtime.stats().wire_bytes for runtime in running.runtimes]
        flags = 3 * len(flat.runtimes[0].plan.groups) * case.compressor.wire_dtype.itemsize if is_dense(case) else 0
        assert [sum(sent[:2]), sum(sent[2:])] == [runtime.stats().wire_bytes + flags for runtime in flat.runtimes]
        for mesh in running.transports:
            assert all(isinstance(op, Sum | Broadcast) for op in mesh.host.started)


@rows(CONSERVING)
def test_hosts_keep_what_they_do_not_send(case: Case):
    if isinstance(case.memory, gw.DGCMemory) and case.memory.clip:
        pytest.skip("clips what a host's ranks have together")
    with start(case, SMALL_SLOTS, 4, transports=hosts(2, 2)) as running:
        for step in range(3):
            lawful_step(case, running, draw(SMALL_SLOTS, 4, step))


def test_ranks_of_hosts_lead_groups_in_turn():
    case = Case(gw.TopK(0.05), gw.Residual(), gw.AllGather(), 0)
    with start(case, SMALL_SLOTS, 4, transports=hosts(2, 2)) as running:
        running.step(draw(SMALL_SLOTS, 4, 0))
        groups = [group.slots for group in running.runtimes[0].plan.groups]
        # memories lie with the rank that leads
        for rank, own in enumerate(running.state("residual")):
            kept_by = {slot.name for slot, residual in zip(SMALL_SLOTS, own, strict=True) if residual.any()}
            assert [not kept_by.isdisjoint(group) for group in groups] == [rank % 2 == 0, rank % 2 == 1]


def test_hosts_keep_their_memory_when_another_rank_takes_a_group_over():
    with start(
        Case(gw.TopK(0.05), gw.Residual(), gw.AllGather(), 0), SMALL_SLOTS, 4, transports=hosts(2, 2)
    ) as running:
        # two steps, so that both halves of a memory have been written
        for step in range(2):
            running.step(draw(SMALL_SLOTS, 4, step))
        before = kept(running)
        names = [group.slots for group in running.runtimes[0].plan.groups]
        groups = [gw.Group(part, gw.TopK(0.05), gw.Residual(), gw.AllGather()) for part in names[::-1]]
        running.install(gw.Plan(tuple(groups)))
        close(kept(running), before, 1e-6)
        poisoned = draw(SMALL_SLOTS, 4, 2)
        for grad in poisoned[0]:
            grad.fill_(torch.nan)
        running.step(poisoned)
        close(kept(running), before, 1e-6, least=1.0)
        grads = draw(SMALL_SLOTS, 4, 3)
        means = running.step(grads)
        expected = [o + s / 4 for o, s in zip(before, total(grads), strict=True)]
        close([r + m for r, m in zip(kept(running), means[0], strict=True)], expected, 2e-6)


@pytest.mark.parametrize("groups", [1, 2])
def test_hosts_send_a_residual_once_where_a_plan_comes_back(groups: int):
    """A plan without memory, by which another rank leads, sends what its leader before has kept."""
    case, dense = Case(gw.TopK(0.05), gw.Residual(), gw.AllGather(), 0), (gw.FP32(), gw.NoMemory(), gw.AllReduce())
    with start(case, SMALL_SLOTS, 4, transports=hosts(2, 2)) as running:
        first = running.runtimes[0].plan
        names = [group.slots for group in first.groups[::-1]]
        parts = names if groups == 2 else [tuple(slot.name for slot in SMALL_SLOTS)]
        second = gw.Plan(tuple(gw.Group(part, *dense) for part in parts))
        given, sent = total(zeros(SMALL_SLOTS, 1)), total(zeros(SMALL_SLOTS, 1))
        for step, plan in enumerate((first, first, second, first, second, first)):
            running.install(plan)
            grads = draw(SMALL_SLOTS, 4, step)
            means = running.step(grads)[0]
            given = [before + grad / 4 for before, grad in zip(given, total(grads), strict=True)]
            sent = [before + mean for before, mean in zip(sent, means, strict=True)]
            close([s + r for s, r in zip(sent, kept(running), strict=True)], given, 2e-6)


def taken_over(case: Case, running: Job, flat: Job) -> None:
    """Two hosts go on as two ranks do."""
    still = zeros(SMALL_SLOTS, 2)
    spoilt = [[grad + torch.nan for grad in own] for own in still]
    for first, second in (spoilt, still, draw(SMALL_SLOTS, 2, 1)):
        for again in (True, False):
            means = running.step([first, first, second, second])
            expected = flat.step([first, second])
            if first is not spoilt[0]:
                assert all(torch.equal(a, b) for a, b in zip(means[0], expected[0], strict=True))
                for kind in (*case.memory.flat_state, *case.compressor.flat_state):
                    for a, b in zip(total(running.state(kind)), total(flat.state(kind)), strict=True):
                        assert torch.equal(a, b)
            if again:
                running.skip()
                flat.skip()


def moves_whole(case: Case) -> bool:
    """Has velocity or momentum, or a residual that is no plain sum, and no thresholds, which stay where they are."""
    kinds = {*case.memory.flat_state, *case.compressor.flat_state}
    own = case.compressor.init_group() | case.communicator.init_group()
    return bool(kinds) and (kinds != {"residual"} or case.memory != gw.Residual()) and not own


@rows([case for case in CASES if moves_whole(case)])
def test_state_goes_to_the_rank_that_takes_a_group_over(case: Case):
    """By a new plan, and by a checkpoint that was saved under the old one."""
    with start(case, SMALL_SLOTS, 4, transports=hosts(2, 2)) as running, start(case, SMALL_SLOTS, 2) as flat:
        first, second = draw(SMALL_SLOTS, 2, 0)
        running.step([first, first, second, second])
        flat.step([first, second])
        new = gw.Plan(flat.runtimes[0].plan.groups[::-1])
        with (
            job(new, SMALL_SLOTS, 4, transports=hosts(2, 2)) as resumed,
            job(new, SMALL_SLOTS, 2) as resumed_flat,
        ):
            resumed.load(running.states())
            resumed_flat.load(flat.states())
            taken_over(case, resumed, resumed_flat)
        running.install(new)
        flat.install(new)
        taken_over(case, running, flat)


class Longer(gw.TopK):
    """A user's codec that counts its payload otherwise, once it has `grown`."""

    grown = 0

    def payload_bytes(self, n: int) -> int:
        return super().payload_bytes(n) + Longer.grown


def test_hosts_refuse_a_payload_of_another_size_as_well(monkeypatch: pytest.MonkeyPatch):
    case = Case(Longer(0.05), gw.Residual(), gw.AllGather(), 0)
    with start(case, SMALL_SLOTS, 4, transports=hosts(2, 2)) as running:
        running.step(draw(SMALL_SLOTS, 4, 0))
        monkeypatch.setattr(Longer, "grown", 64)
        with pytest.raises(gw.ReductionError, match=r"its payload has .* have payload_bytes"):
            running.step(draw(SMALL_SLOTS, 4, 1))


def zeros(slots: Sequence[Slot], world: int) -> list[list[Tensor]]:
    return [[slot.view(torch.zeros(slot.numel)) for slot in slots] for _ in range(world)]


def constant(slots: Sequence[Slot], world: int) -> list[list[Tensor]]:
    return [[grad + 0.25 for grad in own] for own in zeros(slots, world)]


def mostly_zero(slots: Sequence[Slot], world: int) -> list[list[Tensor]]:
    return [[grad * (grad > 2.5) for grad in own] for own in draw(slots, world, 0)]


def tiny(slots: Sequence[Slot], world: int) -> list[list[Tensor]]:
    return draw(slots, world, 0, scale=1e-38)


def huge(slots: Sequence[Slot], world: int) -> list[list[Tensor]]:
    return draw(slots, world, 0, scale=1e15)


@rows(CASES)
def test_degenerate_gradients(case: Case):
    """In the order of their size, so that each is as large as what is kept of those before it."""
    gradients = [zeros, tiny, constant, mostly_zero, huge]
    if case.bits == 16 and case.compressor != gw.BF16():
        gradients.remove(huge)  # beyond half precision's range
    with start(case, SMALL_SLOTS, 2) as running:
        for make in gradients:
            for _ in range(3):
                lawful_step(case, running, make(SMALL_SLOTS, 2))


@rows(CASES)
def test_a_single_element(case: Case):
    slots = slots_of({"only": torch.empty(1)})
    with start(case, slots, 3) as running:
        for step in range(3):
            lawful_step(case, running, draw(slots, 3, step))
