"""The runtime: one sequence of collectives whatever the timing, and errors that reach all ranks."""

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.collective import Collective
from gradwire.compressors import Cast, GroupContext, Parts
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.plans import uniform
from gradwire.runtime.failures.job_errors import ReductionError
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.plan.active_plan import ActivePlan
from gradwire.runtime.runtime import Runtime
from gradwire.transports import Pending
from tests.support.cases import CASES, Case
from tests.support.harness import CPU, SMALL, Job, draw, hand_over, hosts, job, plan_of, raising, slots_of, together
from tests.support.kernel_cases import needs_library

SLOTS = slots_of(SMALL)
MANY = slots_of({f"layer{i}.weight": torch.empty(5 + i, 4) for i in range(11)})


def test_a_rank_without_room_for_its_state_tells_the_others(monkeypatch: pytest.MonkeyPatch):
    lays_out = ActivePlan.work_with

    def work_with(active: ActivePlan, steps: Any) -> None:
        if steps.pipeline.mesh.rank == 1:
            raise torch.OutOfMemoryError("no room")
        lays_out(active, steps)

    monkeypatch.setattr(ActivePlan, "work_with", work_with)
    transports, plan = gw.Threads.group(2), plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())

    def attaches(rank: int) -> None:
        runtime = Runtime(lambda: plan, SLOTS, gw.Mesh.of(transports[rank]), CPU, JobOptions())
        runtime.open_step()
        hand_over(runtime, draw(SLOTS, 2, 0)[rank])
        runtime.finish()

    errors = together(2, attaches)
    assert isinstance(errors[1], torch.OutOfMemoryError)
    assert "no room" in str(errors[0])


def sequence(transport: gw.Threads) -> list[tuple]:
    return [(type(op).__name__, tuple(op.receive.whole.shape), op.receive.whole.dtype) for op in transport.started]


def delayed(
    plan: gw.Plan, slots: list, world: int, seed: int, steps: int = 2
) -> tuple[list[list[tuple]], list[Tensor]]:
    """Each rank submits its slots in an order and with pauses of its own; the sequences and last means."""
    transports = gw.Threads.group(world)
    grads = [draw(slots, world, step) for step in range(steps)]

    def work(rank: int) -> list[Tensor]:
        chance = random.Random(seed * world + rank)
        runtime = Runtime(lambda: plan, slots, gw.Mesh.of(transports[rank]), CPU, JobOptions())
        for step in range(steps):
            runtime.open_step()
            for slot in chance.sample(range(len(slots)), len(slots)):
                if chance.random() < 0.4:
                    time.sleep(chance.random() * 0.004)
                runtime.submit(slot, grads[step][rank][slot])
            runtime.finish()
        runtime.close()
        return grads[-1][rank]

    means = raising(together(world, work))
    for other in means[1:]:
        assert all(torch.equal(a, b) for a, b in zip(means[0], other, strict=True))
    return [sequence(transport) for transport in transports], means[0]


@pytest.mark.parametrize(
    ("compressor", "memory", "communicator"),
    [
        (gw.TopK(0.1), gw.Residual(), gw.AllGather()),
        (gw.EFSignSGD(), gw.Residual(), gw.ScatterReduce()),
        (gw.PowerSGD(2), gw.Residual(), gw.AllReduce()),
        (gw.FP32(), gw.NoMemory(), gw.AllReduce()),
    ],
    ids=str,
)
def test_delays_do_not_change_the_sequence_of_collectives(compressor, memory, communicator):
    plan = plan_of(MANY, compressor, memory, communicator, groups=7)
    runs = [delayed(plan, MANY, 3, seed) for seed in range(3)]
    sequences = [ranks for run, _ in runs for ranks in run]
    assert all(ranks == sequences[0] for ranks in sequences)
    for _, means in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0][1], means, strict=True))


