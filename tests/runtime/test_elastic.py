"""Wherever in a step a rank is lost: that step counts on all that are left, or on none of them."""

from itertools import chain, combinations

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.frontends.checkpoints.elastic_resume import go_on, without_memories
from gradwire.frontends.handle import Handle
from gradwire.frontends.null_job import NullFrontEnd
from tests.support import harness
from tests.support.harness import SMALL, draw, plan_of, raising, slots_of, together
from tests.support.states import kept

WORLD, WHOLE = 3, 2
SLOTS = slots_of(SMALL)
CASES = [
    (gw.FP32(), gw.NoMemory(), gw.AllReduce()), (gw.TopK(0.1), gw.Residual(), gw.AllGather()),
    (gw.TopK(0.1), gw.DGCMemory(), gw.AllGather()), (gw.PowerSGD(2), gw.Residual(), gw.AllReduce()),
    (gw.ACPSGD(2), gw.Residual(), gw.AllReduce()), (gw.Quantized(4), gw.Residual(), gw.ScatterReduce()),
    (gw.TopK(0.1), gw.Residual(), gw.OkTopk()), (gw.TopK(0.1), gw.Residual(), gw.GlobalTopK()),
]  # fmt: skip
GRADS = [draw(SLOTS, WORLD, step) for step in range(WHOLE + 1)]


class Broken:
    """A collective that the others complete, and this rank does not hear of."""

    def __init__(self, pending) -> None:
        self.pending = pending

    def wait(self) -> None:
        self.pending.wait()
        raise RuntimeError("the connection broke")


class Breaking(gw.Threads):
    """Threads, of which some do not hear of collective number `breaks`."""

    breaks: int | None = None

    def start(self, op):
        pending = super().start(op)
        return Broken(pending) if len(self.started) - 1 == self.breaks else pending


def twice(running: harness.Job) -> None:
    """A rank that has counted a step finds out in the next."""
    running.step(GRADS[WHOLE])
    running.step(GRADS[WHOLE])


def undisturbed(plan: gw.Plan) -> tuple[list[list[dict[str, torch.Tensor]]], int, int]:
    """The states of all ranks after each number of steps, and the collectives of all whole steps, and of one more."""
    with harness.job(plan, SLOTS, WORLD, elastic=True) as running:
        states = [running.states()]
        begun = 0
        for grads in GRADS:
            begun = len(running.transports[0].started)
            running.step(grads)
            states.append(running.states())
        return states, begun, len(running.transports[0].started)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[2]}")
def test_a_step_in_which_a_rank_is_lost_counts_on_all_or_none(case):
    plan = plan_of(SLOTS, *case)
    states, first, last = undisturbed(plan)
    outcomes = set()
    for breaks in range(first, last):
        for deaf in chain.from_iterable(combinations(range(WORLD), n) for n in range(1, WORLD + 1)):
            transports = Breaking.group(WORLD)
            with harness.job(plan, SLOTS, WORLD, elastic=True, transports=transports) as running:
                for grads in GRADS[:WHOLE]:
                    running.step(grads)
                for rank in deaf:
                    transports[rank].breaks = breaks
                with pytest.raises(RuntimeError):
                    twice(running)
                left = raising(together(WORLD, lambda rank, running=running: running.runtimes[rank].leave()))
            newest = max(int(own[0]["step"]) for own in left)
            outcomes.add(newest)
            for rank, own in enumerate(left):
                counted = {int(state["step"]): state for state in own}[newest]
                torch.testing.assert_close(kept(counted), kept(states[newest][rank]), rtol=0, atol=0)
    assert outcomes == {WHOLE, WHOLE + 1}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[2]}")
def test_a_step_that_is_voted_on_counts_when_it_is_committed(case):
    plan = plan_of(SLOTS, *case)
    states, *_ = undisturbed(plan)
    with harness.job(plan, SLOTS, WORLD, elastic=True, voted=True) as running:
        for grads in GRADS[:WHOLE]:
            running.step(GRADS[WHOLE])  # no rank votes on that
            running.skip()  # and so there is nothing to take back
            running.step(grads)
            for runtime in running.runtimes:
                runtime.commit()
        running.step(GRADS[WHOLE])
        left = raising(together(WORLD, lambda rank: running.runtimes[rank].leave()))
    for rank, own in enumerate(left):
        assert [int(state["step"]) for state in own] == [WHOLE, WHOLE + 1]
        for state in own:
            torch.testing.assert_close(kept(state), kept(states[int(state["step"])][rank]), rtol=0, atol=0)


