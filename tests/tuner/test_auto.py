"""The automatic plan: found on a running job, the same on all ranks, never at the cost of a gradient."""

import gc
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire import group_checks
from gradwire.controllers import Observation
from gradwire.controllers.requests import ProfileRequest
from gradwire.frontends.handle import Handle
from gradwire.frontends.options.choices import StepChoices
from gradwire.notation import way_of
from gradwire.plans import Plan, uniform
from gradwire.rules import Rule, joined, sort_by
from gradwire.schedule import Profile
from gradwire.tuner import CHOOSING_STEPS, Auto
from gradwire.tuner.candidate_plans import default_candidates, few_groups, ways_by, ways_of
from gradwire.tuner.phases import TIMED, TRACED, WARM
from gradwire.tuner.profiler import ReductionTimes, _collectives
from gradwire.tuner.trials import SETTLE, TRIED, Trials
from gradwire.tuner.watch import PATIENCE, WINDOW, StepTimeMonitor
from tests.support.harness import SMALL, Job, draw, hand_over, hosts, raising, slots_of, together, total
from tests.support.outside import Momentum, SharedScale

SLOTS = slots_of(SMALL)
DENSE = uniform(SLOTS, gw.FP32())
MOST_STEPS = CHOOSING_STEPS + 2


def automatic_job(world: int, candidates: list, fidelity: float | None = None, **options) -> Job:
    return Job(DENSE, SLOTS, world, controllers=[Auto(candidates, fidelity) for _ in range(world)], **options)


def train(running: Job, steps: range) -> list[list[Tensor]]:
    """Rank 0's means of every step, with forward passes that tell where a step begins."""

    def work(rank: int) -> list[list[Tensor]]:
        runtime, means = running.runtimes[rank], []
        for number in steps:
            runtime.open_step()
            runtime.forward_begins()
            runtime.forward_ends()
            means.append(hand_over(runtime, draw(SLOTS, running.world, number)[rank]))
            runtime.finish()
        return means

    by_rank = raising(together(running.world, work))
    for step in zip(*by_rank, strict=True):
        assert all(torch.equal(a, b) for own in step for a, b in zip(own, step[0], strict=True))
    return by_rank[0]


def choose(running: Job, first: int = 0) -> int:
    """Trains until all ranks have chosen; the step that comes next."""
    while not all(controller.chosen for controller in running.controllers):
        train(running, range(first, first := first + 1))
    return first


def test_ranks_find_the_same_plan_and_lose_nothing():
    world, candidates = 3, [gw.TopK(0.1), gw.EFSignSGD(), gw.PowerSGD(2)]
    running = automatic_job(world, candidates)
    sent = [torch.zeros(slot.shape).double() for slot in SLOTS]
    given = [torch.zeros(slot.shape).double() for slot in SLOTS]
    for number, means in enumerate(train(running, range(MOST_STEPS))):
        sent = [s + mean.double() for s, mean in zip(sent, means, strict=True)]
        given = [g + t / world for g, t in zip(given, total(draw(SLOTS, world, number)), strict=True)]
    plans = [runtime.plan for runtime in running.runtimes]
    assert plans == [plans[0]] * world
    assert all(controller.decisions for controller in running.controllers)
    assert running.controllers[0].decisions[-1].step > WARM + TIMED + TRACED + SETTLE + TRIED  # when it was chosen
    profile = running.controllers[0].profile
    assert profile == running.controllers[1].profile == running.controllers[2].profile
    # it is whole, and survives JSON
    profile.check(SLOTS)
    assert type(profile).from_json(profile.to_json()) == profile
    assert {candidate.way.compressor for candidate in profile.candidates} == {*candidates, gw.FP32()}
    left = total(running.state("residual"))
    for s, r, g in zip(sent, left, given, strict=True):
        torch.testing.assert_close(s + r, g, rtol=1e-4, atol=2e-3)
    running.close()


