"""Labels of the exact search. A label at piece k is the regime's state after groups of the first k pieces, and how many
elements of small slots they deferred. Of two labels at the same piece, one that is nowhere larger makes the other
superfluous; one that cannot beat the best plan known goes too.
"""

import numpy as np

from gradwire.schedule.bounds import Bounds
from gradwire.schedule.costs import Array, Index
from gradwire.schedule.edges import load_of
from gradwire.schedule.problem import Cuts
from gradwire.schedule.regimes import GroupCosts

ROUNDING = 1e-12
"""Times that differ by this part are taken as equal."""


class Labels:
    """One pass over the pieces, for plans that end before `goal_s`; labels that differ by `merge_s` or less are merged.
    Labels lie in flat arrays, those of piece k from number `first[k]` on: their states (dims + 1, labels), and the last
    group of each, by the label before it, its end and its option."""

    def __init__(self, bounds: Bounds, goal_s: float, merge_s: float) -> None:
        self.bounds = bounds
        self.problem = bounds.problem
        self.regime = bounds.regime
        self.edges = bounds.edges
        self.goal_s = goal_s
        self.backward_s = float(self.problem.ready_s[-1])
        self.deferred = self.problem.deferred
        self.ended = True
        self.compared = 0
        # deferred elements count in seconds: those of a group of all that may be deferred
        dims = self.regime.dims
        deferred = max(self.deferred[-1], 1.0)
        seconds = sum(float(part) for part in load_of(self.problem, self.problem.tail, 0, 0, deferred)) + 1e-300
        self.scale = np.array([*[1.0] * dims, seconds / deferred])[:, None]
        self.slack = merge_s / self.scale
        self.soonest_s = np.full(self.problem.pieces, self.backward_s)
        """When a group that begins at each piece is ready at the earliest."""
        np.minimum.at(self.soonest_s, self.edges.start, self.edges.ready_s)
        # one label at first: nothing is sent yet
        self.states = np.zeros((dims + 1, 1024))
        self.parent, self.end, self.option = (np.zeros(1024, np.intp) for _ in range(3))
        self.first = np.zeros(self.problem.pieces + 2, np.intp)
        self.first[1:] = 1

    def best(self, most_compared: int | None, width: int | None) -> tuple[Cuts, float]:
        """The groups of the best label, and its time: there are none where no label was good enough, and nothing is
        known of the time where more than `most_compared` pairs of labels would be compared. Only `width` labels are
        kept at each piece."""
        for k in range(1, self.problem.pieces + 1):
            self._make_labels(k, width)
            if most_compared and self.compared > most_compared:
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
        *state, deferred = states
        ends = self.regime.finish(tuple(state), self.backward_s)
        if not self.deferred[-1]:
            return ends
        tail = load_of(self.problem, self.problem.tail, 0, 0, deferred)
        state = self.regime.step(tuple(state), self.backward_s, tail, self.backward_s)
        return np.where(deferred > 0, self.regime.finish(state, self.backward_s), ends)

    def _make_labels(self, k: int, width: int | None) -> None:
        """Makes the labels of piece k."""
        labels, edges = self._extensions(k)
        states = self._states_after(k, labels, edges)
        bounds = self.bounds.finish(states, k)
        chosen = np.flatnonzero(bounds < self.goal_s * (1 - ROUNDING))
        if width:
            chosen = chosen[np.argsort(bounds[chosen], kind="stable")[: 4 * width]]
        states, kept = _front(states[:, chosen], self.slack, self.scale)
        self.compared += len(chosen) * len(kept) + len(labels)
        if width:
            states, kept = states[:, np.argsort(kept)[:width]], np.sort(kept)[:width]
        self._store(k, states, labels[chosen[kept]], self.edges.option[edges[chosen[kept]]])

    def _extensions(self, k: int) -> tuple[Index, Index]:
        """All pairs of a label and a group that goes on from there and ends before piece k."""
        edges = self.edges.into(k)
        first, after = self.first[self.edges.start[edges]], self.first[self.edges.start[edges] + 1]
        many = after - first
        skipped = np.cumsum(many) - many
        return np.arange(many.sum()) + np.repeat(first - skipped, many), np.repeat(edges, many)

    def _states_after(self, k: int, labels: Index, edges: Index) -> Array:
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
    # the state with the least sum covers all that are nowhere smaller
    while left.size:
        covered = (rest[:, :1] <= rest + slack).all(0)
        kept.append(int(left[0]))
        fronts.append(rest[:, covered].min(1))
        left, rest = left[~covered], rest[:, ~covered]
    return np.stack(fronts, 1) if fronts else states, np.array(kept, dtype=np.intp)
