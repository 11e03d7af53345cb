"""Lower bounds on the length of a step, by which the search drops groups that cannot be in the best plan.

A step ends when its critical path does: the longest chain of encode, wire and decode that wait for each other. A convex
combination of such chains is never longer than the longest, so it bounds the step from below. With weights that depend
on the slots alone, the combination is a sum over groups, and dynamic programming finds the plan for which it is least:
no plan at all ends before that. `Bounds` keeps several combinations; the best weights are found in `game`. The same
sums, forwards and backwards, bound all plans that contain a given group; a group whose bound is above the best plan
found so far is dropped (reduced-cost fixing). Costs may have any shape.
"""

from collections.abc import Callable, Sequence

import numpy as np

from gradwire.schedule.costs import Affine, Array, ComposedCost, Cost, CostTable, Index, SumCost
from gradwire.schedule.edges import Edges, load_of
from gradwire.schedule.problem import Cuts, Problem
from gradwire.schedule.regimes import GroupCosts, Regime, State

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The parts that the wire has in the first bounds; the rest is the computing stream's."""
MOST_KEPT = 12
"""Bounds that are kept, beside those of WEIGHTS."""
ROUGH = 1e-6
"""A derivative that is nearer than this to a whole number is rounded to it, for it is computed by differences."""
NEAR = 8
"""How many groups for each piece count as near: the groups that look best to a bound."""
DROP_BELOW = 0.9
"""Groups are dropped where no more than this fraction is left."""
SAFE = 1 - 1e-8
"""Factor of bounds. Shares are right to some ten digits, so a bound without it could be a little too high."""


def least_slope(cost: Cost) -> float:
    """The least growth of a cost per unit of size; 0 where that is not known."""
    match cost:
        case Affine():
            return cost.per_unit
        case CostTable() if cost.sizes[0] == 0:  # else it is flat at first
            return min([cost.last_slope, *(np.diff(cost.values) / np.diff(cost.sizes)).tolist()])
        case ComposedCost():
            return least_slope(cost.outer) * least_slope(cost.inner)
        case SumCost():
            return sum(least_slope(part) * factor for part, factor in cost.parts)
        case _:
            return 0.0


