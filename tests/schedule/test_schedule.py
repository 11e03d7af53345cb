"""The search against brute force, in every regime, and the baselines against the search."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np
import pytest

from benchmarks.scheduler import peers
from benchmarks.scheduler.compute_stream import ComputeStream
from gradwire.schedule import Affine, CostTable, Option, Problem, Worker, baselines, evaluate, search
from gradwire.schedule.bounds import least_slope
from gradwire.schedule.costs import theil_sen
from tests.support.schedule_cases import REGIMES, brute_force, filled, pieces, random_problem

RULES = [
    baselines.layer_wise, baselines.one_group, baselines.buckets, baselines.best_buckets, peers.best_even_split,
    peers.cupcake,
]  # fmt: skip


@pytest.mark.parametrize("regime", [*REGIMES, Worker(0.5)], ids=str)
def test_the_search_equals_brute_force(regime):
    for seed in range(5):
        problem = random_problem(seed, most=8)
        found = search(problem, regime)
        assert found.step_s == pytest.approx(brute_force(problem, regime), rel=1e-9), seed
        assert found.bound == 1
        assert pieces(problem, found.groups)
        assert evaluate(problem, found.groups, regime).step_s == found.step_s


@pytest.mark.parametrize("regime", [Worker(), Worker(0.4)], ids=str)
def test_what_fills_up_carries_small_slots_alone(regime):
    problems = (random_problem(seed, most=8) for seed in range(30))
    problems = [
        filled(each) for each in problems if len(each.options) > 1 and each.small.any() and not each.small.all()
    ]
    assert len(problems) >= 5
    for problem in problems:
        found = search(problem, regime)
        assert found.step_s == pytest.approx(brute_force(problem, regime), rel=1e-9)
        assert pieces(problem, found.groups)
        assert all(problem.small[list(group.slots)].all() for group in found.groups if group.option == 0)


@pytest.mark.parametrize("eps", [0.01, 0.2])
@pytest.mark.parametrize("regime", REGIMES, ids=str)
def test_the_printed_bound_holds(regime, eps):
    for seed in range(3):
        problem = random_problem(seed, most=9)
        found = search(problem, regime, eps)
        assert found.bound <= 1 + eps + 1e-9
        assert found.step_s <= found.bound * search(problem, regime).step_s * (1 + 1e-9)


@pytest.mark.parametrize("regime", REGIMES, ids=str)
def test_no_baseline_beats_the_search(regime):
    for seed in range(3):
        problem = random_problem(seed, most=12)
        best = search(problem, regime).step_s
        for option in range(len(problem.options)):
            for rule in RULES:
                found = rule(problem, regime, option)
                assert pieces(problem, found.groups)
                assert found.step_s >= best * (1 - 1e-9)


def affine_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    option = Option(Affine(*rng.exponential([0.5, 0.05])), Affine(*rng.exponential([1, 0.1])), Affine())
    return Problem(np.cumsum(rng.exponential(1, n)), rng.integers(1, 30, n) * 1.0, np.zeros(n, bool), (option,))


def test_cupcakes_algorithm_is_optimal_under_its_own_model():
    for seed in range(5):
        problem = affine_problem(seed)
        found = peers.cupcake(problem, ComputeStream(), 0)
        assert found.step_s == pytest.approx(search(problem, ComputeStream()).step_s, rel=1e-9)


def test_small_slots_travel_losslessly():
    for seed in range(30):
        problem = random_problem(seed)
        for group in search(problem, Worker(), eps=0.1).groups:
            assert problem.options[group.option].lossless or not problem.small[list(group.slots)].any()


def test_what_is_deferred_follows_the_last_slot():
    problem = random_problem(13, most=16)  # the last group but one is ready after the small slots that it left
    best = brute_force(problem, ComputeStream())
    assert search(problem, ComputeStream()).step_s == pytest.approx(best, rel=1e-9)


def test_what_is_deferred_goes_the_way_that_takes_least_in_all():
    """A cast is the fastest on the wire, and may take longer to make than it saves."""
    lossy = Option(Affine(), Affine(1.0), Affine())
    for cast_s, chosen in ((2.0, 1), (0.1, 2)):
        dense = Option(Affine(), Affine(0.0, 4.0), Affine(), lossless=True)
        cast = Option(Affine(0.0, cast_s), Affine(0.0, 2.0), Affine(0.0, cast_s), lossless=True)
        problem = Problem(np.zeros(2), np.ones(2), np.array([False, True]), (lossy, dense, cast))
        assert problem.tail == chosen
    far = replace(dense, local=Affine(0.0, 9.0))
    assert replace(problem, options=(lossy, dense, far)).tail == 1


def test_small_slots_need_a_lossless_option():
    option = Option(Affine(), Affine(1.0), Affine())
    with pytest.raises(ValueError, match="FP32"):
        Problem(np.ones(1), np.ones(1), np.ones(1, bool), (option,))


def test_a_table_is_flat_then_linear():
    table = CostTable((10.0, 20.0), (1.0, 3.0))
    assert table(np.array([0, 10, 15, 20, 30.0])).tolist() == [1, 1, 2, 3, 5]
    assert CostTable.of(np.array([3.0, 1, 2]), np.array([2.0, 1, 4])).values == (1, 4, 4)


def test_one_slow_measurement_does_not_make_what_is_larger_cheap():
    table = CostTable.of(np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 4, 4]))
    assert float(table(np.array(104.0))) == pytest.approx(104)


@pytest.mark.parametrize("table", [CostTable((0.0, 3.0, 9.0), (1.0, 4.0, 6.0)), CostTable((2.0, 4.0), (1.0, 4.0))])
def test_a_table_grows_by_its_least_slope_or_more(table):
    size, more = np.meshgrid(np.linspace(0, 20, 41), np.linspace(0, 20, 41))
    assert (table(size + more) - table(size) >= least_slope(table) * more - 1e-12).all()


def test_costs_that_fall_are_refused():
    with pytest.raises(ValueError, match="never fall"):
        CostTable((1.0, 2.0), (2.0, 1.0))
    with pytest.raises(ValueError, match="never fall"):
        CostTable((1.0, 2.0), (1.0, float("nan")))
    with pytest.raises(ValueError, match="never"):
        Affine(-1.0, 0.0)


@pytest.mark.parametrize("make", [partial(Affine, inf), partial(Affine, 0.0, inf), partial(CostTable, (1.0,), (inf,))])
def test_infinite_costs_are_refused(make: Callable[[], object]):
    with pytest.raises(ValueError, match="finite"):
        make()


@pytest.mark.parametrize("eps", [0.0, 0.01])
def test_what_costs_nothing_takes_no_time(eps: float):
    free = Problem(np.zeros(3), np.ones(3), np.zeros(3, bool), (Option(Affine(), Affine(), Affine()),))
    found = search(free, Worker(), eps)
    assert (found.step_s, found.bound) == (0, 1)
    assert pieces(free, found.groups)


def test_the_line_through_points_survives_outliers():
    x = np.linspace(1, 100, 40)
    y = 3 + 0.5 * x
    y[::5] *= 10
    cost = theil_sen(x, y)
    assert cost.per_unit == pytest.approx(0.5)
    assert cost.fixed == pytest.approx(3)
    with pytest.raises(ValueError, match="two different sizes"):
        theil_sen(np.ones(3), np.ones(3))
