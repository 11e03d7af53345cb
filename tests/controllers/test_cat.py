"""CAT: the choice alone, and at work on ranks whose clocks the tests wind."""

import re
from math import isnan
from typing import Literal, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gradwire as gw
from gradwire.controllers import cat
from gradwire.controllers.cat import REVISIT_STEPS, Costs, FactorStats, fit, rates, share_at
from gradwire.controllers.gain import LEAST_ENERGY, Gain, Reading
from tests.support.going_on import check_goes_on
from tests.support.harness import Clock, Job, draw, plan_of, slots_of

SLOTS = slots_of({"first.weight": torch.empty(60, 50), "second.weight": torch.empty(40, 30)})
ALPHA_S, BETA_S = 1.0, 1 / 64


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    yield from Clock.wound(monkeypatch, cat)


def controlled(world: int = 2, bits: Literal[32, 4] = 32, **options) -> Job:
    plan = plan_of(SLOTS, gw.TopK(0.1, bits), gw.Residual(), gw.AllGather())
    options = {"min_factor": 4, "max_factor": 64} | options
    return Job(plan, SLOTS, world, controllers=[gw.CAT(**options) for _ in range(world)])


def run(running: Job, numbers: range, beta_s: float = BETA_S) -> list[list[Tensor]]:
    """Steps that take as long as the factor in force says; each rank's gradients are of another size."""
    means = []
    for number in numbers:
        Clock.step_s = ALPHA_S + beta_s * 4200 / running.controllers[0].factor
        grads = draw(SLOTS, running.world, number)
        for rank, own in enumerate(grads):
            for grad in own:
                grad.mul_(10.0**rank)
        by_rank = running.step(grads)
        assert all(torch.equal(a, b) for other in by_rank for a, b in zip(by_rank[0], other, strict=True))
        assert len({controller.factor for controller in running.controllers}) == 1
        means.append(by_rank[0])
    return means


@given(
    shares=st.lists(st.floats(0.05, 0.9), min_size=4, max_size=4),
    alpha=st.floats(1e-3, 1),
    beta=st.floats(1e-9, 1e-4),
)
def test_a_factor_promises_its_gain_per_second(shares, alpha, beta):
    factors, energies = (10, 20, 40, 80), [1 / (1 + sum(shares[: i + 1])) for i in range(4)]
    known = {1.0: 1.0} | dict(zip(factors, energies, strict=True))
    promised = rates(factors, known, Costs(alpha, beta, 1e6), Reading("energy"))
    for rate, factor, energy in zip(promised, factors, energies, strict=True):
        assert rate == pytest.approx(energy / (alpha + beta * 1e6 / factor))


def test_what_holds_too_little_is_not_chosen():
    known = {1.0: 1.0, 10.0: 0.01, 1000.0: LEAST_ENERGY / 2}
    assert rates((10, 1000), known, Costs(0, 1, 1e6), Reading("energy")) == pytest.approx([0.01 / 1e5, 0])


def test_gains_between_levels_follow_a_power_law():
    known = {1.0: 1.0, 10.0: 0.5, 1000.0: 0.005}
    assert [share_at(factor, known) for factor in (1, 10, 100, 1000)] == pytest.approx([1, 0.5, 0.05, 0.005])
    assert share_at(10000, known) == pytest.approx(0.0005)


@pytest.mark.parametrize(
    ("samples", "line"),
    [
        ([(1, 3), (2, 5), (4, 9)], (1, 2)),
        ([(1, 3), (2, 2)], (2.5, 0)),
        ([(1, 1), (2, 3)], (0, 7 / 5)),
        ([(2, 3), (2, 5)], (4, 0)),
    ],
)
def test_alpha_and_beta_are_never_below_zero(samples, line):
    assert fit(samples) == pytest.approx(line)


def assert_best(controller: gw.CAT, step: int, beta_s: float) -> None:
    """No other factor promises more, by what was seen and these seconds, than it may before it is taken."""
    _, known = controller._model(step, 0.0, 0.0)

    def rate(factor: float) -> float:
        return controller._reading.of(share_at(factor, known)) / (ALPHA_S + beta_s * 4200 / factor)

    assert rate(controller.factor) >= max(map(rate, controller._factors)) / (1 + 2 * cat.TOLERANCE)