class Bounds:
    """Lower bounds on when all means are there.

    A bound is a weighting `shares` (dims + 1, pieces + 1): for each piece at which a group may begin, the weight of
    each number of the regime's state, and of the elements that were deferred for the last, dense group. For a plan
    that has come to piece k in state s, the step ends no sooner than shares[:, k] @ s + rest[k], where `rest`
    (pieces + 1,) is the least that the groups still to come can add.
    """

    def __init__(self, problem: Problem, regime: Regime, limit_s: float) -> None:
        self.problem, self.regime = problem, regime
        self.edges = self.near = Edges.of(problem, regime, limit_s)
        self.slope = _least_wire(problem)
        self.kept: list[tuple[Array, Array]] = []
        self.lower_s = 0.0
        self.least_s = np.zeros(len(self.edges.start))
        """The earliest end of plans with each group."""
        self.is_near = np.ones(len(self.edges.start), bool)

    def drop(self, limit_s: float) -> None:
        """Drops the groups that are in no plan that ends before `limit_s`."""
        # a group counts while some plan with it may be better than the best one
        kept = self.least_s < limit_s
        if np.count_nonzero(kept) < DROP_BELOW * len(kept):
            self.edges, self.near = (
                self.edges.only(np.flatnonzero(kept)),
                self.edges.only(np.flatnonzero(kept & self.is_near)),
            )
            self.least_s, self.is_near = self.least_s[kept], self.is_near[kept]

    def add(self, shares: Array) -> tuple[float, Edges | None]:
        """Keeps the bound of these shares. Returns the bound on the whole step, and the plan that attains it: the
        bound is infinite and there is none where the groups left make no plan."""
        shares = self.completed(shares)
        # shortest ways: backward to the end, forward from the start
        seconds = self._seconds(self.edges, shares)
        rest, best = _backward(self.edges, seconds, self._last(shares))
        through_s = _forward(self.edges, seconds)[self.edges.start] + seconds + rest[self.edges.end]
        self.least_s = np.maximum(self.least_s, through_s)
        # mark the groups that look best
        few = NEAR * self.problem.pieces
        nearest = through_s <= np.partition(through_s, few)[few] if few < len(through_s) else True
        if self._keep(shares, rest):
            self.is_near[:] = False
        self.is_near |= nearest
        self.near = self.edges.only(np.flatnonzero(self.is_near))
        return float(rest[0]), _plan(self.edges, best) if rest[0] < np.inf else None

    def guess(self, shares: Array) -> Edges | None:
        """The plan of `add` among the near groups alone, without a bound: much faster."""
        shares = self.completed(shares)
        rest, best = _backward(self.near, self._seconds(self.near, shares), self._last(shares))
        return _plan(self.near, best) if rest[0] < np.inf else None

    def of(self, plans: Edges, first: Sequence[int], shares: Array) -> Array:
        """Bounds (mixes, plans) by completed `shares` (dims + 1, mixes, pieces + 1). Plans come one after the other,
        and their first groups have the numbers `first`."""
        last = np.array([self._last(own) for own in shares.swapaxes(0, 1)])
        return np.add.reduceat(self._seconds(plans, shares), first, axis=-1) + last[:, None]

    def completed(self, shares: Array) -> Array:
        """Shares completed by the weights of deferred elements."""
        tail = bool(self.problem.small.any())
        return np.vstack([self.regime.due(shares, tail), self.slope * _least_after(shares[self.regime.wire])])

    def _seconds(self, edges: Edges, shares: Array) -> Array:
        """Seconds that each group adds to the weighted mean."""
        before, after = (np.take(shares, at, axis=-1) for at in (edges.start, edges.end))
        # what the group adds on each of the regime's lanes, and for the elements it defers
        seconds = self.regime.price(before, after, edges.ready_s, GroupCosts(*edges.load))
        return SAFE * (seconds + after[-1] * edges.deferred)

    def _last(self, shares: Array) -> float:
        return self.regime.last(shares[:-1, -1], float(self.problem.ready_s[-1]))

    def finish(self, states: Array, k: int) -> Array:
        """The best bound for states (dims + 1, labels), whose last numbers are elements deferred, at piece `k`."""
        shares = np.stack([shares[:, k] for shares, _ in self.kept])
        return (shares @ states + np.array([[rest[k]] for _, rest in self.kept])).max(0)

    def _keep(self, shares: Array, rest: Array) -> bool:
        """Keeps a bound that is among the first, or higher than all before; returns whether it did."""
        keep = rest[0] > self.lower_s or len(self.kept) < len(WEIGHTS)
        if keep:
            self.kept.append((shares, rest))
            self.lower_s = max(self.lower_s, float(rest[0]))
        # the first bounds stay; of the others the oldest goes
        if len(self.kept) > MOST_KEPT:
            del self.kept[len(WEIGHTS)]
        return keep


def _backward(edges: Edges, seconds: Array, last_s: float) -> tuple[Array, Index]:
    """The least seconds from each piece to the end, and the first group of each shortest way."""
    n, first = edges.problem.pieces, edges.first_from
    rest, best = np.full(n + 1, np.inf), np.zeros(n, np.intp)
    rest[n] = last_s
    # the cheapest of the groups that begin here, with the shortest way behind it
    for k in range(n - 1, -1, -1):
        if first[k] < first[k + 1]:
            ways = seconds[first[k] : first[k + 1]] + rest[edges.end[first[k] : first[k + 1]]]
            own = ways.argmin()
            best[k], rest[k] = first[k] + own, ways[own]
    return rest, best


def _forward(edges: Edges, seconds: Array) -> Array:
    """The least seconds from the beginning to each piece."""
    n, first = edges.problem.pieces, edges.first_to
    seconds, starts = seconds[edges.by_end], edges.start[edges.by_end]
    forward = np.full(n + 1, np.inf)
    forward[0] = 0
    for k in range(1, n + 1):
        # the shortest way to here, over the groups that end here
        if first[k] < first[k + 1]:
            forward[k] = (seconds[first[k] : first[k + 1]] + forward[starts[first[k] : first[k + 1]]]).min()
    return forward


