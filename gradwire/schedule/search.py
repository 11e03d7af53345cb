"""Exact search for the plan with the shortest step: groups, and how each is sent.

Label-setting dynamic programming over the slots in the order of backward. A label at slot k is the regime's state
after some groups of the slots before k, and how many elements of small slots they left aside. Of two labels at the
same slot, one that is nowhere larger makes the other superfluous; one that cannot beat the best plan known goes too.
This is exact for any costs that do not fall with size.

Where labels are many, those that differ by little are merged into one that takes the smallest of each number: so the
last label's time is a lower bound on every plan's, and the groups it stands for are a real plan. The ratio of the two
is the proven bound; merging is refined until it is small enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradwire.schedule.bounds import Bounds, load_of
from gradwire.schedule.costs import Array, Index
from gradwire.schedule.problem import Choice, Problem, assemble
from gradwire.schedule.regimes import Backward, Regime, Work

Cuts = list[tuple[int, int]]
SEEDS = (1, 2, 4, 8, 16, 32)
MOST_PIECES = 400
MOST_LABELS = 10_000
COARSE = 256
"""The first pass merges labels that differ by this part of the step, or less."""
ROUNDING = 1e-12


@dataclass(frozen=True)
class Found:
    """Groups in the order of sending, the step's seconds, and by what factor at most a plan may be faster than
    this: 1.0 is proven optimal, infinity says nothing."""

    groups: tuple[Choice, ...]
    step_s: float
    bound: float = float("inf")


def works_of(problem: Problem, groups: Sequence[Choice]) -> list[Work]:
    """When the groups are ready, and what they take."""
    works: list[Work] = []
    for group in groups:
        option, slots = problem.options[group.option], list(group.slots)
        elements = problem.elements[slots].sum()
        units = elements if option.units is None else option.units[slots].sum()
        seconds = option.encode(elements), option.wire(units) + option.local(elements), option.decode(elements)
        works.append(Work(float(problem.ready_s[slots].max()), *map(float, seconds)))
    return works


def evaluate(problem: Problem, groups: tuple[Choice, ...], regime: Regime) -> Found:
    """The groups, and how long a step with them takes."""
    intervals = regime.run(works_of(problem, groups), Backward(regime.slow))
    return Found(groups, problem.around_s + max(interval.end_s for interval in intervals))


def search(problem: Problem, regime: Regime, eps: float = 0.0, known: Sequence[Found] = ()) -> Found:
    """The shortest step, to within a factor of 1 + eps; `known` plans to beat make it faster.

    `bound` is what was proven. With eps = 0 it is 1, and the time may grow exponentially for odd costs. Else effort
    is limited, and where the limit is met `bound` is larger than 1 + eps: with more than MOST_PIECES pieces
    neighbours are glued, and a pass that makes more than MOST_LABELS labels is the last.
    """
    if eps > 0 and problem.pieces > MOST_PIECES:
        found = _refined(problem.glued(MOST_PIECES), regime, eps, known)
        start = tuple(np.zeros(1) for _ in range(regime.dims))
        least_s = Bounds.of(problem, regime).finish(regime, start, 0, float(problem.ready_s[-1]))
        return Found(found.groups, found.step_s, max(1.0, found.step_s / (float(least_s[0]) + problem.around_s)))
    return _refined(problem, regime, eps, known)


def _refined(problem: Problem, regime: Regime, eps: float, known: Sequence[Found]) -> Found:
    """Passes that merge less and less, until the bound is small enough."""
    best = min([*known, *_seeds(problem, regime)], key=lambda found: found.step_s)
    bounds = Bounds.of(problem, regime)
    part, lower_s, most = COARSE, problem.around_s + float(bounds.after[0]), MOST_LABELS if eps > 0 else None
    while True:
        goal_s = best.step_s / (1 + eps)
        exact = eps == 0 and part > COARSE
        merge_s = 0.0 if exact else best.step_s / part
        labels = _Labels(problem, regime, bounds, goal_s - problem.around_s, merge_s)
        cuts, bound_s = labels.best(most)
        lower_s = max(lower_s, min(goal_s, bound_s + problem.around_s))
        if cuts:
            best = min(best, evaluate(problem, assemble(problem, cuts), regime), key=lambda found: found.step_s)
        gap = max(1.0, best.step_s / lower_s)
        if gap <= 1 + eps + ROUNDING or exact or (most and labels.used > most):
            return Found(best.groups, best.step_s, 1.0 if exact or gap <= 1 + ROUNDING else gap)
        part *= 3


def _seeds(problem: Problem, regime: Regime) -> list[Found]:
    """Plans to beat: groups of nearly equal size, all of them sent the same way."""
    found: list[Found] = []
    for option, view in enumerate(problem.views):
        for groups in SEEDS:
            sizes = view.elements[-1] * np.arange(1, groups) / groups
            ends = sorted({*np.searchsorted(view.elements, sizes).tolist(), problem.pieces} - {0})
            found.append(evaluate(problem, assemble(problem, [(end, option) for end in ends]), regime))
    return found


class _Labels:
    """One pass over the slots. Labels lie in flat arrays, those of a slot side by side."""

    def __init__(self, problem: Problem, regime: Regime, bounds: Bounds, goal_s: float, merge_s: float) -> None:
        self.problem, self.regime, self.bounds = problem, regime, bounds
        self.goal_s, self.merge_s = goal_s, merge_s
        self.backward_s = float(problem.ready_s[-1])
        self.aside = np.concatenate([[0.0], np.cumsum(problem.elements * problem.small)])[problem.bounds]
        slack = merge_s / goal_s * self.aside[-1]
        self.slack = np.array([*[merge_s] * regime.dims, slack])[:, None]
        self.scale = np.array([*[1.0] * regime.dims, goal_s / max(self.aside[-1], 1)])[:, None]
        self.states = np.zeros((regime.dims + 1, 1024))
        self.slot = np.zeros(1024, np.intp)
        self.parent = np.zeros(1024, np.intp)
        self.option = np.zeros(1024, np.intp)
        self.used = 1
        self.first = [0, 1]
        self.least = np.full((regime.dims + 1, problem.pieces + 1), np.inf)
        self.least[:, 0] = 0

    def best(self, most: int | None) -> tuple[Cuts, float]:
        """The groups of the best label, and its time: there are none where no label was good enough, and nothing is
        known of the time where there would be more than `most` labels."""
        for k in range(1, self.problem.pieces + 1):
            self._reach(k)
            if most and self.used > most:
                return [], 0.0
        last = slice(self.first[-2], self.first[-1])
        ends = self._ends(self.states[:, last])
        if not ends.size:
            return [], float("inf")
        label = int(ends.argmin())
        return self._cuts(last.start + label), float(ends[label])

    def _ends(self, states: Array) -> Array:
        """When all means are there, after a last group of what was left aside."""
        problem, regime, aside = self.problem, self.regime, states[-1]
        ends = regime.finish(tuple(states[:-1]), self.backward_s)
        if not self.aside[-1]:
            return ends
        load = load_of(problem, problem.tail, 0, 0, aside)
        ready = float(problem.ready_s[problem.small].max())
        more = regime.finish(regime.step(tuple(states[:-1]), ready, load), self.backward_s)
        return np.where(aside > 0, more, ends)

    def _reach(self, k: int) -> None:
        """Makes the labels of slot k."""
        reached = [self._send(k, option) for option in range(len(self.problem.options))]
        states, parents, options = (np.concatenate(parts, axis=-1) for parts in zip(*reached, strict=True))
        states, kept = _front(states, self.slack, self.scale)
        self._store(k, states, parents[kept], options[kept])

    def _send(self, k: int, option: int) -> tuple[Array, Index, Index]:
        """The labels that end a group at slot k, for every label at which it may begin."""
        view = self.problem.views[option]
        nodes = np.flatnonzero((view.count[:k] < view.count[k]) & (self.least[0, :k] < np.inf))
        nodes = nodes[self._promising(nodes, self.least[:, nodes], k, option)[1]]
        chosen = np.zeros(k, bool)
        chosen[nodes] = True
        labels = np.flatnonzero(chosen[self.slot[: self.used]])
        states, kept = self._promising(self.slot[labels], self.states[:, labels], k, option)
        return states[:, kept], labels[kept], np.full(len(kept), option)

    def _promising(self, starts: Index, states: Array, k: int, option: int) -> tuple[Array, Index]:
        """The states (dims + 1, n) after one more group, and which of them may beat the goal."""
        lossless = self.problem.options[option].lossless
        aside = states[-1]
        load = load_of(self.problem, option, starts, k, aside if lossless else 0.0)
        after = self.regime.step(tuple(states[:-1]), self.problem.views[option].ready_s[k], load)
        left = np.zeros(len(starts)) if lossless else aside + (self.aside[k] - self.aside[starts])
        bound = self.bounds.finish(self.regime, after, k, self.backward_s)
        return np.stack([*after, left]), np.flatnonzero(bound < self.goal_s * (1 - ROUNDING))

    def _store(self, k: int, states: Array, parents: Index, options: Index) -> None:
        end = self.used + states.shape[1]
        while end > len(self.slot):
            self.states = np.concatenate([self.states, np.zeros_like(self.states)], axis=1)
            self.slot, self.parent, self.option = (np.tile(a, 2) for a in (self.slot, self.parent, self.option))
        added = slice(self.used, end)
        self.states[:, added], self.slot[added] = states, k
        self.parent[added], self.option[added] = parents, options
        self.used = end
        self.first.append(end)
        if states.size:
            self.least[:, k] = states.min(1)

    def _cuts(self, label: int) -> Cuts:
        cuts: Cuts = []
        while label:
            cuts.append((int(self.slot[label]), int(self.option[label])))
            label = int(self.parent[label])
        return cuts[::-1]


def _front(states: Array, slack: Array, scale: Array) -> tuple[Array, Index]:
    """The states (dims, n) of which no other is nowhere larger, and which these are; with `slack` (dims, 1), nowhere
    larger by more than that, and each made the least of those it stands for."""
    left = np.argsort((states * scale).sum(0), kind="stable")
    kept: list[int] = []
    fronts: list[Array] = []
    while left.size:
        own = states[:, left[0]][:, None]
        covered = (own <= states[:, left] + slack).all(0)
        kept.append(int(left[0]))
        fronts.append(states[:, left[covered]].min(1))
        left = left[~covered]
    return np.stack(fronts, 1) if fronts else states[:, :0], np.array(kept, dtype=np.intp)
