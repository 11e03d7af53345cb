"""What is left to do at least: lower bounds by which the search drops what cannot win."""

from dataclasses import dataclass

import numpy as np

from gradwire.schedule.costs import NOTHING, Array, Index
from gradwire.schedule.problem import Problem
from gradwire.schedule.regimes import Load, Regime, State

WEIGHTS = np.array([0.0, 0.25, 0.5, 0.75, 1.0])


def load_of(problem: Problem, option: int, first: Index | int, last: Index | int, aside: Array | float = 0.0) -> Load:
    """What groups of the pieces first..last-1 and `aside` elements of small slots cost."""
    how, view = problem.options[option], problem.views[option]
    elements = view.elements[last] - view.elements[first] + aside
    units = elements if how.units is None else view.units[last] - view.units[first]
    wire = how.wire(units) if how.local is NOTHING else how.wire(units) + how.local(elements)
    return Load(how.encode(elements), wire, how.decode(elements))


@dataclass(frozen=True)
class Bounds:
    """For each piece k: `rest[w, k]` is the least sum, over any groups of the pieces from k on, of wire seconds times
    WEIGHTS[w] and computing seconds times what is left of 1; the wire's end and the computing's both lie at or before
    the step's, so any mean of the two does. `after[k]` is the earliest end of the wire, were it free until then."""

    rest: Array
    after: Array

    @classmethod
    def of(cls, problem: Problem, regime: Regime) -> "Bounds":
        """By dynamic programming from the last piece backwards."""
        n = problem.pieces
        rest = np.full((len(WEIGHTS), n + 1), np.inf)
        after = np.full(n + 1, np.inf)
        rest[:, n] = after[n] = 0
        for k in range(n - 1, -1, -1):
            ends = np.arange(k + 1, n + 1)
            for option, view in enumerate(problem.views):
                load = load_of(problem, option, k, ends)
                empty = view.count[ends] == view.count[k]
                computing = np.where(empty, 0, regime.computing(load))
                wire = np.where(empty, 0, load.wire)
                least = (WEIGHTS[:, None] * (wire - computing) + (computing + rest[:, ends])).min(1)
                rest[:, k] = np.minimum(rest[:, k], least)
                sent = np.where(empty, 0, view.ready_s[ends] + load.encode + load.wire)
                after[k] = min(after[k], np.maximum(sent + rest[-1, ends], after[ends]).min())
        return cls(rest, after)

    def finish(self, regime: Regime, state: State, k: Index | int, backward_s: float) -> Array:
        """A lower bound on when all means are there, for states at piece k."""
        wire, computing = regime.busy(state, backward_s)
        bound = self.after[k]
        for weight, rest in zip(WEIGHTS, self.rest, strict=True):
            bound = np.maximum(bound, weight * wire + (1 - weight) * computing + rest[k])
        return bound
