"""Exact search for the plan with the shortest step: groups, and how each is sent.

Label-setting dynamic programming over the slots in the order of backward (`labels`), which is exact for any costs that
do not fall with size.

Before labels are made, lower bounds (`bounds`) and the game of `game` find plans, and groups that no better plan can
have are dropped (`edges`). Then come these stages, until the plan is proven to be within `eps` of the best: (1) a beam,
which keeps few labels at each slot, those of the least bounds, and the game again; twice, with more labels; (2) all
labels, but those that differ by little are merged into one that takes the smallest of each number: so the last label's
time is a lower bound on every plan's, and its groups are a plan; (3) the same with finer merging, and so on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from gradwire.schedule.bounds import WEIGHTS, Bounds, longest
from gradwire.schedule.costs import Array
from gradwire.schedule.game import Game
from gradwire.schedule.labels import ROUNDING, Labels
from gradwire.schedule.problem import Cuts, GroupChoice, Problem, assemble
from gradwire.schedule.regimes import Regime
from gradwire.schedule.work import SlowedBackward, TimedGroup

SEEDS = (1, 2, 4, 8, 16, 32)
"""Numbers of groups of the first plans."""
GAMES = 4
"""Games beside a beam; after each of them all groups are bounded."""
LEAST_ROUNDS, PIECES_PER_ROUND = 6, 60
"""A game has a round for so many pieces, and no fewer than the first number."""
BEAMS = (4, 12)
"""Labels that the beam keeps at each slot, first and in the end."""
MOST_COMPARED = 20_000_000
"""Pairs of labels that a pass may compare."""
COARSE = 2500
"""The first pass merges labels that differ by this part of the step, or less."""


@dataclass(frozen=True)
class Solution:
    """A plan that the search found."""

    groups: tuple[GroupChoice, ...]
    """In the order of sending."""
    step_s: float
    bound: float = float("inf")
    """The factor by which another plan may be faster at most: 1.0 is proven optimal, infinity proves nothing."""


def timed_groups(problem: Problem, groups: Sequence[GroupChoice]) -> list[TimedGroup]:
    """The groups' ready times and costs."""
    works: list[TimedGroup] = []
    for group in groups:
        option, slots = problem.options[group.option], list(group.slots)
        elements = problem.elements[slots].sum()
        units = elements if option.units is None else option.units[slots].sum()
        seconds = option.encode(elements), option.wire(units) + option.local(elements), option.decode(elements)
        works.append(TimedGroup(float(problem.ready_s[slots].max()), *map(float, seconds)))
    return works


def evaluate(problem: Problem, groups: tuple[GroupChoice, ...], regime: Regime) -> Solution:
    """The solution with these groups, timed by the regime."""
    intervals = regime.run(timed_groups(problem, groups), SlowedBackward(regime.slow))
    return Solution(groups, problem.around_s + max(interval.end_s for interval in intervals))


def search(problem: Problem, regime: Regime, eps: float = 0.0) -> Solution:
    """The shortest step, to within a factor of 1 + eps.

    `bound` is what was proven. With eps = 0 it is 1, and the time may grow exponentially for odd costs. Else effort
    is limited (a pass that compares more than MOST_COMPARED pairs of labels is the last), and where the limit is met
    `bound` is larger than 1 + eps.
    """
    return _Search(problem, regime, eps).found()


