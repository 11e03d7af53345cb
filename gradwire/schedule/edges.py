"""The groups that plans may have, as the edges of a graph whose nodes are the places between pieces."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradwire.schedule.costs import ZERO_COST, Array, Index
from gradwire.schedule.problem import Cuts, Problem
from gradwire.schedule.regimes import GroupCosts, Regime


def load_of(
    problem: Problem, option: int, first: Index | int, last: Index | int, deferred: Array | float = 0.0
) -> GroupCosts:
    """Costs of groups of the pieces first..last-1 and `deferred` elements of small slots."""
    # elements and units of the group are differences of prefix sums
    how, view = problem.options[option], problem.views[option]
    elements = view.elements[last] - view.elements[first] + deferred
    units = elements if how.units is None else view.units[last] - view.units[first]
    wire = how.wire(units) if how.local is ZERO_COST else how.wire(units) + how.local(elements)
    return GroupCosts(how.encode(elements), wire, how.decode(elements))


@dataclass(frozen=True, eq=False)
class Edges:
    """Possible groups in the order of `start`: number g takes the pieces `start[g]` to `end[g]` - 1 with `option[g]`,
    and costs `load[:, g]`."""

    problem: Problem
    """Whose pieces these groups are made of."""
    start: Index
    """(edges,) first pieces."""
    end: Index
    """(edges,) the pieces after the last ones."""
    option: Index
    """(edges,) the options that send them."""
    load: Array
    """(3, edges) seconds of encoding, of the wire, and of decoding."""

    @classmethod
    def of(cls, problem: Problem, regime: Regime, limit_s: float) -> "Edges":
        """All groups of plans that may end before `limit_s`."""
        # each piece's row: all groups that begin there
        rows = [_row(problem, regime, start, limit_s) for start in range(problem.pieces)]
        start = np.repeat(np.arange(problem.pieces), [len(ends) for ends, _, _ in rows])
        end = np.concatenate([ends for ends, _, _ in rows])
        option = np.concatenate([options for _, options, _ in rows])
        load = np.concatenate([load for _, _, load in rows], axis=1)
        return cls(problem, start, end, option, np.ascontiguousarray(load))

    @property
    def cuts(self) -> Cuts:
        return list(zip(self.end.tolist(), self.option.tolist(), strict=True))

    def only(self, taken: Index | list[int]) -> "Edges":
        """The edges with these indices."""
        load = np.take(self.load, taken, axis=1)
        return Edges(self.problem, self.start[taken], self.end[taken], self.option[taken], load)

    def followed_by(self, others: "Edges") -> "Edges":
        """These edges, then others of the same problem."""
        start, end, option = (
            np.concatenate(own)
            for own in zip((self.start, self.end, self.option), (others.start, others.end, others.option), strict=True)
        )
        return Edges(self.problem, start, end, option, np.concatenate([self.load, others.load], axis=1))

    @cached_property
    def ready_s(self) -> Array:
        return np.stack([view.ready_s for view in self.problem.views])[self.option, self.end]

    @cached_property
    def lossless(self) -> NDArray[np.bool_]:
        return np.array([option.lossless for option in self.problem.options])[self.option]

    @cached_property
    def deferred(self) -> Array:
        """Elements of small slots that each defers."""
        deferred = self.problem.deferred
        return np.where(self.lossless, 0, deferred[self.end] - deferred[self.start])

    @cached_property
    def by_end(self) -> Index:
        return np.argsort(self.end, kind="stable")

    @cached_property
    def first_from(self) -> list[int]:
        """The first that begins with each piece or later."""
        return np.searchsorted(self.start, np.arange(self.problem.pieces + 1)).tolist()

    @cached_property
    def first_to(self) -> list[int]:
        """The first in `by_end` that ends before each piece or later."""
        return np.searchsorted(self.end[self.by_end], np.arange(self.problem.pieces + 2)).tolist()

    def into(self, k: int) -> Index:
        """Those that end before piece `k`."""
        return self.by_end[self.first_to[k] : self.first_to[k + 1]]


def _row(problem: Problem, regime: Regime, start: int, limit_s: float) -> tuple[Index, Index, Array]:
    """Ends, options and loads (3, groups) of the groups that begin with piece `start`. One that is nowhere
    faster than another option's with the same slots is left out."""
    ends = np.arange(start + 1, problem.pieces + 1)
    zero, backward_s = (np.zeros(len(ends)),) * regime.dims, float(problem.ready_s[-1])
    loads = np.array([load_of(problem, option, start, ends) for option in range(len(problem.options))])
    kept = np.zeros((len(loads), len(ends)), bool)
    # leave out groups that are too late by themselves, or nowhere faster than with another option
    for number, (load, view) in enumerate(zip(loads, problem.views, strict=True)):
        end_s = regime.finish(regime.step(zero, view.ready_s[ends], GroupCosts(*load), backward_s), backward_s)
        kept[number] = (view.count[start] < view.count[ends]) & (end_s < limit_s) & (not problem.options[number].filler)
        for other in _comparable(problem, number):
            as_fast = (loads[other] <= load).all(0)
            kept[number] &= ~as_fast if other < number else ~(as_fast & (loads[other] < load).any(0))
    options, chosen = np.nonzero(kept)
    return ends[chosen], options, loads[options, :, chosen].T


def _comparable(problem: Problem, number: int) -> list[int]:
    """The other options that take the same slots whatever was deferred."""
    if not problem.small.any():
        return [other for other in problem.chosen_from if other != number]
    lossy = [other for other, option in enumerate(problem.options) if not option.lossless]
    return [other for other in lossy if other != number] if number in lossy else []
