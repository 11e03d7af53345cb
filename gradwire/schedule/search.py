"""Exact search for the plan with the shortest step: groups, and how each is sent.

Label-setting dynamic programming over the slots in the order of backward. A label at slot k is the regime's state
after some groups of the slots before k, and how many elements of small slots they left aside. Of two labels at the
same slot, one that is nowhere larger makes the other superfluous; one that cannot beat the best plan known goes too.
This is exact for any costs that do not fall with size.

To within some per cent it goes in three stages, each of which ends the search where the plan is proven good enough:
the game of `bounds` gives lower bounds and plans; a beam keeps few labels at each slot, those of the least bounds; and
labels that differ by little are merged into one that takes the smallest of each number, so that the last label's time
is a lower bound on every plan's, and the groups it stands for are a plan. Merging is refined until that is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradwire.schedule.bounds import WEIGHTS, Bounds, Loads, load_of, longest
from gradwire.schedule.costs import Array, Index
from gradwire.schedule.problem import Choice, Cuts, Problem, assemble
from gradwire.schedule.regimes import Backward, Regime, Work

SEEDS = (1, 2, 4, 8, 16, 32)
ROUNDS = 60
LEAST_PART = 0.01
"""The game ends after so many rounds, or when its steps become smaller than this."""
BEAM = 6
"""Labels that the beam keeps at each slot."""
MOST_LABELS = 4_000
MOST_PIECES = 400
"""Merging says nothing of plans with more groups than that."""
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
    is limited, and where the limit is met (a pass that makes more than MOST_LABELS labels is the last) `bound` is
    larger than 1 + eps.
    """
    return _Search(problem, regime, eps, list(known)).found()


class _Search:
    """The best plan so far, and `lower_s`: no plan's step is shorter."""

    def __init__(self, problem: Problem, regime: Regime, eps: float, known: list[Found]) -> None:
        self.problem, self.regime, self.eps = problem, regime, eps
        self.bounds = Bounds(Loads.of(problem), regime)
        self.lower_s = problem.around_s
        self.best_s = float("inf")
        self.best = Found((), self.best_s)
        self.base = self.chain = np.repeat(regime.balance(0.5)[:, None], problem.pieces + 1, 1)
        self.base_s = -1.0
        for found in known:
            self._offer(found)

    def found(self) -> Found:
        self._start()
        self._play()
        if self._open:
            self._pass(0.0, BEAM)
            self._play()
        part = COARSE
        few = self.eps == 0 or self.problem.pieces <= MOST_PIECES
        while self._open and few and self._pass(self.best_s / part):
            part *= 3
            if self.eps == 0 and part > COARSE:
                self._pass(0.0)
                return self._result(1.0)
        return self._result(max(1.0, self.best_s / self.lower_s))

    @property
    def _open(self) -> bool:
        return self.best_s > self.lower_s * (1 + self.eps + ROUNDING)

    def _result(self, bound: float) -> Found:
        return Found(self.best.groups, self.best.step_s, 1.0 if bound <= 1 + ROUNDING else bound)

    def _offer(self, found: Found) -> None:
        if found.step_s < self.best_s:
            self.best, self.best_s = found, found.step_s

    def _try(self, cuts: Cuts) -> Array:
        """Takes the plan if it is better. Returns the shares of its longest chain."""
        end_s, shares = longest(self.problem, self.regime, cuts)
        if end_s + self.problem.around_s < self.best_s:
            self._offer(evaluate(self.problem, assemble(self.problem, cuts), self.regime))
            self.chain = shares
        return shares

    def _bound(self, shares: Array) -> tuple[bool, Array]:
        """Whether the bound of these shares is the highest, and the longest chain of the plan that attains it."""
        bound_s, cuts = self.bounds.add(shares)
        higher = bound_s > self.base_s
        if higher:
            self.base, self.base_s = shares, bound_s
            self.lower_s = max(self.lower_s, bound_s + self.problem.around_s)
        return higher, self._try(cuts)

    def _start(self) -> None:
        """Simple plans, and simple shares."""
        for cuts in _seeds(self.problem):
            self._try(cuts)
        for weight in WEIGHTS:
            self._bound(np.repeat(self.regime.balance(weight)[:, None], self.problem.pieces + 1, 1))
        self._bound(self.chain)

    def _play(self) -> None:
        """The game: from the best shares so far, a part of the way towards the mean of the answers since."""
        towards, mixed, part = self.chain, 1, 0.3
        for _ in range(ROUNDS):
            if not self._open or part < LEAST_PART:
                return
            higher, answer = self._bound((1 - part) * self.base + part * towards)
            mixed = 1 if higher else mixed + 1
            towards = towards + (answer - towards) / mixed
            part = min(1.3 * part, 0.5) if higher else 0.8 * part

    def _pass(self, merge_s: float, width: int | None = None) -> bool:
        """One pass over the slots; whether it ended within its limit."""
        goal_s = self.best_s / (1 + (0 if width else self.eps))
        labels = _Labels(self.problem, self.regime, self.bounds, goal_s - self.problem.around_s, merge_s)
        cuts, bound_s = labels.best(MOST_LABELS if self.eps > 0 and not width else None, width)
        if cuts:
            self._try(cuts)
        if not width:
            self.lower_s = max(self.lower_s, min(goal_s, bound_s + self.problem.around_s))
        return labels.ended