class Counts(gw.Controller):
    """Counts the ranks of each step that counts."""

    numbers = 1

    def __init__(self) -> None:
        self.seen: list[float] = []

    def observe(self, seen: gw.StepView, numbers: Tensor) -> None:
        numbers += 1

    def decide(self, seen: gw.Observation) -> None:
        self.seen.append(float(seen.sums))


def test_a_step_that_was_not_voted_on_is_none_of_the_controllers():
    plan, controllers = plan_of(SLOTS, *CASES[0]), [Counts() for _ in range(WORLD)]
    with harness.job(plan, SLOTS, WORLD, elastic=True, voted=True, controllers=controllers) as running:
        for grads in GRADS[:WHOLE]:
            running.step(GRADS[WHOLE])  # no rank votes on that
            running.step(grads)
            for runtime in running.runtimes:
                runtime.commit()
    assert [controller.seen for controller in controllers] == [[WORLD] * WHOLE] * WORLD


def test_a_step_whose_controllers_sums_are_lost_counts_on_no_rank():
    """They are part of it: else the controller of that rank would know one step less than the others'."""
    controllers, transports = [Counts() for _ in range(WORLD)], Breaking.group(WORLD)
    plan = plan_of(SLOTS, *CASES[0])
    with harness.job(plan, SLOTS, WORLD, elastic=True, controllers=controllers, transports=transports) as running:
        running.step(GRADS[0])
        transports[0].breaks = len(transports[0].started) + len(plan.groups)  # behind the groups' sums
        with pytest.raises(RuntimeError):
            running.step(GRADS[1])
        left = raising(together(WORLD, lambda rank: running.runtimes[rank].leave()))
    assert [[int(state["step"]) for state in own] for own in left] == [[1], *[[1, 2]] * (WORLD - 1)]


def test_where_a_backward_pass_failed_no_rank_votes_on_the_step_and_it_is_counted_as_on_the_others():
    with harness.job(plan_of(SLOTS, *CASES[1]), SLOTS, WORLD, elastic=True, voted=True) as running:

        def ends(rank: int) -> None:
            runtime = running.runtimes[rank]
            runtime.open_step()
            if rank:
                harness.hand_over(runtime, GRADS[0][rank])
                runtime.finish()
                runtime.commit()
            else:
                runtime.submit(0, GRADS[0][rank][0].clone())
                runtime.give_up()

        raising(together(WORLD, ends))
        assert [runtime.stats().skipped for runtime in running.runtimes] == [1] * WORLD
        assert [int(state["step"]) for state in running.states()] == [1] * WORLD


def test_a_step_under_way_behind_one_that_was_not_voted_on_is_none_that_others_may_have_counted():
    plan = plan_of(SLOTS, *CASES[1])
    with harness.job(plan, SLOTS, WORLD, elastic=True, voted=True) as running:
        running.step(GRADS[0])  # no rank votes on that
        for own, runtime in zip(GRADS[1], running.runtimes, strict=True):
            runtime.open_step()
            for slot, gradient in [*enumerate(own)][::2]:  # the first group
                runtime.submit(slot, gradient.clone())
            runtime._executor.flush()
        left = raising(together(WORLD, lambda rank: running.runtimes[rank].leave()))
    assert [[int(state["step"]) for state in own] for own in left] == [[0]] * WORLD


def test_a_job_without_a_controller_goes_on_from_what_one_has_left():
    """Which began with a plan for the head alone, in an earlier job."""
    plan, head = plan_of(SLOTS, *CASES[1]), {"head.weight"}
    controllers = [gw.WarmUp(0.5, steps=4) for _ in range(2)]
    with harness.job(plan.only(head), SLOTS, 2, controllers=controllers, trained=head) as first:
        states = first.states()
    with harness.job(plan, SLOTS, 2, elastic=True) as second:
        second.load(states)
        states = second.states()

    def goes_on(rank: int) -> gw.Plan | None:
        handle = Handle(third.runtimes[rank], NullFrontEnd())
        go_on(handle, without_memories(states[0]), states[rank], rank, 2)
        return handle.plan

    with harness.job(plan, SLOTS, 2, elastic=True) as third:
        assert raising(together(2, goes_on)) == [plan] * 2
        after = third.states()
    assert [after[rank].keys() for rank in range(2)] == [states[rank].keys() for rank in range(2)]
