"""Plans that others make, in the interface of the search: one option for all large slots, groups by a rule."""

from dataclasses import dataclass

import numpy as np

from gradwire.schedule.baselines import cut
from gradwire.schedule.costs import Array, Index
from gradwire.schedule.edges import load_of
from gradwire.schedule.problem import Problem
from gradwire.schedule.regimes import Regime
from gradwire.schedule.search import Solution

MOST_GROUPS = 32
MOST_VISITS = 20_000
"""Prefixes that Cupcake's search looks at."""


def even_split(problem: Problem, regime: Regime, option: int, groups: int) -> Solution:
    """So many groups of equal count of slots: Cupcake's --fusion-num."""
    n = problem.pieces
    groups = min(groups, n)
    return cut(problem, regime, option, [n * (group + 1) // groups for group in range(groups)])


def best_even_split(problem: Problem, regime: Regime, option: int) -> Solution:
    """The best of even splits into 1 to MOST_GROUPS groups."""
    return min(
        (even_split(problem, regime, option, m) for m in range(1, MOST_GROUPS + 1)), key=lambda found: found.step_s
    )


def cupcake(problem: Problem, regime: Regime, option: int) -> Solution:
    """Cupcake's Algorithm 1 (Wang et al., MLSys 2023): depth-first over the groups' ends, with its two prunings, under
    its own model (encoding interrupts backward, no decoding), seeded with the best even split. Exponential: it gives
    up after MOST_VISITS prefixes and returns the best so far."""
    search = _Cupcake(problem, option, list(range(1, problem.pieces + 1)))
    return cut(problem, regime, option, search.ends())


@dataclass
class _Cupcake:
    problem: Problem
    option: int
    best_ends: list[int]
    visits: int = MOST_VISITS
    best_s: float = float("inf")

    def ends(self) -> list[int]:
        n = self.problem.pieces
        # seeds: even splits
        for groups in range(1, min(n, MOST_GROUPS) + 1):
            self._end([n * (group + 1) // groups for group in range(groups)])
        # then every way, but for those that cannot be better
        self._visit([], 0.0, 0.0)
        return self.best_ends

    def _costs(self, first: Index | int, last: Index | int) -> tuple[Array, Array]:
        load = load_of(self.problem, self.option, first, last)
        return load.encode, load.wire

    def _end(self, ends: list[int]) -> None:
        encoded = wire = 0.0
        start = 0
        for end in ends:
            encode, send = self._costs(start, np.array([end]))
            # encoding follows the last encoding, sending the last sending
            encoded += float(encode[0])
            wire = max(wire, self.problem.views[self.option].ready_s[end] + encoded) + float(send[0])
            start = end
        # keep the best partition so far
        if wire < self.best_s:
            self.best_s, self.best_ends = wire, ends

    def _visit(self, ends: list[int], encoded: float, wire: float) -> None:
        """All ways to go on after groups that end at `ends`."""
        n, start, self.visits = self.problem.pieces, ends[-1] if ends else 0, self.visits - 1
        if start == n:
            self._end(ends)
            return
        # all groups that begin here
        after = np.arange(start + 1, n + 1)
        ready = self.problem.views[self.option].ready_s
        encode, send = self._costs(start, after)
        # a lower bound: what is left could follow at once
        left_encode, left_send = (np.where(after < n, seconds, 0) for seconds in self._costs(after, n))
        done = ready[after] + encoded + encode
        sent = np.maximum(wire, done) + send
        bound = np.maximum(ready[n] + encoded + encode + left_encode, sent + left_send)
        # as many as are done before the wire is free belong together
        hidden = np.flatnonzero(done <= wire)
        # from the shortest group that hides under the wire on
        for index in range(hidden[-1] if hidden.size else 0, len(after)):
            if bound[index] < self.best_s and self.visits > 0:
                self._visit([*ends, int(after[index])], encoded + float(encode[index]), float(sent[index]))