def test_hosts_of_several_ranks_find_one_plan():
    running = automatic_job(4, [gw.TopK(0.1), gw.BF16()], transports=hosts(2, 2))
    train(running, range(MOST_STEPS))
    assert [runtime.plan for runtime in running.runtimes] == [running.runtimes[0].plan] * 4
    profile = running.controllers[0].profile
    assert (profile.ranks, profile.gpus_per_host) == (4, 2)
    assert set(profile.local) == {"sum", "broadcast"}
    # ranks that do not lead a group know nothing of its wire
    assert all(cost(np.array(1e6)) > 0 for cost in profile.collectives.values())
    # the summary says how it was chosen
    shown = Handle(running.runtimes[1], None).summary()  # pyright: ignore
    account = shown[shown.index("a dense step took ") :].splitlines()
    assert sum(line.startswith("tried ") for line in account) >= 2
    # a machine that is busy at times has it plan anew behind that
    assert any(line.startswith("step ") and "was predicted for the best" in line for line in account)
    running.close()


def test_communicators_are_profiled_in_the_order_of_the_ways():
    """Not in that of a set, which differs between ranks: the profile is part of the state that all ranks have alike."""
    communicators = [gw.AllGather(), gw.Exclusive(), gw.ScatterReduce(), gw.SplitGather(), gw.OkTopk(), gw.GlobalTopK()]
    ways = [gw.Group((), gw.TopK(0.01), gw.Residual(), each) for each in communicators]
    rows = [[ReductionTimes(n, n, 0.0, 1e-6 * n, 0.0, 0.0) for n in (1000, 5000)]] * len(ways)
    assert list(_collectives(ways, rows)) == [each.called for each in communicators]


def test_a_collective_of_two_messages_costs_what_both_took():
    """The profile charges a codec's bytes once, so no round may be left out of their price."""
    ways = [
        gw.Group((), gw.QSGD(), gw.Residual(), gw.ScatterReduce()),
        gw.Group((), gw.FP32(), gw.NoMemory(), gw.AllReduce()),
    ]
    rows = [[ReductionTimes(n, n, 0.0, 2e-6 * n, 0.0, 0.0) for n in (1000, 5000, 9000)]] * 2
    costs = _collectives(ways, rows).values()
    assert len(costs) == 2
    for cost in costs:
        assert float(cost(np.array(7000.0))) == pytest.approx(14e-3)


def test_the_latency_of_each_round_is_counted_once():
    """The profile charges it once for each round, and here no codec goes the same way."""
    way = gw.Group((), gw.PowerSGD(2), gw.Residual(), gw.AllReduce())
    rows = [[ReductionTimes(n, n, 0.0, 2e-3 + 1e-6 * n, 0.0, 0.0) for n in (1000, 5000, 9000)]]
    cost = _collectives([way], rows)["AllReduce"]
    assert float(cost(np.array(7000.0)) + cost(np.array(0.0))) == pytest.approx(9e-3)


def test_a_resumed_job_keeps_the_plan_that_was_found():
    first = automatic_job(2, [gw.TopK(0.1)])
    train(first, range(begun := choose(first), begun + 3))  # what was chosen is in force by then
    states, found = first.states(), first.runtimes[0].plan
    second = automatic_job(2, [gw.TopK(0.1)])
    second.load(states)
    train(second, range(3))
    assert [runtime.plan for runtime in second.runtimes] == [found] * 2
    assert second.controllers[0].chosen
    first.close()
    second.close()


def test_a_state_of_other_candidates_is_measured_anew(caplog: pytest.LogCaptureFixture):
    first = automatic_job(2, [gw.TopK(0.1)])
    train(first, range(begun := choose(first), begun + 3))
    states, auto = first.states(), first.controllers[0]
    first.close()
    second = automatic_job(2, [gw.EFSignSGD()])
    second.load(states)
    assert second.controllers[0].state_dict()["auto"].equal(auto.state_dict()["auto"])
    train(second, range(begun, begun + 3))
    other = second.controllers[0]
    assert not other.chosen
    assert other.decisions[0].decision == (
        f"the state was measured by {auto.describe()} among 2 of 2 ranks, and this is {other.describe()} among 2 of 2 "
        "ranks: planning anew"
    )
    assert choose(second, begun + 3) <= begun + MOST_STEPS + 2
    assert {way.way.compressor for way in other.measured.candidates} == {gw.EFSignSGD(), gw.FP32()}
    assert {group.compressor for plan in other._trials.plans for group in plan.groups} <= {gw.EFSignSGD(), gw.FP32()}
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    second.close()