WITH_KERNELS = pytest.mark.parametrize(
    "compressor", [gw.TopK(0.1), gw.QSGD(), gw.Quantized(4), gw.EFSignSGD(), gw.OneBit()], ids=str
)


@needs_library
@WITH_KERNELS
def test_means_are_decoded_to_where_gradients_lie(compressor, monkeypatch: pytest.MonkeyPatch):
    slots = slots_of({name: torch.empty(3, 20_001) for name in ("first.weight", "second.weight")})
    monkeypatch.setattr(Mean, "vector", lambda mean: pytest.fail("there is a copy on the way"))
    with job(plan_of(slots, compressor, gw.Residual(), gw.AllGather(), groups=1), slots, 2) as running:
        running.step(draw(slots, 2, 0))


@WITH_KERNELS
def test_what_a_kernel_encodes_is_added_up_in_the_pass_that_encodes_it(compressor, monkeypatch: pytest.MonkeyPatch):
    added_before: list[LazySum] = []
    total = LazySum.total
    monkeypatch.setattr(LazySum, "total", lambda vector: added_before.append(vector) or total(vector))
    with job(plan_of(SLOTS, compressor, gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
    assert not added_before


def test_groups_of_mixed_rounds_share_the_wire():
    parts = [
        (gw.PowerSGD(2), gw.Residual(), gw.AllReduce()),
        (gw.TopK(0.1), gw.Residual(), gw.AllGather()),
        (gw.QSGD(), gw.NoMemory(), gw.ScatterReduce()),
        (gw.FP32(), gw.NoMemory(), gw.AllReduce()),
    ]
    plan = gw.Plan(tuple(gw.Group((slot.name,), *parts[i % 4]) for i, slot in enumerate(MANY)))
    sequences, _ = delayed(plan, MANY, 2, seed=1, steps=3)
    assert sequences[0] == sequences[1]
    kinds = [kind for kind, _, _ in sequences[0]]
    assert kinds[:2] == ["Sum", "Gather"], "the second group starts before the first one's second round"


@pytest.mark.parametrize("case", CASES[::4], ids=str)
def test_the_order_of_slots_does_not_change_the_means(case: Case):
    plan = plan_of(SLOTS, case.compressor, case.memory, case.communicator)
    (_, first), (_, second) = (delayed(plan, SLOTS, 2, seed) for seed in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def submit(running: Job, grads: list[list[Tensor]], orders: list[list[int]]) -> list[Tensor]:
    """The means of a step in which each rank submits its slots in this order."""
    for runtime in running.runtimes:
        runtime.open_step()
    means = [hand_over(*each) for each in zip(running.runtimes, grads, orders, strict=True)]
    running.finish()
    return means[0]


def by_name(plan: gw.Plan) -> list[str]:
    return [name for group in plan.groups for name in group.slots]


def test_collectives_that_are_over_are_not_kept_for_other_threads():
    with job(uniform(SLOTS, gw.TopK(0.1)), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        assert not running.transports[0]._hub.meetings


def test_after_the_first_step_groups_follow_the_order_of_gradients():
    def replan(slots: list) -> gw.Plan:
        return plan_of(slots, gw.TopK(0.2), gw.Residual(), gw.AllGather(), groups=len(slots))

    order = [6, 4, 2, 0, 5, 3, 1]
    with job(replan(SLOTS), SLOTS, 2, plan_for=replan, follow_order=True) as running:
        first = draw(SLOTS, 2, 0)
        means = submit(running, first, [order] * 2)
        for runtime in running.runtimes:
            assert by_name(runtime.plan) == [SLOTS[slot].name for slot in order]
        left = running.state("residual")
        for slot in range(len(SLOTS)):
            true = (first[0][slot] + first[1][slot]) / 2
            torch.testing.assert_close(left[0][slot] + left[1][slot] + means[slot], true)
        submit(running, draw(SLOTS, 2, 1), [order[::-1]] * 2)
        assert by_name(running.runtimes[0].plan) == [SLOTS[slot].name for slot in order], "only once"


def test_ranks_with_other_orders_follow_rank_0():
    def replan(slots: list) -> gw.Plan:
        return plan_of(slots, gw.FP32(), gw.NoMemory(), gw.AllReduce(), groups=len(slots))

    with job(replan(SLOTS), SLOTS, 2, plan_for=replan, follow_order=True) as running:
        submit(running, draw(SLOTS, 2, 0), [[3, 1, 0, 2, 6, 5, 4], [0, 1, 2, 3, 4, 5, 6]])
        expected = [SLOTS[slot].name for slot in (3, 1, 0, 2, 6, 5, 4)]
        assert [by_name(runtime.plan) for runtime in running.runtimes] == [expected] * 2


def test_a_plan_that_was_installed_is_not_replaced_after_the_first_step():
    def replan(slots: list) -> gw.Plan:
        return uniform(slots, gw.TopK(0.2))

    mine = uniform(SLOTS, gw.QSGD())
    with job(replan(SLOTS), SLOTS, 2, plan_for=replan, follow_order=True) as running:
        running.install(mine)
        running.step(draw(SLOTS, 2, 0))
        assert running.runtimes[0].plan == mine


def test_stats_count():
    world, steps = 3, 4
    numel = sum(slot.numel for slot in SLOTS)
    with job(plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce(), groups=1), SLOTS, world) as running:
        for step in range(steps):
            running.step(draw(SLOTS, world, step))
        stats = running.runtimes[0].stats()
        assert stats.steps == steps == int(running.states()[0]["step"])
        assert stats.dense_bytes == stats.wire_bytes == steps * (2 * (world - 1) * 4 * numel // world)
        assert stats.ratio == 1
        assert min(stats.encode_s, stats.wire_s, stats.decode_s, stats.wait_s) > 0


def test_half_precision_parameters_and_doubles():
    kinds = {"half": torch.float16, "brain": torch.bfloat16, "single": torch.float32, "double": torch.float64}
    slots = slots_of({name: torch.empty(9, 7, dtype=dtype) for name, dtype in kinds.items()})
    for case in CASES:
        with job(plan_of(slots, case.compressor, case.memory, case.communicator), slots, 2) as running:
            grads = [[g.to(slot.dtype) for g, slot in zip(own, slots, strict=True)] for own in draw(slots, 2, 0)]
            means = running.step(grads)
            assert all(torch.equal(a, b) for a, b in zip(*means, strict=True))
            if case.exact:
                for slot, mean in enumerate(means[0]):
                    true = (grads[0][slot].double() + grads[1][slot].double()) / 2
                    assert (mean.double() - true).abs().max() <= max(case.rounding, torch.finfo(mean.dtype).eps) * 12
            grads[0][0][0, 0] = grads[1][3][0, 0] = torch.nan
            assert not any(running.step(grads)[0][slot].isfinite().all() for slot in (0, 3))


@pytest.mark.parametrize("by_host", [False, True], ids=["replicas", "hosts"])
@pytest.mark.parametrize("dense", [False, True], ids=["compressed", "dense"])
def test_a_mean_that_float16_cannot_hold_under_the_losss_scale_is_no_step(by_host: bool, dense: bool):
    slots = slots_of({"a": torch.empty(6, 5, dtype=torch.float16), "b": torch.empty(6, 5)})
    grads = [[torch.full((6, 5), 60_000.0).to(slot.dtype) for slot in slots]] * 4
    meshes = hosts(2, 2) if by_host else ()
    with job(uniform(slots, gw.TopK(0.05)), slots, 4, transports=meshes, scale=lambda: 1024.0) as running:
        # what is not sent is finite, but with the next gradient more than 65,504
        running.step(grads)
        if dense:
            running.install(uniform(slots, gw.FP32(), gw.NoMemory()))
        before = running.state("residual")
        means = running.step(grads)
        assert not any(mean.isfinite().any() for own in means for mean in own)
        assert [runtime.stats().skipped for runtime in running.runtimes] == [1] * 4
        for own, kept in zip(running.state("residual"), before, strict=True):
            assert all(map(torch.equal, own, kept))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "and sparse gradients are not exchanged here; use Embedding(sparse=False)"),
        ({"finds_sparse": True}, "and there is no nn.Embedding(sparse=True) that it is the weight of"),
    ],
)
def test_a_sparse_gradient_is_refused_by_name(options: dict[str, Any], why: str):
    refusal = pytest.raises(ValueError, match=rf"stem\.weight.*{re.escape(why)}")
    with job(uniform(SLOTS, gw.FP32()), SLOTS, 1, **options) as running, refusal:
        running.runtimes[0].submit(0, torch.empty(5, 3, 3, 3).to_sparse())


# Errors


@dataclass(frozen=True)
class Faulty(Cast):
    """Breaks on one rank in one step; `late` does so once the payload was sent."""

    rank: int
    step: int
    late: bool = False
    pause_s: float = 0.0

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        super().encode(vector, payloads, parts)
        self._strike(parts.context, late=False)

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        super().decode(payloads, mean, parts)
        self._strike(parts.context, late=True)

    def _strike(self, context: GroupContext, *, late: bool) -> None:
        if (context.rank, context.step, late) == (self.rank, self.step, self.late):
            time.sleep(self.pause_s)
            raise ArithmeticError("the encoder is broken")


def faulty(at: int = 3, **options: Any) -> gw.Plan:
    good = [gw.Group((slot.name,), gw.TopK(0.5), gw.Residual(), gw.AllGather()) for slot in SLOTS]
    good[at] = gw.Group((SLOTS[at].name,), Faulty(**options), gw.NoMemory(), gw.AllGather())
    return gw.Plan(tuple(good))


@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("world", [2, 3])
def test_an_error_in_a_compressor_reaches_every_rank(world: int, late: bool, step: int, at: int):
    with job(faulty(at, rank=1, step=step, late=late), SLOTS, world, find_unused=True) as running:

        def train(rank: int) -> None:
            for number in range(step + 2):
                running.runtimes[rank].open_step()
                hand_over(running.runtimes[rank], draw(SLOTS, world, number)[rank])
                running.runtimes[rank].finish()

        for rank, error in enumerate(together(world, train)):
            assert isinstance(error, ReductionError), f"rank {rank}: {error!r}"
            assert SLOTS[at].name in str(error)
            assert "rank 1" in str(error)
            assert "the encoder is broken" in str(error)
            if rank == 1:
                assert isinstance(error.__cause__, ArithmeticError)


def test_after_an_error_every_call_says_so_and_the_last_whole_state_is_there():
    with job(faulty(rank=0, step=1), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        before = running.states()
        with pytest.raises(ReductionError):
            running.step(draw(SLOTS, 2, 1))
        for call in (
            lambda rank: running.runtimes[rank].open_step(),
            lambda rank: running.runtimes[rank].finish(),
            lambda rank: running.runtimes[rank].install(running.runtimes[rank].plan),
        ):
            assert all(isinstance(error, ReductionError) for error in together(2, call))
        for old, new in zip(before, running.states(), strict=True):
            assert all(torch.equal(old[key], new[key]) for key in old)


@pytest.mark.parametrize("late", [False, True])
def test_futures_of_buckets_end_with_the_error_too(late: bool):
    """DDP waits for these; those that are asked for while a group fails must not be forgotten."""
    with job(faulty(rank=0, step=0, late=late, pause_s=0.1), SLOTS, 2) as running:

        def train(rank: int) -> Any:
            runtime = running.runtimes[rank]
            runtime.open_step()
            hand_over(runtime, draw(SLOTS, 2, 0)[rank])
            return runtime.watch(torch.empty(1), waits=True).wait()

        for error in together(2, train):
            assert isinstance(error, RuntimeError)
            assert "the encoder is broken" in str(error)


def test_a_rank_that_leaves_does_not_let_the_others_hang():
    with job(uniform(SLOTS, gw.TopK(0.1)), SLOTS, 2) as running:
        running.runtimes[0].open_step()
        hand_over(running.runtimes[0], draw(SLOTS, 2, 0)[0])
        running.runtimes[1].fail(RuntimeError("rank 1 was told to stop"))
        (error,) = together(1, lambda rank: running.runtimes[rank].finish())
        assert isinstance(error, ReductionError)
        assert "rank 1 was told to stop" in str(error)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError("wrong shapes")], ids=repr)
