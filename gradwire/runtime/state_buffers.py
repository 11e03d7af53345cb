"""Arenas: state of gradient size, slot after slot, in the order of the plan, and twice."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from gradwire.compressors import Halves
from gradwire.slots import Slot
from gradwire.torch_private.foreach import copy_each


class Arena:
    """One kind of state of all slots: two halves (2, numel) float32. For each place `holds` says which of them holds,
    and `used` whether it may be other than zero."""

    def __init__(self, numel: int, places: int, device: torch.device) -> None:
        self.tensor = torch.zeros(2, numel, dtype=torch.float32, device=device)
        self.holds, self.used = bytearray(places), bytearray(places)


class Arenas:
    """The arenas of a job, by kind: "residual", "velocity", "momentum".

    A step reads the half that holds and writes the other one; when it is good, they change places. `order[place]` is
    the slot that lies at a place. A slot has a place, and takes memory, from the first plan on that has it.
    """

    def __init__(self, slots: Sequence[Slot], device: torch.device) -> None:
        self.slots, self.device = slots, device
        self.kinds: dict[str, Arena] = {}
        self.order: list[int] = []
        self._put([])

    def _put(self, order: Sequence[int]) -> None:
        self.order = list(order)
        starts = list(accumulate((self.slots[slot].numel for slot in order), initial=0))
        self.numel = starts[-1]
        self._start = {slot: starts[place] for place, slot in enumerate(order)}
        self._place = {slot: place for place, slot in enumerate(order)}

    def need(self, kind: str) -> None:
        """Makes the arena of a kind, all zero, where there is none."""
        if kind not in self.kinds:
            self.kinds[kind] = Arena(self.numel, len(self.order), self.device)

    def follow(self, groups: Sequence[Sequence[int]]) -> None:
        """Has the slots of each group lie side by side, those of no group behind them; moves nothing where they do."""
        if all(self._are_neighbours(group) for group in groups):
            return
        for arena in self.kinds.values() if self.order else ():
            self._gather(arena, 0, len(self.order))
        wanted = [slot for group in groups for slot in group]
        chosen, starts, places = set(wanted), self._start, self._place
        self._put([*wanted, *(slot for slot in self.order if slot not in chosen)])
        for arena in self.kinds.values():
            self._move(arena, starts, places)

    def hold(self, slots: Sequence[int]) -> None:
        """Gives a place to those that have none."""
        if new := [slot for slot in slots if slot not in self._place]:
            self.follow([[*self.order, *new]])

    def _are_neighbours(self, group: Sequence[int]) -> bool:
        first = self._place.get(group[0])
        return first is not None and self.order[first : first + len(group)] == list(group)

    def _move(self, arena: Arena, starts: Mapping[int, int], places: Mapping[int, int]) -> None:
        """Copies each slot from where it lay to its new place, in the other half, or in a larger arena."""
        old, grows = arena.tensor, arena.tensor.shape[1] < self.numel
        target = torch.zeros(2, self.numel, dtype=torch.float32, device=self.device) if grows else old
        half = arena.holds[0] if places else 0
        pairs = [(self._start[slot], starts[slot], self.slots[slot].numel) for slot in self.order if slot in starts]
        copy_each([target[1 - half, to : to + n] for to, _, n in pairs], [old[half, at : at + n] for _, at, n in pairs])
        arena.tensor, arena.holds = target, bytearray([1 - half]) * len(self.order)
        arena.used = bytearray(arena.used[places[slot]] if slot in places else 0 for slot in self.order)

    def view(self, kind: str, slot: int) -> Tensor:
        """What is kept of a kind for a slot, in the slot's shape."""
        arena, start = self.kinds[kind], self._start[slot]
        half = arena.holds[self._place[slot]]
        return self.slots[slot].view(arena.tensor[half, start : start + self.slots[slot].numel])

    def write(self, kind: str, slot: int, tensor: Tensor) -> None:
        """Replaces what is kept for a slot, by a tensor of its shape."""
        self.view(kind, slot).copy_(tensor)
        self.kinds[kind].used[self._place[slot]] = True

    def clear(self, kind: str, slot: int) -> None:
        """Nothing is kept for a slot any more."""
        if self.used(kind, slot):
            self.view(kind, slot).zero_()
            self.kinds[kind].used[self._place[slot]] = False

    def used(self, kind: str, slot: int) -> bool:
        """Whether what is kept for a slot may be other than zero."""
        return slot in self._place and bool(self.kinds[kind].used[self._place[slot]])

    def take(self, kind: str, slots: Sequence[int]) -> "Part":
        """The part of an arena that belongs to neighbours in the order."""
        arena, first = self.kinds[kind], self._place[slots[0]]
        self._gather(arena, first, first + len(slots))
        start, numel = self._start[slots[0]], sum(self.slots[slot].numel for slot in slots)
        return Part(arena, first, first + len(slots), start, start + numel)

    def _gather(self, arena: Arena, first: int, last: int) -> None:
        """Has the same half hold at all these places; they differ where some took part in a step and others did not."""
        half = arena.holds[first]
        for place in range(first, last):
            if arena.holds[place] != half:
                start, n = self._start[self.order[place]], self.slots[self.order[place]].numel
                arena.tensor[half, start : start + n].copy_(arena.tensor[1 - half, start : start + n])
                arena.holds[place] = half


class Part:
    """A group's part of an arena."""

    def __init__(self, arena: Arena, first: int, last: int, start: int, end: int) -> None:
        self._arena, self._first, self._last = arena, first, last
        self._halves = arena.tensor[0, start:end], arena.tensor[1, start:end]
        self._used_before: bytes | None = None

    @property
    def halves(self) -> Halves:
        """The half that holds, and the one that is written."""
        half = self._arena.holds[self._first]
        return Halves(self._halves[half], self._halves[1 - half])

    def commit(self, used: bool) -> None:
        """Makes the half that was written the one that holds; all of it is zero where it is not `used`."""
        self._used_before = bytes(self._arena.used[self._first : self._last])
        self._arena.used[self._first : self._last] = bytes([used]) * (self._last - self._first)
        self._swap()

    def take_back(self) -> None:
        """The last commit, if there was one, did not happen."""
        if self._used_before is not None:
            self._arena.used[self._first : self._last] = self._used_before
            self._used_before = None
            self._swap()

    @property
    def used(self) -> bool:
        """Whether any of it may be other than zero."""
        return any(self._arena.used[self._first : self._last])

    def _swap(self) -> None:
        half = self._arena.holds[self._first]
        self._arena.holds[self._first : self._last] = bytes([1 - half]) * (self._last - self._first)