@pytest.mark.parametrize(("ranks", "replicas"), [(2, 2), (4, 4), (4, 2), (8, 4)])
def test_a_state_of_other_ranks_is_measured_anew(ranks: int, replicas: int):
    saved, loaded = Auto([gw.TopK(0.1)]), Auto([gw.TopK(0.1)])

    def seen(ranks: int, replicas: int) -> Observation:
        return Observation(5, 7, DENSE, SLOTS, 0, ranks, replicas, torch.ones(2))

    for auto in (saved, loaded):
        auto.begin(DENSE)
    while saved.status != "choosing a plan (profile)":
        saved.decide(seen(4, 4))
    saved._phase, saved._trials = "first trials", Trials([DENSE], [1.0], has_dense=True, steps=50, delay=2)
    saved._trials.rounds = [[0.1]]
    loaded.load_state_dict(saved.state_dict())
    assert loaded.decide(seen(ranks, replicas)) is None  # dense is in force
    same = (ranks, replicas) == (4, 4)
    assert loaded.status == f"choosing a plan ({'first trials' if same else 'dense'})"
    assert len(loaded.decisions) == (not same)
    # what other ranks have tried is no part of this run's account
    assert len(loaded.tried) == same
    assert ("a dense step took" in loaded.account, "tried " in loaded.account) == (same, same)


@pytest.mark.parametrize("rounds", [[], [[0.1]]])
def test_a_state_that_is_refused_leaves_the_account_as_it_was(rounds: list[list[float | None]]):
    """It is loaded, and where ranks do not agree, what was before is loaded again."""
    other, own = Auto([gw.TopK(0.1)]), Auto([gw.TopK(0.1)])
    for auto, took in ((other, [[0.2]]), (own, rounds)):
        auto.begin(DENSE)
        if took:
            auto._trials = Trials([DENSE], [1.0], has_dense=True, steps=50, delay=2, rounds=took)
    before, account = own.state_dict(), own.account
    own.load_state_dict(other.state_dict())
    assert "200 ms" in own.account
    own.load_state_dict(before)
    assert own.account == account
    assert [trials.rounds for trials in own.tried] == [rounds] * bool(rounds)


def test_a_job_that_was_saved_while_it_tried_plans_tries_the_others():
    first, second = (automatic_job(2, [gw.TopK(0.1)]) for _ in range(2))
    auto, begun = first.controllers[0], 0
    while not auto._trials.turn:  # a turn takes several steps: it is not over yet, however fast the plans are
        train(first, range(begun, begun := begun + 1))
    tried = auto._trials
    assert not auto.chosen
    states, plan = first.states(), first.runtimes[0].plan
    second.load(states)
    assert second.controllers[0]._trials == tried
    assert second.controllers[0].tried == [tried]
    assert [runtime.plan for runtime in second.runtimes] == [plan] * 2
    assert second.controllers[0].measured == auto.measured
    assert auto.measured
    assert choose(second, begun) <= MOST_STEPS
    first.close()
    second.close()


def test_a_job_that_was_saved_while_it_measured_measures_anew():
    first, second = (automatic_job(2, [gw.TopK(0.1)]) for _ in range(2))
    train(first, range(WARM + TIMED + 4))
    second.load(first.states())
    assert choose(second) <= MOST_STEPS
    first.close()
    second.close()


def native_steps(running: Job, steps: int) -> None:
    """DDP's own steps, and what is decided after the last of those that were asked for."""

    def work(rank: int) -> None:
        runtime = running.runtimes[rank]
        for _ in range(steps):
            assert not runtime.open_step()
            if runtime.native_step_ended() == 0:
                runtime.native_ended([0.01] * steps)

    raising(together(running.world, work))