def test_an_error_of_one_rank_in_a_call_of_all_names_that_rank(error: RuntimeError):
    def talk(mesh: gw.Mesh, device: torch.device) -> None:
        if mesh.rank:
            raise error
        mesh.sum(torch.zeros(1))

    with job(uniform(SLOTS, gw.TopK(0.1)), SLOTS, 2) as running:

        def call(rank: int) -> None:
            with running.runtimes[rank].between_steps("talk()") as all_ranks:
                all_ranks(talk, None)

        for failed in together(2, call):
            assert isinstance(failed, ReductionError)
            assert f"failed on rank 1: {type(error).__name__}: {error}" in str(failed)


class OutOfMemory(gw.Threads):
    """A transport on one of whose ranks a collective finds no memory."""

    armed = False

    def start(self, op: Collective) -> Pending:
        if self.armed:
            raise torch.OutOfMemoryError("no memory")
        return super().start(op)


def test_a_collective_without_memory_is_no_lost_rank():
    transports = OutOfMemory.group(2)
    with job(uniform(SLOTS, gw.TopK(0.1)), SLOTS, 2, transports=transports) as running:
        transports[1].armed = True

        def step(rank: int) -> None:
            running.runtimes[rank].open_step()
            hand_over(running.runtimes[rank], draw(SLOTS, 2, 0)[rank])
            running.runtimes[rank].finish()

        for failed in together(2, step):
            assert "failed on rank 1: OutOfMemoryError: no memory" in str(failed)


