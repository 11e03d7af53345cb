"""Progress per second: what a plan's steps are worth in dense ones, over their seconds, and the plan with the most."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradwire.schedule.problem import Choice, Problem
from gradwire.schedule.regimes import Regime
from gradwire.schedule.search import Solution, search

ALIKE = 1.03
"""Rates of progress within this factor of each other are noise."""
SAME_WORTH = 1.01
"""So are what steps are worth, for the search."""


def worth_of(problem: Problem, groups: Sequence[Choice]) -> float:
    """What a step with these groups is worth in dense ones: delays count by elements, and where a group harms training
    nothing is left."""
    worths = np.array([problem.options[group.option].worth for group in groups])
    elements = np.array([problem.elements[list(group.slots)].sum() for group in groups])
    return float(elements.sum() / (elements / worths).sum()) if worths.all() else 0.0


def most(rates: Sequence[float], worths: Sequence[float]) -> int:
    """The index of the greatest rate of progress; of those that noise cannot tell from it, of the one that keeps most
    of a step."""
    near = [index for index, rate in enumerate(rates) if ALIKE * rate >= max(rates)]
    return max(near, key=lambda index: (worths[index], rates[index]))


def search_progress(problem: Problem, regime: Regime, eps: float = 0.0, known: Sequence[Solution] = ()) -> Solution:
    """The plan with the most progress per second: of the `known` ones and, for every worth that an option has, of the
    shortest step whose options are worth as much or more, each searched to within a factor of 1 + eps."""
    found = [*known, *(search_worth(problem, regime, eps, least) for least in levels(problem))]
    worths = [worth_of(problem, each.groups) for each in found]
    return found[most([worth / each.step_s for worth, each in zip(worths, found, strict=True)], worths)]


def levels(problem: Problem) -> list[float]:
    """What to ask for at least: one of those that are alike, and nothing that harms training."""
    levels: list[float] = []
    for worth in sorted({option.worth for option in problem.options if option.worth}):
        if not levels or worth > SAME_WORTH * levels[-1]:
            levels.append(worth)
    return levels or [0.0]


def search_worth(problem: Problem, regime: Regime, eps: float, least: float) -> Solution:
    """The shortest step of options that are worth so much, to within a factor of 1 + eps."""
    kept = [index for index, option in enumerate(problem.options) if option.worth >= least]
    found = search(replace(problem, options=tuple(problem.options[index] for index in kept)), regime, eps)
    return replace(found, groups=tuple(replace(group, option=kept[group.option]) for group in found.groups))