def test_auto_rests_while_a_user_has_ddp_reduce_and_begins_anew_with_the_next_plan():
    first, second = (automatic_job(2, [gw.TopK(0.1)], no_native="") for _ in range(2))
    train(first, range(1))
    assert first.runtimes[0]._active._control.decided is not None
    first.install(gw.NATIVE)
    second.load(first.states())
    for running in (first, second):
        assert [runtime.status() for runtime in running.runtimes] == ["rank 0 of 2", "rank 1 of 2"]
        assert [runtime._active.native_steps for runtime in running.runtimes] == [None, None]
        native_steps(running, 3)
        assert running.runtimes[0].plan.native
        running.install(DENSE)
        assert running.controllers[0].status == "choosing a plan (begin)"
        train(running, range(3, 5))
        assert [runtime._active.native_steps for runtime in running.runtimes] == [WARM + TIMED] * 2
        native_steps(running, WARM + TIMED)
        assert running.controllers[0].status == "choosing a plan (profile)"
        running.close()


def test_a_plan_of_the_users_ends_trials_that_it_would_be_taken_for():
    auto = Auto([gw.TopK(0.1)])
    auto.begin(DENSE)
    for phase, after in (("first trials", "begin"), ("looking again", "begin"), ("watch", "watch"), ("dense", "dense")):
        auto._phase = phase
        auto.begin(DENSE)
        assert auto._phase == after


def test_a_plan_of_the_users_ends_a_profile_which_is_asked_for_again():
    running = automatic_job(2, [gw.TopK(0.1)])
    train(running, range(WARM + TIMED + 3))
    assert running.controllers[0].status == "choosing a plan (profile)"
    running.install(DENSE)
    assert running.controllers[0].status == "choosing a plan (begin)"
    assert choose(running, WARM + TIMED + 3) <= 2 * MOST_STEPS
    running.close()


def refused_plan(running: Job) -> None:
    """A plan that ranks ask for and do not agree on."""
    plans = [uniform(SLOTS, gw.FP32()), uniform(SLOTS, gw.BF16())]
    results = together(2, lambda rank: running.runtimes[rank].install(plans[rank]))
    assert all(isinstance(result, ValueError) for result in results)


def test_a_plan_that_is_refused_while_steps_are_traced_costs_no_profile():
    running, steps = automatic_job(2, [gw.TopK(0.1)]), 0
    while not running.runtimes[0]._active._control._tracing:
        train(running, range(steps, steps := steps + 1))
    refused_plan(running)
    assert running.controllers[0].status == "choosing a plan (profile)"
    train(running, range(steps, steps := steps + TRACED + 1))
    assert [controller.status for controller in running.controllers] == ["choosing a plan (first trials)"] * 2
    running.close()


def test_a_plan_that_is_refused_while_plans_are_tried_leaves_the_account_whole():
    running, steps = automatic_job(2, [gw.TopK(0.1)]), 0
    while not running.controllers[0]._trials.rounds:
        train(running, range(steps, steps := steps + 1))
    refused_plan(running)
    choose(running, steps)
    for controller in running.controllers:
        (trials,) = controller.tried
        assert trials is controller._trials
    running.close()


def test_a_native_turn_is_made_whole_again_after_a_resume():
    first, second = (automatic_job(2, [gw.TopK(0.1)], no_native="") for _ in range(2))
    train(first, range(1))
    asked = first.states()
    train(first, range(1, 2))
    native_steps(first, 3)
    second.load(first.states())
    assert [runtime._active.native_steps for runtime in second.runtimes] == [WARM + TIMED] * 2
    native_steps(second, WARM + TIMED)
    assert second.controllers[0].status == "choosing a plan (profile)"
    elsewhere = automatic_job(2, [gw.TopK(0.1)])
    for states in (asked, first.states()):
        with pytest.raises(ValueError, match="leaves reducing to DDP, and here there is none"):
            elsewhere.load(states)
    for running in (first, second, elsewhere):
        running.close()


