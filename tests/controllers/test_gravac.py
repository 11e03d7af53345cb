"""GraVAC: the search alone, and at work on ranks whose clocks the tests wind."""

import gc
import logging
import re
from collections.abc import Callable
from itertools import pairwise
from math import nan
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.controllers import StepView, gravac
from gradwire.controllers.factor_search import FactorSearch, spaced
from gradwire.controllers.gain import LEAST_ENERGY, Gain, Reading, share_of
from gradwire.controllers.guard import Guard
from gradwire.controllers.window import Observed
from tests.support.going_on import check_goes_on
from tests.support.harness import Clock, Job, draw, plan_of, slots_of, total
from tests.support.pretend_cuda import on_gpu, pretended_cuda, real
from tests.support.schedule import Schedule

SLOTS = slots_of({"first.weight": torch.empty(60, 50), "second.weight": torch.empty(40, 30)})
READINGS: list[Gain] = ["delay", "energy", "norm"]
ENERGY = Reading("energy")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    yield from Clock.wound(monkeypatch, gravac)


def controlled(world: int = 2, **options) -> Job:
    plan = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())
    options = {"min_factor": 4, "max_factor": 64, "window": 8} | options
    return Job(plan, SLOTS, world, controllers=[gw.GraVAC(**options) for _ in range(world)])


def factor(running: Job) -> float:
    compressor = running.runtimes[0].plan.groups[0].compressor
    assert isinstance(compressor, gw.MultiLevel)
    return round(1 / compressor.second.ratio, 6)  # pyright: ignore


def run(running: Job, numbers: range, scale: float = 1.0) -> list[list[Tensor]]:
    means = []
    for number in numbers:
        by_rank = running.step(draw(SLOTS, running.world, number, scale))
        assert all(torch.equal(a, b) for other in by_rank for a, b in zip(by_rank[0], other, strict=True))
        means.append(by_rank[0])
    return means


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((10, 1000, "exponential"), [10, 20, 40, 160, 1000]),
        ((10, 2000, "geometric"), [10, 20, 40, 80, 160, 320, 640, 1280, 2000]),
        ((5, 5, "exponential"), [5]),
        ((10, 100, "fine"), [10, 12.6, 15.8, 20, 25.1, 31.6, 39.8, 50.1, 63.1, 79.4, 100]),
        ((4, 16, "fine"), [4, 5.04, 6.32, 8, 10.04, 12.64, 16]),  # 15.92 is as good as 16
    ],
)
def test_factors_from_the_smallest_to_the_largest(arguments, expected):
    assert list(spaced(*arguments)) == pytest.approx(expected)


def test_a_windows_loss_is_that_of_the_ranks_that_reported_one():
    window = gravac.Window(4)
    for loss in (2.0, 2.0, 3.0, 4.0):  # of one rank of two; the first step is left out
        window.add(Observed(1, 1, 1, 1, 1, seconds=1, learning_rate=0, loss=loss / 2, losses=0.5))
    assert window.summarize().loss == 3


def test_a_rate_that_falls_by_half_in_several_searches_has_dropped():
    controller, plan = gw.GraVAC(window=4), plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())
    plan = controller.begin(plan)
    for step, rate in enumerate([0.1] * 4 + [0.07] * 4 + [0.05]):
        row = torch.tensor(Observed(1, 0.5, 0.5, 1, 10, seconds=1, learning_rate=rate, loss=0, losses=0))
        plan = controller.decide(gw.Observation(step, step + 2, plan, SLOTS, 0, 1, 1, row)) or plan
    assert ["dropped" in each.decision for each in controller.decisions] == [False, False, True]


def test_steps_in_which_all_that_it_chooses_for_is_frozen_show_nothing():
    controller, plan = gw.GraVAC(), plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())
    controller.begin(plan)
    row = torch.tensor(Observed(0, 0, 0, 0, 0, seconds=2, learning_rate=0.1, loss=1, losses=1))
    assert controller.decide(gw.Observation(5, 7, plan, SLOTS, 0, 2, 2, row)) is None
    assert not controller._window.rows