class _Search:
    """State of one search: the best plan so far and the shares of its longest `chain`; the lower bound `lower_s` on
    every plan's step. Plans of `limit_s` or more are no longer looked at."""

    def __init__(self, problem: Problem, regime: Regime, eps: float) -> None:
        self.problem = problem
        self.regime = regime
        self.eps = eps
        self.lower_s = problem.around_s
        self.best = Solution((), float("inf"))
        self.chain = np.repeat(regime.balance(0.5)[:, None], problem.pieces + 1, 1)
        for cuts in _seeds(problem):
            self._consider(cuts)
        self.limit_s = self.best.step_s
        self.bounds = Bounds(problem, regime, self.limit_s - problem.around_s)
        self.game = Game(self.bounds)

    def found(self) -> Solution:
        # first bounds
        for weight in WEIGHTS:
            self._add_bound(np.repeat(self.regime.balance(weight)[:, None], self.problem.pieces + 1, 1))
        self._add_bound(self.chain)
        # beams, and the game between planner and chains
        for width in BEAMS:
            if not self._proven(self.eps):
                self._label_pass(0.0, width)
                self._play_games(0.0 if width < BEAMS[-1] else self.eps)
        # label setting, refined until proven
        part = COARSE
        while not self._proven(self.eps) and self._label_pass(self.best.step_s / part):
            part *= 2
            if self.eps == 0:
                # nothing merged: the best plan is the shortest
                self._label_pass(0.0)
                self.lower_s = self.best.step_s
        return replace(self.best, bound=1.0 if self._proven(0.0) else self.best.step_s / self.lower_s)

    def _proven(self, eps: float) -> bool:
        """Whether no plan is faster than the best one by more than a factor of 1 + `eps`."""
        return self.best.step_s <= self.lower_s * (1 + eps + ROUNDING)

    def _consider(self, cuts: Cuts) -> Array:
        """Takes the plan if it is better. Returns the shares of its longest chain."""
        end_s, shares = longest(self.problem, self.regime, cuts)
        if end_s + self.problem.around_s < self.best.step_s:
            found = evaluate(self.problem, assemble(self.problem, cuts), self.regime)
            self.best = min(self.best, found, key=lambda each: each.step_s)
            self.chain = shares
        return shares

    def _add_bound(self, shares: Array) -> None:
        """Takes the bound of these shares. They, its plan and that plan's longest chain enter the game."""
        bound_s, plan = self.bounds.add(shares)
        self.lower_s = max(self.lower_s, min(self.limit_s, bound_s + self.problem.around_s))
        if plan:
            self.game.add(plan, shares)
            self.game.add(plan, self._consider(plan.cuts))

    def _drop(self, eps: float) -> None:
        """Leaves out the groups that are in no plan by a factor of 1 + `eps` faster than the best."""
        self.limit_s = self.best.step_s / (1 + eps)
        self.bounds.drop(self.limit_s - self.problem.around_s)

    def _play_games(self, eps: float) -> None:
        """Plays games among the near groups, and after each bounds all groups by its mix."""
        for _ in range(GAMES):
            self._drop(eps)
            if self._proven(self.eps):
                return
            for _ in range(max(LEAST_ROUNDS, self.problem.pieces // PIECES_PER_ROUND)):
                plan = self.bounds.guess(self.game.mix())
                if not plan:
                    break
                self.game.add(plan, self._consider(plan.cuts))
            self._add_bound(self.game.mix())

    def _label_pass(self, merge_s: float, width: int | None = None) -> bool:
        """One pass over the pieces that merges labels that differ by so many seconds or less, a beam where it keeps
        `width` of them at each piece; returns whether it ended within its limit."""
        self._drop(0 if width else self.eps)
        labels = Labels(self.bounds, self.limit_s - self.problem.around_s, merge_s)
        cuts, bound_s = labels.best(MOST_COMPARED if self.eps > 0 and not width else None, width)
        if cuts:
            self._consider(cuts)
        if not width:
            self.lower_s = max(self.lower_s, min(self.limit_s, bound_s + self.problem.around_s))
        return labels.ended


def _seeds(problem: Problem) -> list[Cuts]:
    """Plans to beat: groups of nearly equal size, all of them sent the same way."""
    found: list[Cuts] = []
    for option, groups in product(problem.chosen_from, SEEDS):
        elements = problem.views[option].elements
        ends = {*np.searchsorted(elements, elements[-1] * np.arange(1, groups) / groups).tolist(), problem.pieces}
        found.append([(end, option) for end in sorted(ends - {0})])
    return found
