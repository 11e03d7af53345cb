"""The script of a step: its entries in order, the same on all ranks.

The runtime walks it, and the scheduler prices it.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

IN_FLIGHT = 2
"""Groups whose collectives are under way at the same time, beside the one that is being encoded."""


class Entry(NamedTuple):
    """Turn `turn` of a group: 0 takes its gradients in, encodes and starts its first collective; each later one goes on
    when the collective before it is done; the last one decodes."""

    group: int
    """The group's number in the plan."""
    turn: int
    """How many of its collectives were started before."""


def script(groups: Sequence[int], rounds: Sequence[int]) -> list[Entry]:
    """A step of these `groups`, in this order, of which group g takes `rounds[g]` collectives one after another.

    A group that was started pushes the oldest one on: with two rounds each, the second round of one group follows the
    first of the next, and none is left over for the end of the step.
    """
    entries: list[Entry] = []
    in_flight: deque[Entry] = deque()

    def advance() -> None:
        entry = in_flight.popleft()
        entries.append(entry)
        # its next collective, or its decoding behind the last one
        if entry.turn < rounds[entry.group]:
            in_flight.append(Entry(entry.group, entry.turn + 1))

    for number, group in enumerate(groups, 1):
        entries.append(Entry(group, 0))
        in_flight.append(Entry(group, 1))
        # the last group: all that is in flight is finished in order
        if number == len(groups):
            break
        if len(in_flight) >= IN_FLIGHT:
            advance()
        while len(in_flight) > IN_FLIGHT:
            advance()
    while in_flight:
        advance()
    return entries


def under_way(entries: Sequence[Entry]) -> dict[int, int]:
    """A number for each group of a script, the least that no other one has between its first turn and its last."""
    last = {entry.group: at for at, entry in enumerate(entries)}
    numbers: dict[int, int] = {}
    busy: set[int] = set()
    for at, (group, turn) in enumerate(entries):
        if turn == 0:
            numbers[group] = next(number for number in range(len(busy) + 1) if number not in busy)
            busy.add(numbers[group])
        if last[group] == at:
            busy.remove(numbers[group])
    return numbers