@pytest.mark.parametrize(("in_force", "half"), [(100, 50.1), (79.4, 39.8), (20, 10), (15.8, 10), (10, 10)])
def test_groups_whose_gain_is_too_small_send_half_the_factor(in_force: float, half: float):
    """Not the next smaller one, whose gain is hardly larger: what came next would be everything."""
    factors = FactorSearch(spaced(10, 100, "fine"), 0.01, ENERGY, 0.0)
    factors.index = factors.factors.index(in_force)
    assert factors.smaller == pytest.approx(half)
    factors.step_back()
    assert factors.factor == pytest.approx(half)


def test_the_second_factor_that_is_tried_is_half_the_first_where_nothing_promises_more():
    """Two that are closer would not show how seconds grow with the elements."""
    factors = FactorSearch(spaced(10, 100, "fine"), 0.01, Reading("delay", horizon=1000), 0.7)
    factors.index = len(factors.factors) - 1
    assert factors.judge(share_of(25), 1.0) == "try 50.1x"


def candidates(least_gain: float = 0.0, reading: Reading = ENERGY) -> FactorSearch:
    return FactorSearch(spaced(10, 1000, "exponential"), 0.01, reading, least_gain)


def tried(factors: FactorSearch, seconds: Callable[[float], float], share: Callable[[float], float]) -> list[float]:
    """The factors that a search tries, where a factor's steps take so long and send this share."""
    found = []
    while not factors.frozen:
        found.append(factors.factor)
        factors.judge(share(factors.factor), seconds(factors.factor))
    return found


@pytest.mark.parametrize(
    ("gain", "window", "begins_at"), [("delay", 100, 100), ("delay", 20, 79.4), ("energy", 100, 39.8)]
)
def test_it_begins_between_the_smallest_factor_and_the_largest_that_may_gain_enough(
    gain: Gain, window: int, begins_at: float
):
    assert gw.GraVAC(gain=gain, window=window)._factors.factor == begins_at


DELAYS = {factor: 0.25 * factor for factor in (10, 20, 40, 80, 160, 320)}
"""Steps that elements wait, by factor."""


def geometric() -> FactorSearch:
    return FactorSearch(spaced(10, 320, "geometric"), 0.01, Reading("delay", horizon=64), 0.7)


@pytest.mark.parametrize(
    ("link_s", "expected", "stays_at"),
    [
        (100.0, [40, 80], 80),  # as little as may be sent: 160x would gain too little
        (1.0, [40, 80], 40),
        (0.2, [40, 80, 20], 20),
        (0.0, [40, 80, 10], 10),  # all steps take as long
    ],
)
def test_the_search_tries_what_promises_most(link_s: float, expected: list[float], stays_at: float):
    factors = geometric()
    assert tried(factors, lambda f: 0.1 + link_s / f, lambda f: share_of(DELAYS[f])) == expected
    rates = {f: factors.reading.of(share_of(DELAYS[f])) / (0.1 + link_s / f) for f in (10, 20, 40, 80)}
    assert rates[factors.factor] >= 0.98 * max(rates.values())
    assert factors.factor == stays_at


def test_of_factors_that_promise_the_same_the_smallest_is_taken():
    factors = candidates()
    factors.shares, factors.seconds = [nan, 0.6, 0.602, nan, nan], [nan, 1.0, 1.0, nan, nan]
    factors.index = 2
    assert factors.judge(0.602, 1.0) == "try 10x"
    assert factors.judge(0.6, 1.0) == "stay at 10x"


def test_where_all_factors_gain_too_little_the_smallest_is_taken():
    factors = candidates(least_gain=0.5)
    assert tried(factors, lambda f: 1 / f, lambda f: 0.01) == [10]
    factors.explore()
    assert factors.judge(0.01, 1.0) == "10x gains too little: stay at 10x"


