"""State of gradient size, slot after slot in the plan's order, double-buffered."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.compressors import DoubleBuffer
from gradwire.memories import RESIDUAL
from gradwire.ops.backend import backend_for
from gradwire.ops.eight_bits import blocks_of, dequantise, quantise
from gradwire.ops.formats import Blocks
from gradwire.ops.noise import Seed
from gradwire.ops.workspace import Workspace
from gradwire.plans import Group, Plan
from gradwire.runtime.state.buffer_layout import BufferLayout
from gradwire.slots import Slot
from gradwire.torch_private.foreach import copy_each


class StateBuffer:
    """One kind of state of all slots, as a double buffer: `tensor` (2, numel), or in int8 (2, bytes) uint8 with a
    payload for each group. For each place, `current` says which half is the present state, 0 or 1, and `used` whether
    that may be other than zero."""

    def __init__(self, places: BufferLayout, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        held = torch.uint8 if dtype == torch.int8 else dtype
        self.tensor = torch.zeros(2, places.capacity(dtype), dtype=held, device=device)
        self.current, self.used = bytearray(len(places.order)), bytearray(len(places.order))


class StateBuffers:
    """The state buffers of a job, by kind: "residual", "velocity", "momentum".

    A step reads the current half and writes the other one; when it is good, they swap. A slot has a place, and takes
    memory, from the first plan on that has it.
    """

    def __init__(self, slots: Sequence[Slot], device: torch.device) -> None:
        self.slots, self.device = slots, device
        self.kinds: dict[str, StateBuffer] = {}
        self._places = BufferLayout(slots, [])

    @property
    def nbytes(self) -> int:
        """Bytes of all kinds, both halves."""
        return sum(buffer.tensor.nbytes for buffer in self.kinds.values())

    def need(self, kind: str, dtype: torch.dtype | None = None) -> None:
        """Adds the buffer of a kind, all zero, if there is none. With a `dtype` it has that type from now on; without
        one its own, float32 at first."""
        old = self.kinds.get(kind)
        if old and dtype in (None, old.dtype):
            return
        # slot by slot to the new type
        order = self._places.order if old else ()
        kept = [(slot, self.read(kind, slot)) for slot in order if self.used(kind, slot)]
        self.kinds[kind] = StateBuffer(self._places, dtype or torch.float32, self.device)
        for slot, tensor in kept:
            self.write(kind, slot, tensor)

    def follow(self, groups: Sequence[Sequence[int]]) -> None:
        """Moves the slots of each group to where it begins ALIGNED, side by side, and those of no group behind them,
        unless they lie so already."""
        before = self._places
        if all(tuple(group) in before.groups for group in groups):
            return
        for buffer in self.kinds.values():
            self._gather(buffer, 0, len(before.order))
        # new places for all slots; then each kind is copied there once
        chosen = {slot for group in groups for slot in group}
        self._places = BufferLayout(self.slots, [*groups, [slot for slot in before.order if slot not in chosen]])
        for buffer in self.kinds.values():
            self._move(buffer, before)

    def hold(self, slots: Sequence[int]) -> None:
        """Adds places for slots that have none."""
        if new := [slot for slot in slots if slot not in self._places.of]:
            self.follow([*self._places.groups, new])

    def _move(self, buffer: StateBuffer, before: BufferLayout) -> None:
        """Copies each slot from where it lay to its new place, in the other half, or in a larger buffer."""
        old, now = buffer.tensor, self._places
        # into the other half, so that no slot is overwritten before it is copied
        grows = old.shape[1] < now.capacity(buffer.dtype)
        target = old.new_zeros(2, now.capacity(buffer.dtype)) if grows else old
        half = buffer.current[0] if before.order else 0
        pairs = [
            pair
            for slot in before.order
            for pair in zip(now.spans(slot, buffer.dtype), before.spans(slot, buffer.dtype), strict=True)
        ]
        copy_each([target[1 - half, to] for to, _ in pairs], [old[half, at] for _, at in pairs])
        # halves and marks of use move along
        buffer.tensor, buffer.current = target, bytearray([1 - half]) * len(now.order)
        buffer.used = bytearray(buffer.used[before.of[slot]] if slot in before.of else 0 for slot in now.order)

    def read(self, kind: str, slot: int) -> Tensor:
        """A slot's state of a kind, in the slot's shape: a view, or of int8 a decoded copy."""
        buffer, pieces = self.kinds[kind], self._pieces(kind, slot)
        if buffer.dtype != torch.int8:
            return self.slots[slot].view(pieces[0])
        own = blocks_of([self.slots[slot].numel])
        payload = pieces[0].new_zeros(own.nbytes)
        copy_each(_pieces_of(payload, own), pieces)
        return self.slots[slot].view(dequantise(payload, own, self._empty(own)))

    def write(self, kind: str, slot: int, tensor: Tensor) -> None:
        """Replaces a slot's state by a tensor of its shape."""
        buffer, pieces = self.kinds[kind], self._pieces(kind, slot)
        buffer.used[self._places.of[slot]] = True
        # numbers as they are
        if buffer.dtype != torch.int8:
            self.slots[slot].view(pieces[0]).copy_(tensor)
            return
        # 8 bits: quantise, then copy codes and scales to their places
        own = blocks_of([self.slots[slot].numel])
        x = self._empty(own)
        self.slots[slot].view(x).copy_(tensor)
        payload = pieces[0].new_zeros(own.nbytes)
        quantise(x, payload, own, Seed(slot))
        copy_each(pieces, _pieces_of(payload, own))

    def clear(self, kind: str, slot: int) -> None:
        """Zeroes a slot's state."""
        if self.used(kind, slot):
            for piece in self._pieces(kind, slot):
                piece.zero_()
            self.kinds[kind].used[self._places.of[slot]] = False

    def used(self, kind: str, slot: int) -> bool:
        """Whether a slot's state may be other than zero."""
        return slot in self._places.of and bool(self.kinds[kind].used[self._places.of[slot]])

    def part(self, kind: str, slots: Sequence[int]) -> "BufferPart":
        """A group's part of a buffer."""
        buffer, first = self.kinds[kind], self._places.of[slots[0]]
        self._gather(buffer, first, first + len(slots))
        span, codes = self._places.group_span(slots, buffer.dtype), self._places.codes(slots, buffer.dtype)
        return BufferPart(buffer, first, first + len(slots), span, codes)

    def _empty(self, layout: Blocks) -> Tensor:
        return torch.empty(layout.numel, dtype=torch.float32, device=self.device)

    def _pieces(self, kind: str, slot: int) -> list[Tensor]:
        """Where a slot's state of a kind lies: its elements, or its scales and its codes."""
        buffer = self.kinds[kind]
        half = buffer.current[self._places.of[slot]]
        return [buffer.tensor[half, span] for span in self._places.spans(slot, buffer.dtype)]

    def _gather(self, buffer: StateBuffer, first: int, last: int) -> None:
        """Copies so that the same half is current at all these places; they differ where only some were in a step."""
        half = buffer.current[first] if first < last else 0
        for place in range(first, last):
            # the slot was in no step since: copy it to the half of the others
            if buffer.current[place] != half:
                for span in self._places.spans(self._places.order[place], buffer.dtype):
                    buffer.tensor[half, span].copy_(buffer.tensor[1 - half, span])
                buffer.current[place] = half


