"""The scheduling problem: slots in the order of backward, ways to send a group, and what a group is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradwire.schedule.costs import ZERO_COST, Array, Cost, Index

Cuts = list[tuple[int, int]]
"""Groups as (end, option): the piece before which each ends, and how it is sent."""


@dataclass(frozen=True)
class Option:
    """One way to send a group, with the costs of its parts."""

    encode: Cost
    """Seconds against the group's elements."""
    wire: Cost
    """Seconds against the sum of the slots' `units`."""
    decode: Cost
    """Seconds against the group's elements."""
    lossless: bool = False
    """Only then may it carry small slots."""
    units: Array | None = None
    """Of each slot (N,); by default its elements."""
    local: Cost = ZERO_COST
    """Seconds inside hosts, on top of `wire`, against elements."""
    efficiency: float = 1.0
    """Progress of a step that sends all large slots so, in dense steps."""
    filler: bool = False
    """It carries small slots alone, in the last group."""


@dataclass(frozen=True)
class GroupChoice:
    """A group: the indices of its slots and of the option that sends it."""

    slots: tuple[int, ...]
    """In ascending order."""
    option: int
    """Its index among the problem's options."""


@dataclass(frozen=True, eq=False)
class Problem:
    """N slots in the order of backward, and the ways to send them. They are cut into groups between pieces: a piece is
    a large slot with the small ones that follow it.

    Raises ValueError where slots are small and no option is lossless.
    """

    ready_s: Array
    """(N,) seconds after backward began; never falling."""
    elements: Array
    """(N,) elements of each slot."""
    small: NDArray[np.bool_]
    """(N,) whether it travels uncompressed."""
    options: tuple[Option, ...]
    """The ways in which a group may be sent."""
    around_s: float = 0.0
    """Seconds of a step before backward and after the last mean."""

    def __post_init__(self) -> None:
        assert np.all(np.diff(self.ready_s) >= 0)
        if self.small.any() and not any(option.lossless for option in self.options):
            raise ValueError("small slots travel dense, and no candidate is; add gw.FP32() to the candidates")

    @cached_property
    def bounds(self) -> Index:
        """The slots at which pieces begin, and N."""
        large = np.flatnonzero(~self.small)
        return np.concatenate([[0], large[1:], [len(self.small)]])

    @property
    def pieces(self) -> int:
        return len(self.bounds) - 1

    @cached_property
    def deferred(self) -> Array:
        """Elements in small slots of the first pieces (pieces + 1,)."""
        return np.concatenate([[0.0], np.cumsum(self.elements * self.small)])[self.bounds]

    @cached_property
    def views(self) -> tuple["PrefixSums", ...]:
        """The slots as each option sees them."""
        return tuple(PrefixSums.of(self, option) for option in self.options)

    @property
    def chosen_from(self) -> list[int]:
        """The options that may carry large slots."""
        return [index for index, option in enumerate(self.options) if not option.filler]

    @cached_property
    def tail(self) -> int:
        """The option of the last group, of deferred slots: the lossless one that takes the least time in all, for all
        small slots together."""
        pending = np.array([self.elements[self.small].sum()])
        parts = [(o.encode, o.wire, o.local, o.decode) if o.lossless else () for o in self.options]
        return int(np.argmin([sum(cost(pending)[0] for cost in costs) if costs else np.inf for costs in parts]))


@dataclass(frozen=True)
class PrefixSums:
    """Prefix sums (pieces + 1,) over the slots that an option takes: all of them if it is lossless, else the large
    ones. `ready_s[k]` is when the last of those in the first k pieces is ready."""

    count: Array
    """Slots."""
    elements: Array
    """Their elements."""
    units: Array
    """Their units."""
    ready_s: Array

    @classmethod
    def of(cls, problem: Problem, option: Option) -> "PrefixSums":
        """The slots of `problem` that `option` takes."""
        # a lossy option does not take small slots
        taken = np.ones(len(problem.small), bool) if option.lossless else ~problem.small
        units = problem.elements if option.units is None else option.units
        sums = [
            np.concatenate([[0.0], np.cumsum(taken * values)])
            for values in (np.ones(len(taken)), problem.elements, units)
        ]
        # a group is ready once its last slot is
        ready = np.maximum.accumulate(np.concatenate([[0.0], np.where(taken, problem.ready_s, 0)]))
        return cls(*(values[problem.bounds] for values in (*sums, ready)))


def assemble(problem: Problem, cuts: Sequence[tuple[int, int]]) -> tuple[GroupChoice, ...]:
    """The groups that end before piece `end` and use `option`, for each (end, option).

    A lossy option takes the large slots since the last cut and defers the small ones; a lossless one takes all slots,
    and all small ones deferred so far. What is still deferred at the end is a last group.
    """
    groups: list[GroupChoice] = []
    deferred: list[int] = []
    start = 0
    for piece, option in cuts:
        # the slots up to the cut; a lossy option leaves the small ones
        end = int(problem.bounds[piece])
        lossless = problem.options[option].lossless
        own = [i for i in range(start, end) if lossless or not problem.small[i]]
        # the deferred ones go along, in the order of slots
        if lossless:
            own, deferred = sorted(deferred + own), []
        else:
            deferred += [i for i in range(start, end) if problem.small[i]]
        groups += [GroupChoice(tuple(own), option)] if own else []
        start = end
    return (*groups, GroupChoice(tuple(deferred), problem.tail)) if deferred else tuple(groups)