def _plan(edges: Edges, best: Index) -> Edges:
    """The groups of the way from the first piece."""
    own = [int(best[0])]
    while (k := edges.end[own[-1]]) < len(best):
        own.append(int(best[k]))
    return edges.only(own)


def _least_wire(problem: Problem) -> float:
    """Wire seconds that an element of a small slot costs at least."""
    lossless = [option for option in problem.options if option.lossless]
    return min((least_slope(option.wire) if option.units is None else 0.0 for option in lossless), default=0.0)


def longest(problem: Problem, regime: Regime, cuts: Cuts) -> tuple[float, Array]:
    """The earliest end of a plan's last mean, and the shares of its longest chain: 1 or 0 at the groups' ends, in
    proportion between them."""
    loads, ready = _loads_of(problem, cuts)
    # play the plan through
    states, backward_s = np.zeros((regime.dims, len(ready) + 1)), float(problem.ready_s[-1])
    for group, (load, at) in enumerate(zip(loads.T, ready, strict=True)):
        states[:, group + 1] = regime.least(tuple(states[:, group]), at, GroupCosts(*load), backward_s)
    # derivatives, propagated from the end
    growth = _growth(lambda state: regime.least(state, ready, GroupCosts(*loads), backward_s), states[:, :-1])
    last = _growth(lambda state: (regime.finish(state, backward_s),), states[:, -1:])[0, :, 0]
    shares = [last]
    for group in range(len(ready) - 1, -1, -1):
        shares.append(growth[:, :, group].T @ shares[-1])
    # interpolate between the groups' ends
    ends = [0, *(end for end, _ in cuts)]
    between = [np.interp(np.arange(problem.pieces + 1), ends, own) for own in np.array(shares[::-1])[: len(ends)].T]
    return float(regime.finish(tuple(states[:, -1]), backward_s)), np.array(between)


def _loads_of(problem: Problem, cuts: Cuts) -> tuple[Array, Array]:
    """Encode, wire and decode seconds (3, groups), and when groups are ready."""
    ends, options = np.array(cuts).T
    starts = np.array([0, *ends[:-1]])
    own = problem.deferred[ends] - problem.deferred[starts]
    lossless = np.array([problem.options[option].lossless for option in options])
    total = np.cumsum(own)
    taken = np.maximum.accumulate(np.where(lossless, total, 0))
    # a lossless group takes what was deferred before it; sums over groups, without a loop
    deferred = np.where(lossless, total - own - np.array([0.0, *taken[:-1]]), 0)
    loads, ready = np.zeros((3, len(cuts))), np.zeros(len(cuts))
    for option in set(options.tolist()):
        by = options == option
        loads[:, by] = load_of(problem, option, starts[by], ends[by], deferred[by])
        ready[by] = problem.views[option].ready_s[ends[by]]
    # what is deferred in the end is a last group
    if (left := total[-1] - taken[-1]) > 0:
        tail = [float(seconds) for seconds in load_of(problem, problem.tail, 0, 0, left)]
        loads = np.concatenate([loads, np.array(tail)[:, None]], axis=1)
        ready = np.append(ready, problem.ready_s[-1])
    return loads, ready


def _growth(step: Callable[[State], tuple[Array, ...]], states: Array) -> Array:
    """By how much each result grows with each number of the states (dims, n): (results, dims, n). One number after the
    other grows and stays so, so that of two equal maxima only one counts."""
    nudge = 1e-6 * states.max() + 1e-300
    grown = np.tril(np.full((len(states), len(states)), nudge))
    results = np.array([step(tuple(states)), *(step(tuple(states + own[:, None])) for own in grown)])
    growth = np.diff(results, axis=0).swapaxes(0, 1) / nudge
    return np.where(np.abs(growth - growth.round()) < ROUGH, growth.round(), growth)


def _least_after(values: Array) -> Array:
    """The least of the values after each, and the last itself."""
    least = np.minimum.accumulate(values[::-1])[::-1]
    return np.append(least[1:], least[-1])
