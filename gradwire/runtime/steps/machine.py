"""The step protocol as a pure state machine: gradients arrive, script entries follow, the step ends.

Two threads share the work. `Arrivals` belongs to the thread that trains and counts gradients. `Machine` belongs to the
worker: from the groups that are complete follows the next entry of the step's script. Nothing else orders entries, so
all ranks start the same collectives in the same order.
"""

from collections.abc import Callable, Sequence

from gradwire.script import Entry, script

HERE, ABSENT = 1, 2
NO_GROUP = -1
"""The group of a slot whose parameter is not trained now."""


class Arrivals:
    """Counts the gradients of a step's groups. Calls `complete(group, absent)`, with the absent slots, when the last
    slot of a group is known to be here or absent."""

    arrived: bytearray
    """HERE or ABSENT by slot, once that is known, else 0."""

    def __init__(self, complete: Callable[[int, list[int]], None]) -> None:
        self._complete, self.arrived = complete, bytearray()
        self.follow([], 0)

    def follow(self, members: Sequence[Sequence[int]], slots: int) -> None:
        """Counts groups with these members from now on; between two steps."""
        # by slot its group
        places = {slot: group for group, own in enumerate(members) for slot in own}
        self._group_of = [places.get(slot, NO_GROUP) for slot in range(slots)]
        self._sizes = [len(slots) for slots in members]
        self.begin()

    def begin(self) -> None:
        """Begins a step, with no gradient there."""
        self._missing = list(self._sizes)
        self._absent: list[list[int]] = [[] for _ in self._sizes]
        # in place: the front end reads it
        self.arrived[:] = bytes(len(self._group_of))

    def group_of(self, slot: int) -> int:
        """The group that a slot belongs to."""
        return self._group_of[slot]

    def all_there(self, groups: Sequence[int]) -> bool:
        """Whether these groups are complete."""
        return not any(self._missing[group] for group in groups)

    def missing(self, groups: Sequence[int]) -> list[int]:
        """The slots of these groups that are neither here nor absent yet."""
        wanted = set(groups)
        return [slot for slot, group in enumerate(self._group_of) if group in wanted and not self.arrived[slot]]

    def mark_ready(self, slot: int) -> None:
        """Counts a slot's gradient. (Called for each parameter and step: nothing else belongs here.)"""
        self.arrived[slot] = HERE
        group = self._group_of[slot]
        self._missing[group] -= 1
        if not self._missing[group]:
            self._complete(group, self._absent[group])

    def mark_absent(self, slot: int) -> None:
        """Counts a slot without a gradient in this step."""
        self.arrived[slot] = ABSENT
        group = self._group_of[slot]
        self._absent[group].append(slot)
        self._missing[group] -= 1
        # the last slot of a group completes it, whether it has a gradient or not
        if not self._missing[group]:
            self._complete(group, self._absent[group])


class Machine:
    """A walk through the scripts of steps, one after another."""

    def __init__(self) -> None:
        self._script: list[Entry] = []
        self._at = 0
        self._complete: set[int] = set()
        self._running = self._failed = False

    def begin(self, groups: Sequence[int], rounds: Sequence[int]) -> None:
        """Begins a step of these groups, of which group g takes `rounds[g]` collectives."""
        assert not self._running, "a step begins when the one before has ended"
        self._script = script(groups, rounds)
        self._at = 0
        self._running = True
        self._complete.clear()

    def complete(self, group: int) -> None:
        """Marks a group as complete: its gradients are here or absent."""
        self._complete.add(group)

    def fail(self) -> None:
        """Stops the walk. On any thread; the worker looks before each entry."""
        self._failed = True

    def next(self) -> Entry | None:
        """The entry to carry out now; None where a group's gradients have to arrive first, or all is done."""
        # between steps, after a failure, or behind the last entry
        if not self._running or self._failed or self._at == len(self._script):
            return None
        entry = self._script[self._at]
        # turn 0 needs the group's gradients; later turns follow from the collective before, on all ranks
        if entry.turn == 0 and entry.group not in self._complete:
            return None
        self._at += 1
        return entry

    def end(self) -> bool:
        """Ends the step if all its groups are reduced; returns whether they are."""
        ends = self._running and not self._failed and self._at == len(self._script)
        self._running = self._running and not ends
        return ends