@pytest.mark.parametrize("method", ["look", "decide"])
def test_an_error_of_a_controller_reaches_every_rank(method: str):
    """It looks while a group is encoded, and decides between steps, when no group is under way."""

    class Breaks(gw.Controller):
        looks = True

        def breaks(self, called: str, rank: int) -> None:
            if called == method and rank == 1:
                raise ArithmeticError("no decision")

        def look(self, context: gw.GroupContext, vector: gw.LazySum, numbers: torch.Tensor) -> None:
            self.breaks("look", context.rank)

        def decide(self, seen: gw.Observation) -> None:
            self.breaks("decide", seen.rank)

    plan = uniform(SLOTS, gw.TopK(0.1))
    with job(plan, SLOTS, 2, controllers=[Breaks(), Breaks()]) as running:

        def train(rank: int) -> None:
            for number in range(3):
                running.runtimes[rank].open_step()
                hand_over(running.runtimes[rank], draw(SLOTS, 2, number)[rank])
                running.runtimes[rank].finish()

        first, second = together(2, train)
        assert isinstance(second, ReductionError)
        assert str(second) == f"Breaks.{method}() failed on rank 1: ArithmeticError: no decision"
        assert isinstance(first, ReductionError)
        assert "no decision" in str(first)


def test_the_state_is_that_after_the_last_whole_step_also_in_the_middle_of_one():
    with job(uniform(SLOTS, gw.TopK(0.1)), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        before = running.states()[0]
        running.runtimes[0].open_step()
        for slot, grad in enumerate(draw(SLOTS, 2, 1)[0][:-1]):
            running.runtimes[0].submit(slot, grad)
        after = running.runtimes[0].state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)