@pytest.mark.parametrize("is_faster", [True, False])
def test_what_memories_hold_is_not_sent_at_once_where_a_job_is_measured_again(is_faster: bool):
    """Dense steps are DDP's own then, and the plan that was chosen is traced, unless DDP by itself was."""
    plan = uniform(SLOTS, gw.TopK(0.1))
    auto = Auto([gw.TopK(0.1)])
    auto.begin(DENSE)
    auto.measured = SimpleNamespace()  # pyright: ignore
    auto._trials = Trials([gw.NATIVE, plan], [1.0, 1.0], has_dense=True, steps=0, delay=2)
    auto._trials.rounds = [[0.1, 0.05 if is_faster else 0.2]] * 8
    auto._phase = "watch"
    auto._watch = StepTimeMonitor(1.0, confirmed=True, strange=PATIENCE, seconds=[2.0] * (WINDOW - 1))

    def seen(plan: gw.Plan) -> Observation:
        return Observation(500, 502, plan, SLOTS, 0, 2, 2, torch.tensor([4.0, 2.0, 0.0]), True, 2.0)

    assert auto.decide(seen(plan if is_faster else gw.NATIVE)) == gw.NativeRequest(WARM + TIMED, WARM)
    request = auto.decide(seen(gw.NATIVE))
    assert isinstance(request, ProfileRequest)
    assert request.plan == few_groups(plan if is_faster else DENSE, SLOTS)


@pytest.mark.parametrize("users", [False, True])
def test_a_plan_of_the_users_is_not_compared_with_what_was_tried(users: bool):
    """A turn of another plan would end it."""
    other = uniform(SLOTS, gw.TopK(0.1))
    auto = Auto([gw.TopK(0.1)])
    auto.begin(DENSE)
    auto._trials = Trials([DENSE, other], [1.0, 1.0], has_dense=True, steps=0, delay=2, rounds=[[0.1, 0.099]] * 9)
    auto._phase, auto._watch = "watch", StepTimeMonitor(1.0, 400, 3000, [1.0] * (WINDOW - 1))
    plan = uniform(SLOTS, gw.BF16()) if users else DENSE
    seen = Observation(500, 502, plan, SLOTS, 0, 2, 2, torch.tensor([2.0, 2.0, 0.0]))
    assert auto.decide(seen) == (None if users else other)
    assert auto.status == ("" if users else "comparing its plan with another again")


@pytest.mark.parametrize("later", [False, True])
def test_a_state_that_is_loaded_while_steps_are_traced_ends_the_tracing(later: bool):
    """The state is of an earlier step, or of one after all those that were to be traced."""
    running, other = (automatic_job(2, [gw.TopK(0.1)]) for _ in range(2))
    train(other, range(100 if later else 1))
    traced = 0
    while not running.runtimes[0]._active._control._tracing:
        train(running, range(traced, traced := traced + 1))
    running.load(other.states())
    controls = [runtime._active._control for runtime in running.runtimes]
    assert [(control._tracing, len(control._sums)) for control in controls] == [(None, 0)] * 2
    assert choose(running, 100) <= 100 + MOST_STEPS
    running.close()
    other.close()


@pytest.mark.parametrize(("world", "expected"), [(2, {"AllGather"}), (4, {"AllGather", "ScatterReduce"})])
def test_by_default_8_bits_travel_with_a_residual_and_scattered_among_more_than_two(world: int, expected: set[str]):
    ways = [way for candidate in default_candidates(world) for way in ways_of(candidate, world)]
    assert [way.compressor for way in ways[:2]] == [gw.FP32(), gw.BF16()]
    assert {(way.compressor, way.memory) for way in ways[2:]} == {(gw.QSGD(), gw.Residual())}
    assert {way.communicator.called for way in ways[2:]} == expected