class BufferPart:
    """A group's part of a buffer."""

    codes: Blocks | None
    """The layout of its halves, which are payloads, in int8; None in other types."""

    def __init__(self, buffer: StateBuffer, first: int, last: int, span: slice, codes: Blocks | None) -> None:
        self._buffer = buffer
        self._first = first
        self._last = last
        self.codes = codes
        self._halves = buffer.tensor[0, span], buffer.tensor[1, span]
        self._used_before: bytes | None = None

    @property
    def side(self) -> int:
        """Which half is current, 0 or 1."""
        return self._buffer.current[self._first]

    @property
    def double_buffer(self) -> DoubleBuffer:
        """The current half, and the other one, which a step writes."""
        half = self.side
        return DoubleBuffer(self._halves[half], self._halves[1 - half])

    def numbers_of(self, half: Tensor, scratch: Workspace, name: str = "mean") -> Tensor:
        """The numbers (n,) of a half, float32 or bfloat16: itself, or of int8 decoded to scratch of this name."""
        if not self.codes:
            return half
        return dequantise(half, self.codes, scratch.tensor(name, (self.codes.numel,)))

    def keep(self, x: Tensor, half: Tensor, seed: Seed) -> None:
        """Writes x (n,) float32, which may be overwritten, to a half, rounded stochastically to its type. What that
        type holds stays as it is."""
        if self.codes:
            quantise(x, half, self.codes, seed)
        elif half.dtype == torch.float32:
            half.copy_(x)
        else:
            backend_for(x).round_stochastically(x, half, seed)

    def commit(self, used: bool) -> None:
        """Makes the half that was written the current one; without `used` all of it is zero."""
        self._used_before = bytes(self._buffer.used[self._first : self._last])
        self._buffer.used[self._first : self._last] = bytes([used]) * (self._last - self._first)
        self._swap()

    def take_back(self) -> None:
        """Undoes the last commit, if there was one since `close`."""
        if self._used_before is not None:
            self._buffer.used[self._first : self._last] = self._used_before
            self._used_before = None
            self._swap()

    def close(self) -> None:
        """The last commit can be taken back no more."""
        self._used_before = None

    @property
    def used(self) -> bool:
        """Whether any of it may be other than zero."""
        return any(self._buffer.used[self._first : self._last])

    def _swap(self) -> None:
        half = self._buffer.current[self._first]
        self._buffer.current[self._first : self._last] = bytes([1 - half]) * (self._last - self._first)


def _pieces_of(payload: Tensor, layout: Blocks) -> list[Tensor]:
    """The scales and the codes of a payload."""
    return [payload[: layout.count * layout.code.scale_bytes], payload[layout.codes_at : layout.end]]


def kinds_of(group: Group) -> tuple[str, ...]:
    """The kinds of state of gradient size that a group's steps write."""
    return tuple(dict.fromkeys((*group.memory.flat_state, *group.compressor.flat_state)))


def dtypes_of(plan: Plan) -> dict[str, torch.dtype]:
    """The type of each kind of state that a plan's steps write. All residuals are of one, the widest of its groups'."""
    kept = [group.memory.residual_dtype for group in plan.groups if RESIDUAL in kinds_of(group)]
    widest = {RESIDUAL: max(kept, key=lambda dtype: dtype.itemsize)} if kept else {}
    return {kind: torch.float32 for group in plan.groups for kind in kinds_of(group)} | widest