def gives_up(running: Job, rank: int) -> int:
    """Gives up the step on this rank; returns how many steps are reduced then. Rank 1 comes later, so that rank 0 has
    to wait for it: the worker still writes where its next gradients will lie."""
    time.sleep(0.05 * rank)
    running.runtimes[rank].give_up()
    return running.runtimes[rank]._collector.reduced


@pytest.mark.parametrize("given", [(2, 4), (2, len(SLOTS)), (len(SLOTS), len(SLOTS))], ids=str)
def test_a_step_that_backward_did_not_finish_is_taken_by_no_rank(given: tuple[int, int]):
    """Backward failed on all ranks, behind so many gradients on each; the next step is as if it had not been."""
    later = []
    for fails in (True, False):
        with job(uniform(SLOTS, gw.TopK(0.1)), SLOTS, 2) as running:
            running.step(draw(SLOTS, 2, 0))
            if fails:
                for rank, runtime in enumerate(running.runtimes):
                    runtime.open_step(until_backward_ends=True)
                    for slot in range(given[rank]):
                        runtime.submit(slot, draw(SLOTS, 2, 1)[rank][slot])
                assert raising(together(2, partial(gives_up, running))) == [2, 2]
            means, state = running.step(draw(SLOTS, 2, 2))[0], running.states()[0]
            later.append([*means, *(state[key] for key in sorted(state.keys() - {"step", "about"}))])
    assert all(torch.equal(a, b) for a, b in zip(*later, strict=True))