def test_an_own_way_to_send_is_a_candidate_too():
    way = gw.Group((), gw.QSGD(), gw.Residual(), gw.ScatterReduce())
    assert ways_of(way, 4) == [way]
    assert [each.communicator for each in ways_of(gw.TopK(0.1), 4)] == [gw.AllGather(), gw.ScatterReduce()]
    assert [each.communicator for each in ways_of(gw.TopK(0.1), 2)] == [gw.AllGather()]
    ways = ways_of(way_of(gw.TopK(0.1), gw.NoMemory(), None), 4)
    assert [(each.memory, each.communicator.called) for each in ways] == [
        (gw.NoMemory(), "AllGather"), (gw.NoMemory(), "ScatterReduce"),
    ]  # fmt: skip
    assert [each.communicator for each in ways_of(gw.PowerSGD(4), 4)] == [gw.AllReduce()]


def test_a_compressor_whose_cost_nobody_knows_is_no_candidate():
    with pytest.raises(ValueError, match=r"is no gw\.FixedSizeCompressor, which says its bytes before a step; name"):
        Auto([gw.MultiLevel()])
    Auto([SharedScale()])  # one of a user's that says its messages


@pytest.mark.parametrize("compressor", [gw.Dion(), gw.SignSGD(), gw.Signum()], ids=str)
def test_what_makes_no_mean_of_gradients_is_no_candidate(compressor: gw.Compressor):
    """The steps before it is chosen are dense, and efficiency is a share of the mean that it does not make."""
    for given in ({"candidates": [compressor]}, {"rules": [Rule("*", (compressor,))]}):
        with pytest.raises(ValueError, match=r"makes no mean of gradients.* name e\.g\. PowerSGD\(1 / 6\)"):
            Auto(**given)


def test_of_votes_the_shortest_step_may_be_asked_for():
    """As the suite of Cupcake does: no progress is compared."""
    Auto([gw.SignSGD(), gw.Signum()], objective="step")
    for others in ([gw.Dion()], [gw.SignSGD(), gw.TopK(0.1)]):
        with pytest.raises(ValueError, match="makes no mean"):
            Auto(others, objective="step")


@pytest.mark.parametrize("memory", [gw.DGCMemory(), gw.DGCMemory(masking=False), Momentum()], ids=str)
def test_what_sends_momentum_is_no_candidate(memory: gw.Memory):
    """Its optimizer has none, with which dense steps and candidates beside it would be trained."""
    way = gw.Group((), gw.DGC(0.1), memory, gw.AllGather())
    for given in (
        {"candidates": [way]},
        {"rules": [Rule("*", (gw.FP32(), way))]},
        {"candidates": [way], "objective": "step"},
    ):
        with pytest.raises(ValueError, match=r"sends momentum.* name the candidate with Residual\(\)"):
            Auto(**given)


def test_a_dense_candidate_is_always_there():
    def candidates(given: gw.Compressor) -> list[gw.Compressor]:
        return [way.compressor for way in ways_by(Auto([given]).rules, 2)]

    assert gw.FP32() in candidates(gw.TopK(0.1))
    assert gw.FP32() not in candidates(gw.BF16())


def test_auto_begins_with_dense_steps_alone():
    with pytest.raises(ValueError, match="begins with dense steps"):
        Job(uniform(SLOTS, gw.TopK(0.1)), SLOTS, 2, controllers=[Auto([]), Auto([])])


def test_the_plan_that_leaves_backward_alone_keeps_every_slots_way():
    mixed = Plan((*uniform(SLOTS[:2], gw.TopK(0.1)).groups, *uniform(SLOTS[2:], gw.PowerSGD(2)).groups))
    few = few_groups(mixed, SLOTS)
    few.check(SLOTS)
    ways = [{name: replace(group, slots=()) for group in plan.groups for name in group.slots} for plan in (mixed, few)]
    assert ways[0] == ways[1]
    assert mixed.groups[-1].slots[-1] in few.groups[0].slots
    assert len(few.groups) == len(set(ways[0].values()))
    # no group is longer than its compressor takes
    with patch.object(group_checks, "LONGEST", max(slot.numel for slot in SLOTS)):
        more = few_groups(mixed, SLOTS)
        more.check(SLOTS)
    assert len(more.groups) > len(few.groups)