def test_a_window_is_too_short_to_show_that_more_gets_through_than_in_proportion():
    """6.25 of its delays at 160x wait at 1000x, whatever a residual that is not yet full makes it look like."""
    factors = candidates(reading=Reading("delay", horizon=100))
    for delay in (16, 20):
        factors.judge(share_of(delay), 1 / factors.factor)
    assert [1 / gain - 1 for gain in factors.gains[3:]] == pytest.approx([0.16, 1.0])


@pytest.mark.parametrize(("share", "stays_at"), [(0.2, 160), (0.18, 160), (0.14, 40), (0.04, 40)])
def test_a_gain_that_falls_once_residuals_are_full_steps_back(share: float, stays_at: float):
    factors = candidates(least_gain=0.05)
    factors.shares, factors.seconds = [0.9, 0.8, 0.6, 0.2, 0.03], [0.9, 0.6, 0.35, 0.1, 0.1]
    factors.index, factors.frozen = 3, True
    assert factors.reconsider(share, 1.0) == (stays_at < 160)
    assert factors.factor == stays_at


def test_a_gain_that_becomes_too_small_steps_back_though_nothing_is_faster():
    factors = candidates(least_gain=0.1)
    factors.shares, factors.seconds = [0.9, 0.8, 0.6, 0.2, nan], [9.0, 7.0, 7.0, 0.01, nan]
    factors.index, factors.frozen = 3, True
    assert factors.reconsider(0.09, 1.0)
    assert factors.factor == 20


def test_a_factor_that_was_stepped_back_to_is_watched_though_it_was_not_tried():
    factors = geometric()
    assert factors.judge(share_of(10), 1.0) == "try 80x"
    factors.judge(share_of(20), 0.9)
    factors.explore()
    factors.step_back()
    assert not factors.reconsider(share_of(DELAYS[factors.factor]), 1.0)
    assert factors.frozen


def test_where_the_factor_that_was_begun_with_gains_too_little_in_the_end_a_smaller_one_is_tried():
    factors = candidates(least_gain=0.1)
    factors.shares[2], factors.seconds[2] = 0.2, 1.0
    factors.index, factors.frozen = 2, True
    assert factors.reconsider(0.09, 1.0)
    assert (factors.factor, factors.frozen) == (20, False)


@pytest.mark.parametrize(("compute_s", "link_s", "stays_at"), [(0.1, 40.0, 80), (1.0, 0.0, 10)])
def test_where_steps_take_longer_the_search_goes_to_the_largest_factor_at_once(
    compute_s: float, link_s: float, stays_at: float
):
    """And back, where it was not the link that became slower, but the machine."""
    factors = geometric()
    tried(factors, lambda f: 0.1, lambda f: share_of(DELAYS[f]))
    assert (factors.factor, factors.compute_s) == (10, pytest.approx(0.1))
    factors.explore()
    assert tried(factors, lambda f: compute_s + link_s / f, lambda f: share_of(DELAYS[f])) == [10, 80]
    assert factors.factor == stays_at


@pytest.mark.parametrize("reading", READINGS)
def test_readings_of_the_gain_are_one_measurement(reading: Gain):
    shares = [0.0, 0.01, 0.05, 0.5, 1.0]
    read = gw.GraVAC(gain=reading)._reading
    gains = [read.of(share) for share in shares]
    assert all(a < b for a, b in pairwise(gains))
    assert (gains[0], gains[-1]) == (0, 1)
    assert [read.share(gain) for gain in gains] == pytest.approx(shares)
    assert read.share(read.least) == pytest.approx(1 / (1 + 600 * 8 / 7) if reading == "delay" else LEAST_ENERGY)


def test_it_finds_the_factor_of_the_greatest_gain_per_second(clock):
    """A step costs 1 and what is sent; gains fall with the factor."""
    running = controlled(gain="norm", min_gain=0.05)
    for number in range(60):
        clock.step_s = 1 + 30 / factor(running)
        run(running, range(number, number + 1))
    controller = running.controllers[0]
    assert len({decision.factor for decision in controller.decisions}) > 1
    assert controller._factors.frozen
    assert [other.decisions for other in running.controllers] == [controller.decisions] * 2
    for decision in controller.decisions:
        assert decision.throughput == pytest.approx(decision.gain / (1 + 30 / decision.factor), rel=0.01)
    throughputs = controller._factors.throughputs
    assert throughputs[controller._factors.index] >= 0.99 * max(throughputs)
    running.close()


