"""Exact search for the plan with the shortest step: groups, and how each is sent.

Label-setting dynamic programming over the slots in the order of backward. A label at slot k is the regime's state
after some groups of the slots before k, and how many elements of small slots they deferred. Of two labels at the
same slot, one that is nowhere larger makes the other superfluous; one that cannot beat the best plan known goes too.
This is exact for any costs that do not fall with size.

Before labels are made, lower bounds (`bounds`) and the game of `game` find plans, and groups that no better plan can
have are dropped (`edges`). Then come these stages, until the plan is proven to be within `eps` of the best: (1) a beam,
which keeps few labels at each slot, those of the least bounds, and the game again; twice, with more labels; (2) all
labels, but those that differ by little are merged into one that takes the smallest of each number: so the last label's
time is a lower bound on every plan's, and its groups are a plan; (3) the same with finer merging, and so on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from gradwire.schedule.bounds import WEIGHTS, Bounds, longest
from gradwire.schedule.costs import Array, Index
from gradwire.schedule.edges import load_of
from gradwire.schedule.game import Game
from gradwire.schedule.problem import Cuts, GroupChoice, Problem, assemble
from gradwire.schedule.regimes import GroupCosts, Regime
from gradwire.schedule.work import SlowedBackward, TimedGroup

SEEDS = (1, 2, 4, 8, 16, 32)
GAMES = 4
LEAST_ROUNDS = 6
PIECES = 60
"""A game has a round for so many pieces, and no fewer than LEAST_ROUNDS."""
BEAMS = (4, 12)
"""Labels that the beam keeps at each slot, first and in the end."""
MOST_COMPARED = 20_000_000
"""Pairs of labels that a pass may compare."""
COARSE = 2500
"""The first pass merges labels that differ by this part of the step, or less."""
ROUNDING = 1e-12


@dataclass(frozen=True)
class Solution:
    """A plan that the search found."""

    groups: tuple[GroupChoice, ...]
    """In the order of sending."""
    step_s: float
    bound: float = float("inf")
    """The factor by which another plan may be faster at most: 1.0 is proven optimal, infinity proves nothing."""


def works_of(problem: Problem, groups: Sequence[GroupChoice]) -> list[TimedGroup]:
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
    intervals = regime.run(works_of(problem, groups), SlowedBackward(regime.slow))
    return Solution(groups, problem.around_s + max(interval.end_s for interval in intervals))


def search(problem: Problem, regime: Regime, eps: float = 0.0) -> Solution:
    """The shortest step, to within a factor of 1 + eps.

    `bound` is what was proven. With eps = 0 it is 1, and the time may grow exponentially for odd costs. Else effort
    is limited (a pass that compares more than MOST_COMPARED pairs of labels is the last), and where the limit is met
    `bound` is larger than 1 + eps.
    """
    return _Search(problem, regime, eps).found()


class _Search:
    """State of one search: the best plan so far, and the lower bound `lower_s` on every plan's step."""

    def __init__(self, problem: Problem, regime: Regime, eps: float) -> None:
        self.problem = problem
        self.regime = regime
        self.eps = eps
        self.lower_s = problem.around_s
        self.best = Solution((), float("inf"))
        self.chain = np.repeat(regime.balance(0.5)[:, None], problem.pieces + 1, 1)
        for cuts in _seeds(problem):
            self._try(cuts)
        self.limit_s = self.best.step_s
        self.bounds = Bounds(problem, regime, self.limit_s - problem.around_s)
        self.game = Game(self.bounds)

    def found(self) -> Solution:
        # first bounds
        for weight in WEIGHTS:
            self._bound(np.repeat(self.regime.balance(weight)[:, None], self.problem.pieces + 1, 1))
        self._bound(self.chain)
        # beams, and the game between planner and chains
        for width in BEAMS:
            if self._open:
                self._pass(0.0, width)
                self._play(0.0 if width < BEAMS[-1] else self.eps)
        # label setting, refined until proven
        part = COARSE
        while self._open and self._pass(self.best.step_s / part):
            part *= 2
            if self.eps == 0 and part > COARSE:
                self._pass(0.0)
                return self._result(1.0)
        return self._result(max(1.0, self.best.step_s / self.lower_s))

    @property
    def _open(self) -> bool:
        return self.best.step_s > self.lower_s * (1 + self.eps + ROUNDING)

    def _result(self, bound: float) -> Solution:
        return Solution(self.best.groups, self.best.step_s, 1.0 if bound <= 1 + ROUNDING else bound)

    def _offer(self, found: Solution) -> None:
        if found.step_s < self.best.step_s:
            self.best = found

    def _try(self, cuts: Cuts) -> Array:
        """Takes the plan if it is better. Returns the shares of its longest chain."""
        end_s, shares = longest(self.problem, self.regime, cuts)
        if end_s + self.problem.around_s < self.best.step_s:
            self._offer(evaluate(self.problem, assemble(self.problem, cuts), self.regime))
            self.chain = shares
        return shares

    def _bound(self, shares: Array) -> None:
        """Takes the bound of these shares. They, its plan and that plan's longest chain enter the game."""
        bound_s, plan = self.bounds.add(shares)
        self.lower_s = max(self.lower_s, min(self.limit_s, bound_s + self.problem.around_s))
        if plan:
            self.game.add(plan, shares)
            self.game.add(plan, self._try(plan.cuts))

    def _drop(self, eps: float) -> None:
        """Leaves out the groups that are in no plan by a factor of 1 + `eps` faster than the best."""
        self.limit_s = self.best.step_s / (1 + eps)
        self.bounds.drop(self.limit_s - self.problem.around_s)

    def _play(self, eps: float) -> None:
        """Plays the game among the near groups, then bounds all groups by its mix."""
        for _ in range(GAMES):
            self._drop(eps)
            if not self._open:
                return
            for _ in range(max(LEAST_ROUNDS, self.problem.pieces // PIECES)):
                plan = self.bounds.guess(self.game.mix())
                if not plan:
                    break
                self.game.add(plan, self._try(plan.cuts))
            self._bound(self.game.mix())

    def _pass(self, merge_s: float, width: int | None = None) -> bool:
        """One pass over the slots; whether it ended within its limit."""
        self._drop(0 if width else self.eps)
        labels = _Labels(self.bounds, self.limit_s - self.problem.around_s, merge_s)
        cuts, bound_s = labels.best(MOST_COMPARED if self.eps > 0 and not width else None, width)
        if cuts:
            self._try(cuts)
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


class _Labels:
    """One pass over the slots. Labels lie in flat arrays, those of a slot side by side."""

    def __init__(self, bounds: Bounds, goal_s: float, merge_s: float) -> None:
        self.bounds = bounds
        self.problem = bounds.problem
        self.regime = bounds.regime
        self.edges = bounds.edges
        self.goal_s, self.merge_s = goal_s, merge_s
        self.backward_s = float(self.problem.ready_s[-1])
        self.deferred = self.problem.deferred
        self.ended = True
        self.compared = 0
        dims = self.regime.dims
        deferred = max(self.deferred[-1], 1.0)
        seconds = sum(float(part) for part in load_of(self.problem, self.problem.tail, 0, 0, deferred)) + 1e-300
        self.scale = np.array([*[1.0] * dims, seconds / deferred])[:, None]
        self.slack = merge_s / self.scale
        self.soonest_s = np.full(self.problem.pieces, self.backward_s)
        """When a group that begins at each piece is ready at the earliest."""
        np.minimum.at(self.soonest_s, self.edges.start, self.edges.ready_s)
        self.states = np.zeros((dims + 1, 1024))
        self.parent, self.end, self.option = (np.zeros(1024, np.intp) for _ in range(3))
        self.first = np.zeros(self.problem.pieces + 2, np.intp)
        self.first[1:] = 1

    def best(self, most: int | None, width: int | None) -> tuple[Cuts, float]:
        """The groups of the best label, and its time: there are none where no label was good enough, and nothing is
        known of the time where more than `most` pairs would be compared. At each slot only `width` labels are kept."""
        for k in range(1, self.problem.pieces + 1):
            self._reach(k, width)
            if most and self.compared > most:
                self.ended = False
                return [], 0.0
        last = slice(self.first[-2], self.first[-1])
        ends = self._ends(self.states[:, last])
        if not ends.size:
            return [], float("inf")
        label = int(ends.argmin())
        return self._cuts(last.start + label), float(ends[label])

    def _ends(self, states: Array) -> Array:
        """The ends of steps, after a last group of the deferred slots."""
        problem = self.problem
        regime = self.regime
        deferred = states[-1]
        ends = regime.finish(tuple(states[:-1]), self.backward_s)
        if not self.deferred[-1]:
            return ends
        load = load_of(problem, problem.tail, 0, 0, deferred)
        more = regime.finish(regime.step(tuple(states[:-1]), self.backward_s, load, self.backward_s), self.backward_s)
        return np.where(deferred > 0, more, ends)

    def _reach(self, k: int, width: int | None) -> None:
        """Makes the labels of slot k."""
        labels, edges = self._ways(k)
        states = self._after(k, labels, edges)
        bounds = self.bounds.finish(states, k)
        chosen = np.flatnonzero(bounds < self.goal_s * (1 - ROUNDING))
        if width:
            chosen = chosen[np.argsort(bounds[chosen], kind="stable")[: 4 * width]]
        states, kept = _front(states[:, chosen], self.slack, self.scale)
        self.compared += len(chosen) * len(kept) + len(labels)
        if width:
            states, kept = states[:, np.argsort(kept)[:width]], np.sort(kept)[:width]
        self._store(k, states, labels[chosen[kept]], self.edges.option[edges[chosen[kept]]])

    def _ways(self, k: int) -> tuple[Index, Index]:
        """All labels at which a group that ends at slot k may begin, and these groups."""
        edges = self.edges.into(k)
        first, after = self.first[self.edges.start[edges]], self.first[self.edges.start[edges] + 1]
        many = after - first
        skipped = np.cumsum(many) - many
        return np.arange(many.sum()) + np.repeat(first - skipped, many), np.repeat(edges, many)

    def _after(self, k: int, labels: Index, edges: Index) -> Array:
        """The states (dims + 1, n) after one more group."""
        deferred = self.states[-1, labels]
        load = np.take(self.edges.load, edges, axis=1)
        lossless = self.edges.lossless[edges]
        taking = np.flatnonzero(lossless & (deferred > 0))
        for option in np.unique(self.edges.option[edges[taking]]).tolist():
            by = taking[self.edges.option[edges[taking]] == option]
            load[:, by] = load_of(self.problem, option, self.edges.start[edges[by]], k, deferred[by])
        # what the group adds to the step
        after = self.regime.step(
            tuple(np.take(self.states[:-1], labels, axis=1)),
            self.edges.ready_s[edges],
            GroupCosts(*load),
            self.backward_s,
        )
        if k < self.problem.pieces:
            after = self.regime.settle(after, self.soonest_s[k])
        return np.stack([*after, np.where(lossless, 0, deferred + self.edges.deferred[edges])])

    def _store(self, k: int, states: Array, parents: Index, options: Index) -> None:
        added = slice(self.first[k], self.first[k] + states.shape[1])
        while added.stop > len(self.end):
            self.states = np.concatenate([self.states, np.zeros_like(self.states)], axis=1)
            self.end, self.parent, self.option = (np.tile(a, 2) for a in (self.end, self.parent, self.option))
        self.states[:, added], self.end[added] = states, k
        self.parent[added], self.option[added] = parents, options
        self.first[k + 1 :] = added.stop

    def _cuts(self, label: int) -> Cuts:
        cuts: Cuts = []
        while label:
            cuts.append((int(self.end[label]), int(self.option[label])))
            label = int(self.parent[label])
        return cuts[::-1]


def _front(states: Array, slack: Array, scale: Array) -> tuple[Array, Index]:
    """The Pareto front of states (dims, n), and its indices; with `slack` (dims, 1), states that differ by less are
    merged into one that takes the smallest of each number."""
    left = np.argsort((states * scale).sum(0), kind="stable")
    rest = states[:, left]
    kept: list[int] = []
    fronts: list[Array] = []
    # the least of those that are left covers all that are nowhere less
    while left.size:
        covered = (rest[:, :1] <= rest + slack).all(0)
        kept.append(int(left[0]))
        fronts.append(rest[:, covered].min(1))
        left, rest = left[~covered], rest[:, ~covered]
    return np.stack(fronts, 1) if fronts else states, np.array(kept, dtype=np.intp)
