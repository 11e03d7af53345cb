"""State of gradient size, slot after slot in the plan's order, double-buffered."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradwire.compressors import DoubleBuffer
from gradwire.memories import RESIDUAL
from gradwire.plans import Group, Plan
from gradwire.slots import Slot
from gradwire.torch_private.foreach import copy_each

ALIGNED = 16
"""Groups begin on multiples of so many elements: kernels read others in shorter words, by a variant of their own."""


class StateBuffer:
    """One kind of state of all slots, two halves (2, numel). By place, `holds` is the half that is the state, and
    `used` whether it may be other than zero."""

    def __init__(self, numel: int, places: int, dtype: torch.dtype, device: torch.device) -> None:
        self.tensor = torch.zeros(2, numel, dtype=dtype, device=device)
        self.holds, self.used = bytearray(places), bytearray(places)


class StateBuffers:
    """The state buffers of a job, by kind: "residual", "velocity", "momentum".

    A step reads the half that holds and writes the other one; when it is good, they swap. `order[place]` is the slot at
    a place. A slot has a place, and takes memory, from the first plan on that has it. The slots of a group lie side by
    side; between groups is a gap where they begin ALIGNED.
    """

    def __init__(self, slots: Sequence[Slot], device: torch.device) -> None:
        self.slots, self.device = slots, device
        self.kinds: dict[str, StateBuffer] = {}
        self.order: list[int] = []
        self._put([])

    def _put(self, groups: Sequence[Sequence[int]]) -> None:
        self.order = [slot for group in groups for slot in group]
        self._place = {slot: place for place, slot in enumerate(self.order)}
        # group after group, each from a multiple of ALIGNED on
        self._start, end = dict[int, int](), 0
        for group in groups:
            end = _aligned(end)
            for slot in group:
                self._start[slot], end = end, end + self.slots[slot].numel
        # room for any other groups of these slots
        self.numel = _aligned(sum(self.slots[slot].numel + ALIGNED for slot in self.order))

    @property
    def nbytes(self) -> int:
        """Bytes of all kinds, both halves."""
        return sum(buffer.tensor.nbytes for buffer in self.kinds.values())

    def need(self, kind: str, dtype: torch.dtype | None = None) -> None:
        """Adds the buffer of a kind, all zero, if there is none. With a `dtype` it has that type from now on; without
        one its own, float32 at first."""
        if kind not in self.kinds:
            self.kinds[kind] = StateBuffer(self.numel, len(self.order), dtype or torch.float32, self.device)
        elif dtype:
            buffer = self.kinds[kind]
            buffer.tensor = buffer.tensor.to(dtype)

    def follow(self, groups: Sequence[Sequence[int]]) -> None:
        """Moves the slots of each group to where it begins ALIGNED, side by side, and those of no group behind them,
        unless they lie so already."""
        if all(map(self._lies_well, groups)):
            return
        for buffer in self.kinds.values() if self.order else ():
            self._gather(buffer, 0, len(self.order))
        # new places for all slots; then each kind is copied there once
        chosen = {slot for group in groups for slot in group}
        starts, places = self._start, self._place
        self._put([*groups, [slot for slot in self.order if slot not in chosen]])
        for buffer in self.kinds.values():
            self._move(buffer, starts, places)

    def hold(self, slots: Sequence[int]) -> None:
        """Adds places for slots that have none."""
        if new := [slot for slot in slots if slot not in self._place]:
            self.follow([[*self.order, *new]])

    def _lies_well(self, group: Sequence[int]) -> bool:
        first = self._place.get(group[0])
        if first is None or self.order[first : first + len(group)] != list(group):
            return False
        # aligned, and without a gap
        start, last = self._start[group[0]], group[-1]
        end = start + sum(self.slots[slot].numel for slot in group)
        return start % ALIGNED == 0 and self._start[last] + self.slots[last].numel == end

    def _move(self, buffer: StateBuffer, starts: Mapping[int, int], places: Mapping[int, int]) -> None:
        """Copies each slot from where it lay to its new place, in the other half, or in a larger buffer."""
        old, grows = buffer.tensor, buffer.tensor.shape[1] < self.numel
        # into the other half, so that no slot is overwritten before it is copied
        target = torch.zeros(2, self.numel, dtype=old.dtype, device=self.device) if grows else old
        half = buffer.holds[0] if places else 0
        pairs = [(self._start[slot], starts[slot], self.slots[slot].numel) for slot in self.order if slot in starts]
        copy_each([target[1 - half, to : to + n] for to, _, n in pairs], [old[half, at : at + n] for _, at, n in pairs])
        # halves and marks of use move along
        buffer.tensor, buffer.holds = target, bytearray([1 - half]) * len(self.order)
        buffer.used = bytearray(buffer.used[places[slot]] if slot in places else 0 for slot in self.order)

    def view(self, kind: str, slot: int) -> Tensor:
        """A slot's state of a kind, in the slot's shape."""
        buffer, start = self.kinds[kind], self._start[slot]
        half = buffer.holds[self._place[slot]]
        return self.slots[slot].view(buffer.tensor[half, start : start + self.slots[slot].numel])

    def write(self, kind: str, slot: int, tensor: Tensor) -> None:
        """Replaces a slot's state by a tensor of its shape."""
        self.view(kind, slot).copy_(tensor)
        self.kinds[kind].used[self._place[slot]] = True

    def clear(self, kind: str, slot: int) -> None:
        """Zeroes a slot's state."""
        if self.used(kind, slot):
            self.view(kind, slot).zero_()
            self.kinds[kind].used[self._place[slot]] = False

    def used(self, kind: str, slot: int) -> bool:
        """Whether a slot's state may be other than zero."""
        return slot in self._place and bool(self.kinds[kind].used[self._place[slot]])

    def part(self, kind: str, slots: Sequence[int]) -> "BufferPart":
        """A group's part of a buffer; its slots lie side by side."""
        buffer, first = self.kinds[kind], self._place[slots[0]]
        self._gather(buffer, first, first + len(slots))
        start, numel = self._start[slots[0]], sum(self.slots[slot].numel for slot in slots)
        return BufferPart(buffer, first, first + len(slots), start, start + numel)

    def _gather(self, buffer: StateBuffer, first: int, last: int) -> None:
        """Copies so that the same half holds at all these places; they differ where only some took part in a step."""
        half = buffer.holds[first]
        for place in range(first, last):
            # the slot was in no step since: copy it to the half of the others
            if buffer.holds[place] != half:
                start, n = self._start[self.order[place]], self.slots[self.order[place]].numel
                buffer.tensor[half, start : start + n].copy_(buffer.tensor[1 - half, start : start + n])
                buffer.holds[place] = half