def test_what_was_sent_is_what_is_reported():
    running = controlled(max_factor=4)
    before = total(running.state("residual"))
    assert all(not left.any() for left in before)
    run(running, range(9))
    first = running.controllers[0].decisions[0]
    assert first.factor == pytest.approx(4, rel=0.01)
    # nothing is left of what was sent in the last step
    for left in running.state("residual"):
        sent = sum(int((of_slot == 0).sum()) for of_slot in left)
        assert sum(slot.numel for slot in SLOTS) / sent == pytest.approx(first.factor, rel=0.01)
    running.close()


def test_a_factor_whose_gain_is_too_small_is_sent_for_a_step_at_most(clock):
    running = controlled(gain="energy", min_gain=0.53, scaling="geometric")
    for number in range(40):
        clock.step_s = factor(running) ** -2
        run(running, range(number, number + 1))
    assert factor(running) == 4
    assert "8x gains too little: stay at 4x" in [d.decision for d in running.controllers[0].decisions]
    assert all(not d.factor or d.factor < 6 for d in running.controllers[0].decisions)
    running.close()


@pytest.mark.parametrize("drop", [48, 51, 54])
def test_a_slower_link_is_answered_within_a_window(clock, drop: int):
    """Wherever in a window it gets slower, a window later a larger factor is in force."""
    running = controlled(max_factor=16, min_gain=0.01)
    run(running, range(drop))
    assert running.controllers[0]._factors.frozen
    before = factor(running)
    clock.step_s = 20.0
    run(running, range(drop, drop + 8))
    assert "steps take longer" in "".join(d.decision for d in running.controllers[0].decisions)
    assert factor(running) > before
    running.close()


@pytest.mark.parametrize(("sent", "slower"), [(10, True), (11, True), (20, False), (800, False)])
def test_steps_that_send_more_for_their_gain_are_no_slower_link(sent: int, slower: bool):
    """Of 800 elements; at 80x a step sends 10 and takes 1 s, and here 2."""
    controller = gw.GraVAC(window=8)
    controller._reference = gravac.Reference(share=0.05, seconds=1.0, rate=0.1, factor=80.0)
    for _ in range(4):
        controller._window.add(Observed(1.0, 0.05, 0.05, sent, 800, 2.0, 0.1, 0.0, 0))
    assert controller._steps_take_longer() == slower


@pytest.mark.parametrize("drop", [6, 10, 14, 18, 22])
def test_a_link_that_gets_slower_during_the_search_is_answered_after_it(clock, drop: int):
    """In the end it stays where it would had the link been slow from the start."""
    found = []
    for slow_from in (0, drop):
        running = controlled(gain="energy", min_gain=0.01)
        for number in range(64):
            clock.step_s = 1 + (40 if number >= slow_from else 0.4) / factor(running)
            run(running, range(number, number + 1))
        found.append(factor(running))
        running.close()
    # the next factor may promise as much
    assert 4 < found[0] == pytest.approx(found[1], rel=0.3)


def test_a_link_that_recovers_before_the_first_window_after_a_search_is_noticed(clock):
    running = controlled(gain="energy", min_gain=0.01)
    for number in range(64):
        searching = not running.controllers[0]._factors.frozen
        clock.step_s = 1 + (40 if searching else 0.4) / factor(running)
        run(running, range(number, number + 1))
        if "less long" in "".join(d.decision for d in running.controllers[0].decisions):
            break
    else:
        pytest.fail("not noticed")
    running.close()


def test_delays_that_fall_to_half_are_noticed(clock):
    """Gradients that few elements hold: what waits is less."""
    running = controlled(gain="energy", min_gain=0.4, max_factor=16)
    for number in range(80):
        clock.step_s = 1 + 40 / factor(running)
        grads = draw(SLOTS, 2, number)
        if number > 48:
            grads = [[g * g.abs() ** 4 for g in own] for own in grads]
        running.step(grads)
    said = [d.decision for d in running.controllers[0].decisions]
    (rose,) = [text for text in said if text.startswith("the gain rose")]
    assert rose.startswith("the gain rose: explore from")
    assert factor(running) == 16
    running.close()


