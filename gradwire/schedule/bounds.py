"""What is left to do at least: lower bounds by which the search drops what cannot win.

A step ends when its longest chain of waits does. So for any shares of chances that sum to one, the mean of chains is a
lower bound, and where the shares depend on the slots alone, it is a sum over groups, whose least value over all plans
dynamic programming finds. `Bounds` holds several such means. The best shares are those of a game: the planner answers
shares with the plan of the least mean, the other side answers the plan with its longest chain, and mixes that in where
it raises the bound (bundle method; Brown's fictitious play 1951 where steps are plain means). Costs may have any shape.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwire.schedule.costs import NOTHING, Affine, Array, Chain, Cost, Index, Total
from gradwire.schedule.problem import Cuts, Problem
from gradwire.schedule.regimes import Load, Regime, State

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_KEPT = 12
ROUGH = 1e-6
WORTH = 0.9
"""Groups are dropped where no more than this part is left."""
SAFE = 1 - 1e-8
"""Shares are known to some ten digits; a bound is taken so much lower."""


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


class Edges:
    """The groups that a better plan may have, and what they cost, in the order of `start`: group g takes the pieces
    `start[g]` to `end[g]` - 1 with `option[g]`, and no plan that has it ends before `least_s[g]`."""

    def __init__(self, problem: Problem, regime: Regime, limit_s: float) -> None:
        """All whose plans may end before `limit_s`."""
        self.problem = problem
        rows = [_row(problem, regime, start, limit_s) for start in range(problem.pieces)]
        self.start, self.end, self.option = (np.concatenate(parts) for parts in list(zip(*rows, strict=True))[:3])
        self.load = np.concatenate([row[3] for row in rows], axis=1)
        self.least_s = np.zeros(len(self.start))
        self._index()

    def keep(self, kept: Array) -> None:
        """Drops the others."""
        self.start, self.end, self.option = self.start[kept], self.end[kept], self.option[kept]
        self.load, self.least_s = self.load[:, kept], self.least_s[kept]
        self._index()

    def _index(self) -> None:
        problem, nodes = self.problem, np.arange(self.problem.pieces + 1)
        self.ready_s = np.stack([view.ready_s for view in problem.views])[self.option, self.end]
        lossy = np.array([not option.lossless for option in problem.options])
        self.aside = np.where(lossy[self.option], problem.aside[self.end] - problem.aside[self.start], 0)
        self.by_end = np.lexsort((self.start, self.option, self.end))
        self.first_from = np.searchsorted(self.start, nodes)
        self.first_to = np.searchsorted(self.end[self.by_end], nodes)

    def into(self, k: int) -> Index:
        """The groups that end before piece `k`, by option."""
        return self.by_end[self.first_to[k] : self.first_to[k + 1] if k < self.problem.pieces else None]


def _row(problem: Problem, regime: Regime, start: int, limit_s: float) -> tuple[Index, Index, Index, Array]:
    """Starts, ends, options and loads (3, groups) of the groups that begin with piece `start`. One that is nowhere
    faster than another option's with the same slots is left out."""
    ends = np.arange(start + 1, problem.pieces + 1)
    zero, backward_s = (np.zeros(len(ends)),) * regime.dims, float(problem.ready_s[-1])
    loads = np.array([load_of(problem, option, start, ends) for option in range(len(problem.options))])
    kept = np.zeros((len(loads), len(ends)), bool)
    for number, (load, view) in enumerate(zip(loads, problem.views, strict=True)):
        end_s = regime.finish(regime.step(zero, view.ready_s[ends], Load(*load)), backward_s)
        kept[number] = (view.count[start] < view.count[ends]) & (end_s < limit_s)
        for other in _alike(problem, number):
            as_fast = (loads[other] <= load).all(0)
            kept[number] &= ~as_fast if other < number else ~(as_fast & (loads[other] < load).any(0))
    options, chosen = np.nonzero(kept)
    return np.full(len(options), start), ends[chosen], options, loads[options, :, chosen].T


def _alike(problem: Problem, number: int) -> list[int]:
    """The other options that take the same slots whatever was left aside."""
    if not problem.small.any():
        return [other for other in range(len(problem.options)) if other != number]
    lossy = [other for other, option in enumerate(problem.options) if not option.lossless]
    return [other for other in lossy if other != number] if number in lossy else []


