"""Progress per second, the statistical efficiency of a plan's steps over their seconds, and the plan with the most."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradwire.rules import joined
from gradwire.schedule.problem import GroupChoice, Problem
from gradwire.schedule.profile import Profile
from gradwire.schedule.regimes import Regime
from gradwire.schedule.search import Solution, evaluate, search

NOISE = 1.03
"""Rates of progress within this factor of each other are noise."""
SAME_EFFICIENCY = 1.01
"""Efficiencies within this factor of each other count as one, for the search."""


def plan_efficiency(problem: Problem, groups: Sequence[GroupChoice]) -> float:
    """The progress of a step with these groups, in dense steps: delays count by elements; 0 where a group harms
    training."""
    efficiencies = np.array([problem.options[group.option].efficiency for group in groups])
    elements = np.array([problem.elements[list(group.slots)].sum() for group in groups])
    return float(elements.sum() / (elements / efficiencies).sum()) if efficiencies.all() else 0.0


def best_index(rates: Sequence[float], efficiencies: Sequence[float]) -> int:
    """The index of the greatest rate of progress; of rates that noise cannot tell from it, that of the most
    efficient."""
    near = [index for index, rate in enumerate(rates) if NOISE * rate >= max(rates)]
    return max(near, key=lambda index: (efficiencies[index], rates[index]))


def search_profile(profile: Profile, regime: Regime, eps: float) -> Solution:
    """The plan with the most progress per second, to within a factor of 1 + eps. With several rules it is made of the
    best plan for each rule's slots, were they alone, and no bound is proven."""
    parts = profile.by_rule()
    if parts == [profile]:
        return search_progress(profile.problem(), regime, eps)
    plans = [part.plan(search_progress(part.problem(), regime, eps).groups) for part in parts]
    return evaluate(profile.problem(), profile.choices(joined(plans, profile.slots)), regime)


def search_progress(problem: Problem, regime: Regime, eps: float = 0.0, known: Sequence[Solution] = ()) -> Solution:
    """The plan with the most progress per second: of the `known` ones and, for every efficiency that an option has,
    of the shortest step whose options have as much or more, each searched to within a factor of 1 + eps."""
    # one search for every least efficiency; fast plans may be inefficient, and the other way round
    found = [*known, *(search_efficiency(problem, regime, eps, least) for least in efficiency_levels(problem))]
    efficiencies = [plan_efficiency(problem, each.groups) for each in found]
    rates = [efficiency / each.step_s for efficiency, each in zip(efficiencies, found, strict=True)]
    return found[best_index(rates, efficiencies)]


def efficiency_levels(problem: Problem) -> list[float]:
    """The least efficiencies to search with: the smallest of several that hardly differ, none that harms training."""
    levels: list[float] = []
    for efficiency in sorted({problem.options[each].efficiency for each in problem.chosen_from} - {0.0}):
        if not levels or efficiency > SAME_EFFICIENCY * levels[-1]:
            levels.append(efficiency)
    return levels or [0.0]


def search_efficiency(problem: Problem, regime: Regime, eps: float, least: float) -> Solution:
    """The shortest step of options with the efficiency `least` or more, to within a factor of 1 + eps."""
    # an option that is less efficient is not there; its number in the solution is that of the whole problem
    kept = [index for index, option in enumerate(problem.options) if option.efficiency >= least]
    found = search(replace(problem, options=tuple(problem.options[index] for index in kept)), regime, eps)
    return replace(found, groups=tuple(replace(group, option=kept[group.option]) for group in found.groups))
