"""What is left to do at least: lower bounds by which the search drops what cannot win.

A step ends when its longest chain of waits does. So for any shares of chances that sum to one, the mean of chains is a
lower bound, and where the shares depend on the slots alone, it is a sum over groups, whose least value over all plans
dynamic programming finds. `Bounds` holds several such means. The best shares are those of a game: the planner answers
shares with the plan of the least mean, the other side answers the plan with its longest chain, and mixes that in where
it raises the bound (bundle method; Brown's fictitious play 1951 where steps are plain means). Costs may have any shape.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradwire.schedule.costs import NOTHING, Affine, Array, Chain, Cost, Index, Total
from gradwire.schedule.problem import Cuts, Problem
from gradwire.schedule.regimes import Load, Regime, State

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_KEPT = 12
ROUGH = 1e-6
SINGLE = 1 - 4e-6
"""Loads are kept in single precision; a bound is taken so much lower."""


def load_of(problem: Problem, option: int, first: Index | int, last: Index | int, aside: Array | float = 0.0) -> Load:
    """What groups of the pieces first..last-1 and `aside` elements of small slots cost."""
    how, view = problem.options[option], problem.views[option]
    elements = view.elements[last] - view.elements[first] + aside
    units = elements if how.units is None else view.units[last] - view.units[first]
    wire = how.wire(units) if how.local is NOTHING else how.wire(units) + how.local(elements)
    return Load(how.encode(elements), wire, how.decode(elements))


def least_slope(cost: Cost) -> float:
    """By how much at least a cost grows per unit; 0 where that is not known."""
    match cost:
        case Affine():
            return cost.per_unit
        case Chain():
            return least_slope(cost.outer) * least_slope(cost.inner)
        case Total():
            return sum(least_slope(part) * factor for part, factor in cost.parts)
        case _:
            return 0.0


@dataclass(frozen=True, eq=False)
class Loads:
    """What all groups of a problem cost, in single precision: `rows[k]` (3, options, pieces - k) holds encode, wire and
    decode seconds of those that begin with piece k."""

    problem: Problem
    rows: list[NDArray[np.float32]]

    @classmethod
    def of(cls, problem: Problem) -> "Loads":
        n, options = problem.pieces, range(len(problem.options))
        rows = [np.empty((3, len(options), n - k), np.float32) for k in range(n)]
        for k, row in enumerate(rows):
            ends = np.arange(k + 1, n + 1)
            for option in options:
                for lane, seconds in enumerate(load_of(problem, option, k, ends)):
                    row[lane, option] = seconds
        return cls(problem, rows)

    @cached_property
    def ready_s(self) -> Array:
        """(options, pieces + 1)."""
        return np.stack([view.ready_s for view in self.problem.views])

    @cached_property
    def lossy(self) -> Array:
        """(options, 1): 1 for those that leave small slots aside."""
        return np.array([[float(not option.lossless)] for option in self.problem.options])

    @cached_property
    def slope(self) -> float:
        """Wire seconds that an element of a small slot costs at least."""
        lossless = [option for option in self.problem.options if option.lossless]
        return min((least_slope(o.wire) if o.units is None else 0.0 for o in lossless), default=0.0)


class Bounds:
    """Lower bounds on when all means are there: each is the state's numbers times `shares` (dims, pieces + 1), and the
    elements left aside times `aside` (pieces + 1,), at the piece where the state is, plus `rest` (pieces + 1,)."""

    def __init__(self, loads: Loads, regime: Regime) -> None:
        self.loads, self.regime = loads, regime
        self.kept: list[tuple[Array, Array]] = []
        self.lower_s = 0.0

    def add(self, shares: Array) -> tuple[float, Cuts]:
        """Keeps the bound of these shares. Returns the bound on the whole step, and the plan that attains it."""
        problem, regime = self.loads.problem, self.regime
        n = problem.pieces
        tail = bool(problem.small.any())
        shares = np.vstack([regime.due(shares, tail), self.loads.slope * _least_after(shares[regime.wire])])
        rest, best = np.zeros(n + 1), np.zeros(n, np.intp)
        rest[n] = regime.last(shares[:-1, n], float(problem.ready_s[-1]))
        for k in range(n - 1, -1, -1):
            after = shares[:, k + 1 :]
            seconds = regime.price(shares[:, k, None], after, self.loads.ready_s[:, k + 1 :], Load(*self.loads.rows[k]))
            seconds = seconds + self.loads.lossy * (after[-1] * (problem.aside[k + 1 :] - problem.aside[k]))
            seconds += rest[k + 1 :]
            best[k] = seconds.argmin()
            rest[k] = seconds.flat[best[k]]
        rest *= SINGLE
        self._keep(shares, rest)
        return float(rest[0]), self._cuts(best)

    def finish(self, states: Array, k: int) -> Array:
        """The best bound for states (dims + 1, labels), whose last numbers are elements left aside, at piece `k`."""
        shares = np.stack([shares[:, k] for shares, _ in self.kept])
        return (shares @ states + np.array([[rest[k]] for _, rest in self.kept])).max(0)

    def _keep(self, shares: Array, rest: Array) -> None:
        """Of the many bounds, those that raised the step's are kept, and the first."""
        better = rest[0] > self.lower_s
        if better or len(self.kept) < len(WEIGHTS):
            self.kept.append((shares, rest))
            self.lower_s = max(self.lower_s, float(rest[0]))
        if len(self.kept) > MOST_KEPT:
            del self.kept[len(WEIGHTS)]

    def _cuts(self, best: Index) -> Cuts:
        n, k = len(best), 0
        cuts: Cuts = []
        while k < n:
            option, more = divmod(int(best[k]), n - k)
            k += more + 1
            cuts.append((k, option))
        return cuts