def _seeds(problem: Problem) -> list[Cuts]:
    """Plans to beat: groups of nearly equal size, all of them sent the same way."""
    found: list[Cuts] = []
    for option, view in enumerate(problem.views):
        for groups in SEEDS:
            sizes = view.elements[-1] * np.arange(1, groups) / groups
            ends = sorted({*np.searchsorted(view.elements, sizes).tolist(), problem.pieces} - {0})
            found.append([(end, option) for end in ends])
    return found


class _Labels:
    """One pass over the slots. Labels lie in flat arrays, those of a slot side by side."""

    def __init__(self, problem: Problem, regime: Regime, bounds: Bounds, goal_s: float, merge_s: float) -> None:
        self.problem, self.regime, self.bounds = problem, regime, bounds
        self.goal_s, self.merge_s = goal_s, merge_s
        self.backward_s = float(problem.ready_s[-1])
        self.aside, self.ended = problem.aside, True
        slack = merge_s / goal_s * self.aside[-1]
        self.slack = np.array([*[merge_s] * regime.dims, slack])[:, None]
        self.scale = np.array([*[1.0] * regime.dims, goal_s / max(self.aside[-1], 1)])[:, None]
        self.soonest_s = np.min([view.ready_s[1:] for view in problem.views], axis=0)
        """When a group that begins at each piece is ready at the earliest."""
        self.states = np.zeros((regime.dims + 1, 1024))
        self.slot = np.zeros(1024, np.intp)
        self.parent = np.zeros(1024, np.intp)
        self.option = np.zeros(1024, np.intp)
        self.used = 1
        self.first = [0, 1]
        self.least = np.full((regime.dims + 1, problem.pieces + 1), np.inf)
        self.least[:, 0] = 0

    def best(self, most: int | None, width: int | None) -> tuple[Cuts, float]:
        """The groups of the best label, and its time: there are none where no label was good enough, and nothing is
        known of the time where there would be more than `most` labels. At each slot only `width` labels are kept."""
        for k in range(1, self.problem.pieces + 1):
            self._reach(k, width)
            if most and self.used > most:
                self.ended = False
                return [], 0.0
        last = slice(self.first[-2], self.first[-1])
        ends = self._ends(self.states[:, last])
        if not ends.size:
            return [], float("inf")
        label = int(ends.argmin())
        return self._cuts(last.start + label), float(ends[label])

    def _ends(self, states: Array) -> Array:
        """When all means are there, after a last group of what was left aside, which follows the last slot."""
        problem, regime, aside = self.problem, self.regime, states[-1]
        ends = regime.finish(tuple(states[:-1]), self.backward_s)
        if not self.aside[-1]:
            return ends
        load = load_of(problem, problem.tail, 0, 0, aside)
        more = regime.finish(regime.step(tuple(states[:-1]), self.backward_s, load), self.backward_s)
        return np.where(aside > 0, more, ends)

    def _reach(self, k: int, width: int | None) -> None:
        """Makes the labels of slot k."""
        reached = [self._send(k, option) for option in range(len(self.problem.options))]
        states, bounds, parents, options = (np.concatenate(parts, axis=-1) for parts in zip(*reached, strict=True))
        if width:
            best = np.argsort(bounds, kind="stable")[: 4 * width]
            states, parents, options = states[:, best], parents[best], options[best]
        states, kept = _front(states, self.slack, self.scale)
        if width:
            states, kept = states[:, np.argsort(kept)[:width]], np.sort(kept)[:width]
        self._store(k, states, parents[kept], options[kept])

    def _send(self, k: int, option: int) -> tuple[Array, Array, Index, Index]:
        """The labels that end a group at slot k, for every label at which it may begin, and their bounds."""
        view = self.problem.views[option]
        nodes = np.flatnonzero((view.count[:k] < view.count[k]) & (self.least[0, :k] < np.inf))
        nodes = nodes[self._promising(nodes, self.least[:, nodes], k, option)[2]]
        chosen = np.zeros(k, bool)
        chosen[nodes] = True
        labels = np.flatnonzero(chosen[self.slot[: self.used]])
        states, bounds, kept = self._promising(self.slot[labels], self.states[:, labels], k, option)
        return states[:, kept], bounds[kept], labels[kept], np.full(len(kept), option)

    def _promising(self, starts: Index, states: Array, k: int, option: int) -> tuple[Array, Array, Index]:
        """The states (dims + 1, n) after one more group, their bounds, and which of them may beat the goal."""
        lossless = self.problem.options[option].lossless
        aside = states[-1]
        load = load_of(self.problem, option, starts, k, aside if lossless else 0.0)
        after = self.regime.step(tuple(states[:-1]), self.problem.views[option].ready_s[k], load)
        if k < self.problem.pieces:
            after = self.regime.settle(after, self.soonest_s[k])
        left = np.zeros(len(starts)) if lossless else aside + (self.aside[k] - self.aside[starts])
        states = np.stack([*after, left])
        bounds = self.bounds.finish(states, k)
        return states, bounds, np.flatnonzero(bounds < self.goal_s * (1 - ROUNDING))

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