@pytest.mark.parametrize("gain", get_args(Gain))
@pytest.mark.parametrize("beta_s", [0.0, BETA_S, 10.0])
def test_it_sends_what_brute_force_finds(beta_s: float, gain: Gain):
    """Of what was seen at all factors; within the tolerance in which it stays."""
    running = controlled(3, gain=gain)
    run(running, range(40), beta_s)
    controller = running.controllers[0]
    assert_best(controller, 39, beta_s)
    if gain != "delay" or beta_s:  # at one price for all, its gains are all within the tolerance
        assert controller.factor == 4 if beta_s == 0 else controller.factor > 4
    assert [other.decisions for other in running.controllers] == [controller.decisions] * 3
    running.close()


@pytest.mark.parametrize("bits", [32, 4])
def test_bytes_are_those_of_the_payloads(bits: Literal[32, 4]):
    """Those of levels do not fall as elements do, for they have the scales of all."""
    running = controlled(bits=bits)
    run(running, range(40))
    controller, plan = running.controllers[0], running.runtimes[0].plan
    sizes = [sum(slot.numel for slot in SLOTS if slot.name in group.slots) for group in plan.groups]
    expected = {f: sum(gw.TopK(1 / f, bits).payload_bytes(n) for n in sizes) for f in controller._factors}
    for factor, seen in zip(controller._factors, controller._shown, strict=True):
        assert isnan(seen.wire_bytes) or seen.wire_bytes == expected[factor]
    costs, _ = controller._model(39, expected[4], expected[64])
    for factor in (4, 64):
        assert costs.seconds(factor) == pytest.approx(costs.alpha + costs.beta * expected[factor])
    running.close()


@pytest.mark.parametrize("before_s", [0.0, BETA_S, 1.0])
def test_a_slower_link_is_answered_at_once(before_s: float):
    """Soon it sends what brute force finds for the link as it is, whatever it had learnt of it before."""
    running = controlled()
    run(running, range(40), before_s)
    run(running, range(40, 80), beta_s=10.0)
    assert_best(running.controllers[0], 79, 10.0)
    running.close()


def test_a_single_slow_step_changes_nothing():
    running = controlled()
    run(running, range(40))
    before = len(running.controllers[0].decisions)
    for number in range(40, 80, 10):
        run(running, range(number, number + 3), beta_s=10.0)
        run(running, range(number + 3, number + 10))
    assert len(running.controllers[0].decisions) == before
    running.close()


def test_a_step_that_takes_longer_for_its_bytes_is_not_slower():
    """As where a group that gains too little sends everything."""
    before = FactorStats(share=0.5, seconds=1.0, wire_bytes=1000.0, step=0)
    assert [before.slower(1.4, 1000.0), before.slower(1.2, 1000.0), before.slower(1.4, 2000.0)] == [True, False, False]


def test_what_was_measured_long_ago_does_not_count_and_both_ends_are_measured_again():
    controller, now = gw.CAT(4, 64), 2 * REVISIT_STEPS
    controller._shown = [FactorStats(0.9, 2.0, 8000.0, now - REVISIT_STEPS) for _ in controller._factors]
    first, *_, last = controller._shown
    last.seconds, last.wire_bytes, last.share = 1.0, 500.0, 0.2
    assert controller._next(now, 8000.0, 500.0)[1] != "measure"
    assert controller._next(now + 1, 8000.0, 500.0) == (0, "measure")
    first.step = now
    assert controller._next(now + 1, 8000.0, 500.0) == (len(controller._factors) - 1, "measure")
    last.step, controller._shown[1].seconds = now, 100.0
    costs, known = controller._model(now + 1, 8000.0, 500.0)
    assert known == {1: 1, 4: 0.9, 64: 0.2}
    assert (costs.seconds(4), costs.seconds(64)) == pytest.approx((2, 1))