@pytest.mark.parametrize("rate", [0.05, 0.01])
def test_it_explores_when_the_learning_rate_drops_to_half_or_less(rate: float):
    schedule = Schedule()
    running = controlled(scheduler=schedule, max_factor=16, min_gain=0.01)
    run(running, range(30))
    assert running.controllers[0]._factors.frozen
    schedule.rate = rate
    run(running, range(30, 32))
    assert not running.controllers[0]._factors.frozen
    assert factor(running) == 4
    assert running.controllers[0].decisions[-1].decision == "the learning rate dropped: explore from 4x"
    # once: the rate is compared with this one from now on
    run(running, range(32, 36))
    assert sum("dropped" in each.decision for each in running.controllers[0].decisions) == 1
    running.close()


def test_a_sudden_rise_of_the_loss_steps_back_and_says_so(caplog, clock):
    running, factors = controlled(min_gain=0.01), list[float]()
    with caplog.at_level(logging.WARNING, "gradwire"):
        for number in range(40):
            for controller in running.controllers:
                controller.report(1.0 if number < 28 else 9.0)
            clock.step_s = 1 / factor(running)
            run(running, range(number, number + 1))
            factors.append(factor(running))
    assert "the loss rose from 1 to" in caplog.text
    assert "step back to" in caplog.text
    assert factors[-1] < factors[27]
    running.close()


def test_a_loss_on_a_gpu_is_noted_as_it_was_without_waiting_for_it():
    controller = gw.GraVAC()
    with pretended_cuda() as gpu, torch.no_grad():
        numbers = on_gpu(torch.zeros(controller.numbers))
        for number in (2.0, 5.0):
            loss = on_gpu(torch.tensor(number))
            controller.report(loss)
            loss.mul_(0)
        controller.observe(StepView(0, [], 0, 0.0), numbers)
        assert not gpu.syncs
    assert real(numbers)[7:].tolist() == [3.5, 1]


def test_losses_that_no_step_observes_take_no_memory_and_are_not_those_of_the_next_step():
    controller = gw.GraVAC()
    controller.meet(SLOTS, 2)
    with pretended_cuda(), torch.no_grad():
        numbers, loss = on_gpu(torch.zeros(controller.numbers)), on_gpu(torch.tensor(9.0))
        # with one rank, after detach() and under a native plan nothing observes
        controller.report(loss)
        before = tensors_alive()
        for _ in range(20):
            controller.report(loss)
        assert tensors_alive() == before
        # a new plan's first step has its own loss alone
        controller.begin(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()))
        controller.report(on_gpu(torch.tensor(1.0)))
        controller.observe(StepView(0, [], 0, 0.0), numbers)
    assert real(numbers)[7:].tolist() == [1, 1]


def tensors_alive() -> int:
    gc.collect()
    return sum(issubclass(type(each), Tensor) for each in gc.get_objects())


def test_the_guard_knows_noise_from_a_rise():
    guard = Guard()
    assert guard.notice(1.0, 0.1, 3.0) is None
    assert guard.notice(1.4, 0.1, 3.0) is None, "3 standard errors of either alone, not of both"
    assert guard.notice(2.0, 0.1, 3.0)
    assert guard.notice(nan, 0.0, 13.0)
    guard.changed()
    assert guard.notice(nan, 0.0, 100.0) is None


@pytest.mark.parametrize("cut", [5, 13, 30])
def test_a_run_that_was_cut_within_a_window_goes_on_bit_for_bit(cut: int):
    whole, first, second = (running.controllers[0] for running in check_goes_on(controlled, run, cut, 44))
    assert first.decisions + second.decisions == whole.decisions


