"""Ratios of plans' times by pairs of turns, and their intervals."""

import random
from math import inf, log

import pytest

from benchmarks.scheduler.noisy_choices import NOISES, Machine
from gradwire.tuner.pairs import WRONG, Ratio, _beyond


def test_fewer_than_five_pairs_have_no_interval():
    assert Ratio.of([0.0] * 4)[1:] == (0.0, inf, 4)
    assert Ratio.of([log(0.9), log(1.1)]).middle == pytest.approx(0.99**0.5)
    assert Ratio.of([log(r) for r in (0.9, 0.91, 0.88, 0.95, 0.92)])[1:3] == pytest.approx((0.88, 0.95))


@pytest.mark.parametrize("pairs", [5, 6, 7, 9])
def test_ends_are_where_wilcoxons_test_begins_to_reject(pairs: int):
    """By all signs that the ranks can have: the k least means lie above the truth as often as rank sums are below k."""
    sums = [sum(rank for rank in range(1, pairs + 1) if signs >> rank & 1) for signs in range(0, 2 ** (pairs + 1), 2)]
    ends = _beyond(pairs)
    assert sum(each < ends for each in sums) <= WRONG * len(sums) < sum(each <= ends for each in sums)


def test_one_spoilt_pair_of_ten_moves_an_interval_little():
    logs = [log(r) for r in (0.9, 0.91, 0.88, 0.89, 0.92, 0.9, 0.87, 0.91, 0.9)]
    for spoilt in (1.5, 10.0):
        ratio = Ratio.of([*logs, log(spoilt)])
        assert 0.87 < ratio.low < ratio.middle < ratio.high < 0.93


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_intervals_hold_the_truth_whatever_the_machine_does(noise):
    """Eight pairs of three steps, forwards and backwards in turn."""
    held = 0
    for seed in range(200):
        machine, true_s = Machine(noise, seed), {"a": 0.02, "b": 0.02 * 0.9}
        logs: list[float] = []
        for number in range(8):
            took: dict[str, float] = {}
            for plan in "ab"[:: 1 if number % 2 else -1]:
                took[plan] = sorted(machine.step(true_s[plan]) for _ in range(3))[1]
            logs.append(log(took["b"] / took["a"]))
        ratio = Ratio.of(logs)
        held += ratio.low <= 0.9 <= ratio.high
    assert held >= 0.87 * 200  # 90 % but for chance


def test_ratios_of_symmetric_noise_are_estimated_without_bias():
    draw = random.Random(0)
    found = [Ratio.of([log(1.1) + draw.gauss(0, 0.1) for _ in range(7)]).middle for _ in range(300)]
    assert sum(map(log, found)) / 300 == pytest.approx(log(1.1), abs=0.008)