class BufferPart:
    """A group's part of a buffer."""

    def __init__(self, buffer: StateBuffer, first: int, last: int, start: int, end: int) -> None:
        self._buffer, self._first, self._last = buffer, first, last
        self._halves = buffer.tensor[0, start:end], buffer.tensor[1, start:end]
        self._used_before: bytes | None = None

    @property
    def side(self) -> int:
        """Which half holds, 0 or 1."""
        return self._buffer.holds[self._first]

    @property
    def double_buffer(self) -> DoubleBuffer:
        """The half that is the state, and the one that a step writes."""
        half = self.side
        return DoubleBuffer(self._halves[half], self._halves[1 - half])

    def commit(self, used: bool) -> None:
        """Makes the half that was written the one that holds; all of it is zero where it is not `used`."""
        self._used_before = bytes(self._buffer.used[self._first : self._last])
        self._buffer.used[self._first : self._last] = bytes([used]) * (self._last - self._first)
        self._swap()

    def take_back(self) -> None:
        """Undoes the last commit, if there was one."""
        if self._used_before is not None:
            self._buffer.used[self._first : self._last] = self._used_before
            self._used_before = None
            self._swap()

    @property
    def used(self) -> bool:
        """Whether any of it may be other than zero."""
        return any(self._buffer.used[self._first : self._last])

    def _swap(self) -> None:
        half = self._buffer.holds[self._first]
        self._buffer.holds[self._first : self._last] = bytes([1 - half]) * (self._last - self._first)


def _aligned(start: int) -> int:
    return -(-start // ALIGNED) * ALIGNED


def kinds_of(group: Group) -> tuple[str, ...]:
    """The kinds of state of gradient size that a group's steps write."""
    return tuple(dict.fromkeys((*group.memory.flat_state, *group.compressor.flat_state)))


def dtypes_of(plan: Plan) -> dict[str, torch.dtype]:
    """The type of each kind of state that a plan's steps write. All residuals are of one: float32 where any is."""
    dtypes = {kind: torch.float32 for group in plan.groups for kind in kinds_of(group)}
    if all(group.memory.residual_dtype == torch.bfloat16 for group in plan.groups if RESIDUAL in kinds_of(group)):
        dtypes |= dict.fromkeys(dtypes.keys() & {RESIDUAL}, torch.bfloat16)
    return dtypes