def test_steps_of_more_ranks_before_take_as_long_as_those_of_fewer_after():
    before, after = controlled(4), controlled(2)
    run(before, range(6))
    after.load(gw.reshard(before.states(), 2))
    run(after, range(6, 7))
    rows = after.controllers[0]._window.rows  # pyright: ignore
    assert [row.seconds for row in rows[1:6]] == [1.0] * 5
    assert {row.elements for row in rows[:6]} == {sum(slot.numel for slot in SLOTS)}
    for running in (before, after):
        running.close()


@pytest.mark.parametrize(
    "saved", [{"min_factor": 5, "max_factor": 500}, {"scaling": "exponential"}, {"max_factor": 10}]
)
def test_a_state_of_a_search_over_other_factors_is_refused(saved: dict[str, Any]):
    """Also where there are as many: what was measured of 20x would count as that of 10x."""
    controller = gw.GraVAC()
    before = controller.state_dict()
    with pytest.raises(
        ValueError, match=r"saved with the factors .*, these are 10x, 12\.6x, 15\.8x to 1000x: pass the same min_"
    ):
        controller.load_state_dict(gw.GraVAC(**saved).state_dict())
    assert all(
        a.allclose(b, equal_nan=True) for a, b in zip(before.values(), controller.state_dict().values(), strict=True)
    )


def test_what_was_measured_of_another_plan_does_not_count():
    """The factor in force stays, and is where the search begins."""
    running = controlled()
    run(running, range(13))
    before = factor(running)
    given = running.controllers[0]._origin  # pyright: ignore
    running.install(gw.Plan(given.groups[::-1]))
    for controller in running.controllers:
        assert not controller._window.rows  # pyright: ignore
        assert not controller._factors.tried  # pyright: ignore
    assert factor(running) == before
    run(running, range(13, 22))
    assert len(running.controllers[0]._factors.tried) == 1  # pyright: ignore
    running.close()


def test_a_state_of_0_2_0_is_refused():
    state = gw.GraVAC().state_dict()
    with pytest.raises(ValueError, match="pass the same min_factor, max_factor and scaling"):
        gw.GraVAC().load_state_dict(state | {"search": state["search"][:19]})


@pytest.mark.parametrize("before", [-10.0, 0.0, 10.0])
def test_a_loss_may_be_negative(before: float):
    guard = Guard()
    guard.notice(before, 0.001, 3.0)
    assert guard.notice(before + 0.002, 0.001, 3.0) is None
    assert guard.notice(before + 3.0, 0.001, 3.0)


def test_ranks_with_gradients_that_are_not_finite_go_on_alike():
    running = controlled(3)
    for number in range(20):
        grads = draw(SLOTS, 3, number)
        if number % 4 == 1:
            grads[number % 3][0][0, 0] = nan
        running.step(grads)
    assert len({repr(c._window.rows) for c in running.controllers}) == 1
    assert len(running.controllers[0].decisions) == 1
    running.close()


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("use e.g. GraVAC(min_factor=10, max_factor=1000)", lambda: gw.GraVAC(100, 10)),
        ("use e.g. GraVAC(min_factor=10, max_factor=1000)", lambda: gw.GraVAC(0.5, 10)),
        ("use 4 or more", lambda: gw.GraVAC(window=1)),
        ("it lies in [0, 1]", lambda: gw.GraVAC(min_gain=2)),
        ("it lies in (0, 1]", lambda: gw.GraVAC(smoothing=0)),
    ],
)
def test_options_that_make_no_sense_are_refused(text, make):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("use attach(ddp, TopK(0.1), controller=GraVAC())", (gw.PowerSGD(2), gw.Residual(), gw.AllReduce())),
        ("use memory=Residual()", (gw.TopK(0.1), gw.NoMemory(), gw.AllGather())),
        ("leave communicator= out", (gw.TopK(0.1), gw.Residual(), gw.ScatterReduce())),
    ],
)
def test_what_gives_no_norms_is_refused_when_attached(text, parts):
    with pytest.raises(ValueError, match=re.escape(text)):
        gw.GraVAC().check(plan_of(SLOTS, *parts))
