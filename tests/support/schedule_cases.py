"""Random scheduling problems, and the plan that trying all of them finds."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from benchmarks.scheduler.compute_stream import ComputeStream
from gradwire.schedule.costs import ZERO_COST, Affine, Cost, CostTable
from gradwire.schedule.problem import GroupChoice, Option, Problem, assemble
from gradwire.schedule.regimes import Regime, Worker
from gradwire.schedule.search import evaluate
from tests.support.regimes import OwnStream, SideStream

REGIMES = [ComputeStream(), OwnStream(), SideStream(), Worker(), Worker(0.4)]


def random_cost(rng: np.random.Generator, per_unit: float) -> Cost:
    """Affine, flat and then linear, or any that does not fall."""
    fixed, slope = rng.exponential(1.0), rng.exponential(per_unit)
    shape = rng.integers(3)
    if shape == 0:
        return Affine(fixed, slope)
    if shape == 1:
        return CostTable((0.0, 30.0, 60.0), (fixed, fixed, fixed + 30 * slope))
    sizes = np.sort(rng.choice(np.arange(1, 120), 6, replace=False))
    return CostTable.of(sizes.astype(float), np.cumsum(rng.exponential(20 * per_unit, 6)))


def random_problem(seed: int, most: int = 14) -> Problem:
    """Up to `most` slots and three options; the first is lossless, and half of the problems have small slots."""
    rng = np.random.default_rng(seed)
    n, options = [(most, 1), (most - 4, 2), (most - 6, 3)][rng.integers(3)]
    n = int(rng.integers(1, n + 1))
    small = rng.random(n) < rng.choice([0.0, 0.4])
    units = rng.integers(1, 9, n).astype(float)
    return Problem(
        ready_s=np.cumsum(rng.exponential(1.0, n)),
        elements=rng.integers(1, 30, n).astype(float),
        small=small,
        options=tuple(
            Option(
                encode=random_cost(rng, 0.05) if option or rng.random() < 0.5 else ZERO_COST,
                wire=random_cost(rng, 0.1),
                local=random_cost(rng, 0.05) if rng.random() < 0.5 else ZERO_COST,
                decode=random_cost(rng, 0.03) if rng.random() < 0.7 else ZERO_COST,
                lossless=option == 0,
                units=units if option == 2 else None,
            )
            for option in range(options)
        ),
        around_s=float(rng.exponential(2.0)),
    )


def filled(problem: Problem) -> Problem:
    """The problem, in which the first option carries small slots alone."""
    first, *others = problem.options
    return replace(problem, options=(replace(first, filler=True), *others))


def all_plans(problem: Problem) -> Iterator[tuple[GroupChoice, ...]]:
    """Every way to cut the pieces and to choose an option for each piece."""
    n, options = problem.pieces, problem.chosen_from
    for inner in product((False, True), repeat=n - 1):
        ends = [*(end for end, cut in enumerate(inner, 1) if cut), n]
        for chosen in product(options, repeat=len(ends)):
            yield assemble(problem, list(zip(ends, chosen, strict=True)))


def brute_force(problem: Problem, regime: Regime) -> float:
    """The shortest step of all plans, each of them played through."""
    return min(evaluate(problem, plan, regime).step_s for plan in all_plans(problem))


def pieces(problem: Problem, groups: tuple[GroupChoice, ...]) -> bool:
    """Whether every slot is in exactly one group."""
    names = sorted(slot for group in groups for slot in group.slots)
    return names == list(range(len(problem.small))) and all(a < b for g in groups for a, b in pairwise(g.slots))