def test_contradictions_are_refused():
    with pytest.raises(ValueError, match="leave the compressor out"):
        StepChoices(compressor=gw.TopK(0.1), candidates=[gw.BF16()]).check()
    with pytest.raises(ValueError, match="needs a compressor"):
        StepChoices(controller=Auto()).check()
    with pytest.raises(ValueError, match=r"rules have candidates of their own; .*\('\*', \[gw\.BF16\(\)"):
        Auto([gw.BF16()], rules=[Rule("*", (gw.TopK(0.1),))])


@pytest.mark.usefixtures("one_rank")
def test_one_rank_needs_no_plan():
    assert gw.attach(DistributedDataParallel(nn.Linear(4, 3))).plan is None


@pytest.mark.usefixtures("one_rank")
def test_a_model_that_was_attached_can_be_freed():
    ddp = DistributedDataParallel(nn.Linear(4, 3))
    gone, handle = weakref.ref(ddp.module), gw.attach(ddp, gw.TopK(0.1))
    ddp(torch.ones(1, 4)).sum().backward()
    handle.detach()
    del ddp, handle
    gc.collect()
    assert gone() is None


def test_under_rules_each_layer_keeps_to_its_own_candidates():
    rules = (Rule("body.*", (gw.Quantized(8),)), Rule("dim<2", (gw.BF16(),)), Rule("*", (gw.TopK(0.1), gw.FP16())))
    dense = joined(
        [
            Plan(tuple(replace(group, rule=pattern) for group in uniform(slots, gw.FP32()).groups))
            for pattern, slots in sort_by([rule.pattern for rule in rules], SLOTS).items()
        ],
        SLOTS,
    )
    running = Job(dense, SLOTS, 2, controllers=[Auto(rules=rules) for _ in range(2)])
    choose(running)
    first, other = running.controllers
    assert first.tried == other.tried
    assert Profile.from_json(first.profile.to_json()) == first.profile
    own = {rule.pattern: {*rule.candidates} for rule in rules}
    small = {slot.name for slot in SLOTS if slot.dim < 2}
    plans = [plan for trials in first.tried for plan in trials.plans]
    assert len(plans) > 1
    for plan in plans:
        plan.check(SLOTS)
        for group in plan.groups:
            assert group.compressor in own[group.rule] or (group.rule == "body.*" and {*group.slots} <= small)
            assert all(name in {s.name for s in sort_by(own, SLOTS)[group.rule]} for name in group.slots)
    running.close()


def test_a_rule_with_one_way_keeps_it_however_much_it_loses():
    chosen = Auto(rules=(Rule("*", (gw.TopK(0.01),)),), fidelity=0.001)
    running = Job(
        Plan(tuple(replace(group, rule="*") for group in DENSE.groups)), SLOTS, 2,
        controllers=[chosen, Auto(rules=(Rule("*", (gw.TopK(0.01),)),), fidelity=0.001)],
    )  # fmt: skip
    choose(running)
    matrices = {slot.name for slot in SLOTS if slot.dim > 1}
    plans = [plan for trials in chosen.tried for plan in trials.plans]
    assert all(g.compressor == gw.TopK(0.01) for plan in plans for g in plan.groups if matrices & {*g.slots})
    running.close()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Auto(gw.TopK(0.1)), "is no list; pass one, such as candidates="),
        (lambda: Auto(rules=[("*", gw.TopK(0.1))]), "use gw.attach(ddp, rules=[('*', [gw.BF16(), gw.TopK(0.01)])])"),
    ],
)
def test_candidates_and_rules_that_are_none_are_refused_in_one_line(make: Callable[[], Auto], why: str):
    with pytest.raises(ValueError, match=re.escape(why)) as refusal:
        make()
    assert "\n" not in str(refusal.value)