class Bounds:
    """Lower bounds on when all means are there: each is the state's numbers times `shares` (dims, pieces + 1), and the
    elements left aside times `aside` (pieces + 1,), at the piece where the state is, plus `rest` (pieces + 1,)."""

    def __init__(self, problem: Problem, regime: Regime, limit_s: float) -> None:
        self.problem, self.regime = problem, regime
        self.edges = Edges(problem, regime, limit_s)
        self.slope = _least_wire(problem)
        self.kept: list[tuple[Array, Array]] = []
        self.lower_s = 0.0

    def drop(self, limit_s: float) -> None:
        """Forgets the groups without which any plan that ends before `limit_s` does."""
        kept = self.edges.least_s < limit_s
        if kept.mean() < WORTH:
            self.edges.keep(kept)

    def add(self, shares: Array) -> tuple[float, Cuts]:
        """Keeps the bound of these shares. Returns the bound on the whole step, and the plan that attains it: the
        bound is infinite and there is none where the groups left make no plan."""
        problem, regime, edges = self.problem, self.regime, self.edges
        tail = bool(problem.small.any())
        shares = np.vstack([regime.due(shares, tail), self.slope * _least_after(shares[regime.wire])])
        before, after = (np.take(shares, at, axis=1) for at in (edges.start, edges.end))
        seconds = regime.price(before, after, edges.ready_s, Load(*edges.load))
        seconds += after[-1] * edges.aside
        seconds *= SAFE
        rest, best = self._backward(seconds, regime.last(shares[:-1, -1], float(problem.ready_s[-1])))
        if self._keep(shares, rest):
            edges.least_s = np.maximum(edges.least_s, self._forward(seconds)[edges.start] + seconds + rest[edges.end])
        return float(rest[0]), self._cuts(best) if rest[0] < np.inf else []

    def _backward(self, seconds: Array, last_s: float) -> tuple[Array, Index]:
        """The least seconds from each piece to the end, and the groups with which the ways begin."""
        edges, n = self.edges, self.problem.pieces
        rest, best = np.full(n + 1, np.inf), np.zeros(n, np.intp)
        rest[n] = last_s
        for k in range(n - 1, -1, -1):
            own = slice(edges.first_from[k], edges.first_from[k + 1])
            if own.start < own.stop:
                ways = seconds[own] + rest[edges.end[own]]
                best[k] = own.start + ways.argmin()
                rest[k] = ways[best[k] - own.start]
        return rest, best

    def _forward(self, seconds: Array) -> Array:
        """The least seconds from the beginning to each piece."""
        edges, n = self.edges, self.problem.pieces
        seconds, starts = seconds[edges.by_end], edges.start[edges.by_end]
        forward = np.full(n + 1, np.inf)
        forward[0] = 0
        for k in range(1, n + 1):
            own = slice(edges.first_to[k], edges.first_to[k + 1] if k < n else len(starts))
            if own.start < own.stop:
                forward[k] = (seconds[own] + forward[starts[own]]).min()
        return forward

    def finish(self, states: Array, k: int) -> Array:
        """The best bound for states (dims + 1, labels), whose last numbers are elements left aside, at piece `k`."""
        shares = np.stack([shares[:, k] for shares, _ in self.kept])
        return (shares @ states + np.array([[rest[k]] for _, rest in self.kept])).max(0)

    def _keep(self, shares: Array, rest: Array) -> bool:
        """Of the many bounds, those that raised the step's are kept, and the first. Whether this one is."""
        keep = rest[0] > self.lower_s or len(self.kept) < len(WEIGHTS)
        if keep:
            self.kept.append((shares, rest))
            self.lower_s = max(self.lower_s, float(rest[0]))
        if len(self.kept) > MOST_KEPT:
            del self.kept[len(WEIGHTS)]
        return keep

    def _cuts(self, best: Index) -> Cuts:
        edges, k = self.edges, 0
        cuts: Cuts = []
        while k < len(best):
            own = best[k]
            k = int(edges.end[own])
            cuts.append((k, int(edges.option[own])))
        return cuts


def _least_wire(problem: Problem) -> float:
    """Wire seconds that an element of a small slot costs at least."""
    lossless = [option for option in problem.options if option.lossless]
    return min((least_slope(option.wire) if option.units is None else 0.0 for option in lossless), default=0.0)


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