def test_seconds_are_those_of_the_bytes_a_step_before_and_the_first_of_a_factor_do_not_count():
    plan, controller = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), gw.CAT(4, 64)
    plan = controller.begin(plan)
    for step, (seconds, sent) in enumerate([(100, 10), (100, 20), (1, 30)]):
        # whole, first, second, seconds, sent, most, least, elements, chosen
        sums = torch.tensor([1, 0.5, 0.5, seconds, sent, 30, 10, 100, 50])
        assert controller.decide(gw.Observation(step, step + 2, plan, SLOTS, 0, 1, 1, sums)) is None
    shown = controller._shown[0]
    assert (shown.seconds, shown.wire_bytes, shown.step) == (1, 20, 2)


def test_steps_that_all_ranks_skip_show_nothing():
    running = controlled()
    run(running, range(10))
    before = repr(running.controllers[0]._shown)
    grads = draw(SLOTS, 2, 0)
    grads[1][0][0, 0] = torch.nan
    running.step(grads)
    assert repr(running.controllers[0]._shown) == before
    running.close()


def test_a_selection_of_zeros_alone_is_no_error():
    """RandomK may draw coordinates none of which has a gradient, in the very step in which the factor changes."""
    controller = gw.CAT()
    plan = controller.begin(plan_of(SLOTS, gw.RandomK(0.1), gw.Residual(), gw.AllReduce()))
    sums = torch.tensor([1.0, 0.5, 0.3, 1.0, 100, 400, 40, 1000, 0])  # the last is the count of what is not zero
    for step in range(6):
        controller.decide(gw.Observation(step, step + 1, plan, SLOTS, 0, 2, 2, sums))
    assert controller.decisions


@pytest.mark.parametrize("cut", [2, 5, 9])
def test_a_run_that_was_cut_goes_on_bit_for_bit(cut: int):
    whole, first, second = (running.controllers[0] for running in check_goes_on(controlled, run, cut, 20))
    assert [d.decision for d in first.decisions + second.decisions] == [d.decision for d in whole.decisions]


@pytest.mark.parametrize("saved", [(10, 1000), (5, 50)])
def test_a_state_of_other_factors_is_refused(saved: tuple[float, float]):
    """Also where there are as many: what was measured of 20x would count as that of 40x."""
    with pytest.raises(ValueError, match=r"these are 10x, 20x, 40x to 100x: pass the same min_factor and max_factor"):
        gw.CAT(10, 100).load_state_dict(gw.CAT(*saved).state_dict())


def test_what_was_measured_of_another_plan_does_not_count():
    running = controlled()
    run(running, range(20))
    factor, given = running.controllers[0].factor, running.controllers[0]._origin  # pyright: ignore
    running.install(gw.Plan(given.groups[::-1]))
    for controller in running.controllers:
        assert all(isnan(shown.seconds) for shown in controller._shown)  # pyright: ignore
        assert (controller.factor, controller._stayed) == (factor, 0)  # pyright: ignore
    run(running, range(20, 40))
    running.close()


@pytest.mark.parametrize("factors", [(100, 10), (0.5, 10), (10, 10)])
def test_factors_out_of_order_are_refused(factors):
    with pytest.raises(ValueError, match=re.escape("use e.g. CAT(min_factor=10, max_factor=1000)")):
        gw.CAT(*factors)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("use attach(ddp, TopK(0.1), controller=CAT())", (gw.PowerSGD(2), gw.Residual(), gw.AllReduce())),
        ("of gradient and residual; use memory=Residual()", (gw.TopK(0.1), gw.NoMemory(), gw.AllGather())),
        ("DGCMemory keeps no momentum; use memory=Residual()", (gw.TopK(0.1), gw.DGCMemory(), gw.AllGather())),
    ],
)
def test_what_gives_no_levels_is_refused_when_attached(text, parts):
    with pytest.raises(ValueError, match=re.escape(text)):
        gw.CAT().check(plan_of(SLOTS, *parts))


def test_factors_that_come_and_go_share_their_buffers():
    running = controlled()
    stored = running.runtimes[0]._steps.store.groups[0]
    run(running, range(30))
    assert len(running.controllers[0].decisions) > 1
    assert running.runtimes[0]._steps.store.groups[0].buffers is stored.buffers
    payloads = [name for name in stored.buffers._tensors if "send" in name or "receive" in name]
    assert len(payloads) <= 2
    running.close()