def given_up(running: Job, places: list[list[Tensor]]) -> None:
    """A step whose backward pass fails on rank 1 behind the second gradient; each lies in its place."""
    for rank, runtime in enumerate(running.runtimes):
        runtime.open_step()
        for slot, place in list(enumerate(places[rank]))[: 2 if rank else None]:
            runtime.submit(slot, place)
    raising(together(2, lambda rank: running.runtimes[rank].give_up()))
    running.finish()  # on rank 0 the step is whole: there give_up() does not wait for its NaN


def check_means(running: Job, places: list[list[Tensor]], seed: int, hand_over: Callable[[Runtime, int], None]) -> None:
    """A step whose gradients lie in these places, where the means are to be afterwards."""
    grads = draw(SLOTS, 2, seed)
    for runtime, own, new in zip(running.runtimes, places, grads, strict=True):
        runtime.open_step()
        for place, grad in zip(own, new, strict=True):
            place.copy_(grad)
        for slot in range(len(SLOTS)):
            hand_over(runtime, slot)
    running.finish()
    for own in places:
        torch.testing.assert_close(own, [(one + other) / 2 for one, other in zip(*grads, strict=True)])


def test_a_step_given_up_before_places_are_known_leaves_none_behind():
    """As under Megatron, where gradients lie in the same places from the first step on."""
    with job(plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce()), SLOTS, 2) as running:
        places = draw(SLOTS, 2, 0)
        for runtime in running.runtimes:
            runtime.fix_addresses(True)
        given_up(running, places)
        for seed in range(2):
            check_means(running, places, seed, lambda own, slot: own.submit(slot, places[own.mesh.rank][slot]))


def test_a_step_given_up_leaves_gradients_where_they_lie_for_the_next_plan():
    """As in DDP's buckets, from which slots just arrive."""
    first, second = (plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce(), groups=groups) for groups in (2, 3))
    with job(first, SLOTS, 2) as running:
        places = draw(SLOTS, 2, 0)
        for runtime in running.runtimes:
            runtime.fix_addresses(True)
        check_means(running, places, 1, lambda own, slot: own.submit(slot, places[own.mesh.rank][slot]))
        given_up(running, places)
        running.install(second)
        for seed in range(2):
            check_means(running, places, seed, lambda own, slot: own.mark_ready(slot))
        # buckets that DDP has replaced are not kept
        for runtime in running.runtimes:
            runtime.fix_addresses(False)
        running.finish()
        assert not any(stored.fixed for runtime in running.runtimes for stored in runtime._steps.store.groups)