def longest(problem: Problem, regime: Regime, cuts: Cuts) -> tuple[float, Array]:
    """When all means of a plan are there, and the shares of its longest chain: 1 or 0 at the groups' ends, in
    proportion between them."""
    loads, ready = _loads_of(problem, cuts)
    states = np.zeros((regime.dims, len(ready) + 1))
    for group, (load, at) in enumerate(zip(loads.T, ready, strict=True)):
        states[:, group + 1] = regime.step(tuple(states[:, group]), at, Load(*load))
    backward_s = float(problem.ready_s[-1])
    growth = _growth(lambda state: regime.step(state, ready, Load(*loads)), states[:, :-1])
    last = _growth(lambda state: (regime.finish(state, backward_s),), states[:, -1:])[0, :, 0]
    shares = [last]
    for group in range(len(ready) - 1, -1, -1):
        shares.append(growth[:, :, group].T @ shares[-1])
    ends = [0, *(end for end, _ in cuts)]
    between = [np.interp(np.arange(problem.pieces + 1), ends, own) for own in np.array(shares[::-1])[: len(ends)].T]
    return float(regime.finish(tuple(states[:, -1]), backward_s)), np.array(between)


def _loads_of(problem: Problem, cuts: Cuts) -> tuple[Array, Array]:
    """Encode, wire and decode seconds (3, groups), and when groups are ready."""
    ends, options = np.array(cuts).T
    starts = np.array([0, *ends[:-1]])
    own = problem.aside[ends] - problem.aside[starts]
    lossless = np.array([problem.options[option].lossless for option in options])
    total = np.cumsum(own)
    taken = np.maximum.accumulate(np.where(lossless, total, 0))
    aside = np.where(lossless, total - own - np.array([0.0, *taken[:-1]]), 0)
    loads, ready = np.zeros((3, len(cuts))), np.zeros(len(cuts))
    for option in set(options.tolist()):
        by = options == option
        loads[:, by] = load_of(problem, option, starts[by], ends[by], aside[by])
        ready[by] = problem.views[option].ready_s[ends[by]]
    if (left := total[-1] - taken[-1]) > 0:
        tail = [float(seconds) for seconds in load_of(problem, problem.tail, 0, 0, left)]
        loads = np.concatenate([loads, np.array(tail)[:, None]], axis=1)
        ready = np.append(ready, problem.ready_s[-1])
    return loads, ready


def _growth(step: Callable[[State], tuple[Array, ...]], states: Array) -> Array:
    """By how much each result grows with each number of the states (dims, n): (results, dims, n). One number after the
    other grows and stays so, that where two decide alike only one counts."""
    nudge = 1e-6 * states.max() + 1e-300
    grown = np.tril(np.full((len(states), len(states)), nudge))
    results = np.array([step(tuple(states)), *(step(tuple(states + own[:, None])) for own in grown)])
    growth = np.diff(results, axis=0).swapaxes(0, 1) / nudge
    return np.where(np.abs(growth - growth.round()) < ROUGH, growth.round(), growth)


def _least_after(values: Array) -> Array:
    """The least of the values after each, and the last itself."""
    least = np.minimum.accumulate(values[::-1])[::-1]
    return np.append(least[1:], least[-1])