def test_steps_of_some_groups():
    """Local steps send one fragment at a time: only its groups are reduced, and only their state changes."""
    plan = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather(), groups=3)
    with job(plan, SLOTS, 2) as running, job(plan, SLOTS, 2) as whole:
        for number, groups in enumerate([[0], [1, 2], [2], [0, 1]]):
            grads = draw(SLOTS, 2, number)
            members = {SLOTS.index(slot) for slot in SLOTS for g in groups if slot.name in plan.groups[g].slots}
            before, handed = running.states(), len(running.transports[0].started)
            for rank, runtime in enumerate(running.runtimes):
                runtime.reduce({SLOTS[slot].name: grads[rank][slot] for slot in members}, groups)
            running.finish()
            assert len(running.transports[0].started) - handed == len(groups)
            for old, new in zip(before, running.states(), strict=True):
                for i, slot in enumerate(SLOTS):
                    assert torch.equal(old[f"{slot.name}//residual"], new[f"{slot.name}//residual"]) == (
                        i not in members
                    )
            expected = whole.step(draw(SLOTS, 2, number)) if number == 0 else None
            for slot in members if expected else ():
                assert torch.equal(grads[0][slot], expected[0][slot])


def test_state_follows_its_slots_where_groups_took_other_steps():
    """Their halves of the state buffers are others by then."""
    plan = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather(), groups=3)
    with job(plan, SLOTS, 2) as running:
        for groups in ([0, 1, 2], [1]):
            grads = draw(SLOTS, 2, len(groups))
            members = {name for group in groups for name in plan.groups[group].slots}
            for own, runtime in zip(grads, running.runtimes, strict=True):
                given = {slot.name: gradient for slot, gradient in zip(SLOTS, own, strict=True)}
                runtime.reduce({name: given[name] for name in members}, groups)
            running.finish()
        before = running.states()
        for order, groups in ((SLOTS, 2), (SLOTS[::-1], 1), (SLOTS, 7)):
            running.install(plan_of(order, gw.TopK(0.2), gw.Residual(), gw.AllGather(), groups=groups))
            running.step(draw(SLOTS, 2, 0, scale=torch.inf))  # no rank takes it: state moves, and that is all
            for old, new in zip(before, running.states(), strict=True):
                assert all(torch.equal(old[key], new[key]) for key in old if "//" in key)


def test_bucket_futures_give_the_means():
    with job(uniform(SLOTS, gw.FP16()), SLOTS, 2) as running:

        def train(rank: int) -> list[Tensor]:
            runtime = running.runtimes[rank]
            runtime.open_step()
            early = runtime.watch(torch.empty(1), waits=True)
            means = hand_over(runtime, draw(SLOTS, 2, 0)[rank])
            late = runtime.watch(torch.empty(1), waits=True)
            for future in (early, late):
                future.wait()
            return [mean.clone() for mean in means]

        first, second = raising(together(2, train))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        for mean, *own in zip(first, *draw(SLOTS, 2, 0), strict=True):
            torch.testing.assert_close(mean, torch.stack(own).mean(0), rtol=2e-3, atol=1e-3)


class Unasked(torch.Tensor):
    """As a scale on a GPU, which the host would wait for if it asked whether it is zero."""

    def __bool__(self) -> bool:
        raise AssertionError("the host asked for the scale")


def test_a_step_does_not_ask_for_the_scale_on_the_host():
    scale = torch.tensor(4.0).as_subclass(Unasked)
    plan = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())
    with job(plan, SLOTS, 2, scale=lambda: scale) as running:
        running.step(draw(SLOTS, 2, 0))
        assert [runtime.stats().steps for runtime in running.runtimes] == [1, 1]
