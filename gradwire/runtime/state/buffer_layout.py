"""Where slots lie in state buffers: the slots of a group side by side, groups one after another."""

from collections.abc import Sequence

import torch

from gradwire.collective import ALIGNED, aligned
from gradwire.ops.eight_bits import blocks_of
from gradwire.ops.formats import Blocks
from gradwire.slots import Slot


class BufferLayout:
    """The places of some groups' slots. In int8 a group is a payload of bytes, all scales and then all codes."""

    def __init__(self, slots: Sequence[Slot], groups: Sequence[Sequence[int]]) -> None:
        self.groups = [tuple(group) for group in groups if group]
        self.order = [slot for group in self.groups for slot in group]
        """The slot at each place."""
        self.of = {slot: place for place, slot in enumerate(self.order)}
        """The place of each slot."""
        self._numel = {slot: slots[slot].numel for slot in self.order}
        self._codes = {group: blocks_of(self._numel[slot] for slot in group) for group in self.groups}
        # group after group, each from a multiple of ALIGNED on: elements, and bytes of int8
        self._spans: dict[int, slice] = {}
        self._pieces: dict[int, tuple[slice, slice]] = {}
        self._payloads: dict[tuple[int, ...], slice] = {}
        element = byte = 0
        for group in self.groups:
            byte = self._put_codes(group, byte)
            for slot in group:
                self._spans[slot] = slice(element, element + self._numel[slot])
                element += self._numel[slot]
            element = aligned(element)

    def _put_codes(self, group: tuple[int, ...], start: int) -> int:
        """Puts a group's payload from this byte on; returns where the next one begins."""
        codes = self._codes[group]
        self._payloads[group] = slice(start, start + codes.nbytes)
        scale, code = start, start + codes.codes_at
        for slot in group:
            own = blocks_of([self._numel[slot]])
            scale_end, code_end = scale + own.count * own.code.scale_bytes, code + own.numel
            self._pieces[slot] = slice(scale, scale_end), slice(code, code_end)
            scale, code = scale_end, code_end
        return aligned(start + codes.nbytes)

    def capacity(self, dtype: torch.dtype) -> int:
        """The elements of one half of a buffer, or its bytes of int8: enough for any other groups of these slots."""
        if dtype != torch.int8:
            return aligned(sum(numel + ALIGNED for numel in self._numel.values()))
        # each slot a group by itself
        return sum(aligned(blocks_of([numel]).nbytes) + ALIGNED for numel in self._numel.values())

    def spans(self, slot: int, dtype: torch.dtype) -> Sequence[slice]:
        """Where a slot lies in a half: its elements, or its scales and its codes."""
        return self._pieces[slot] if dtype == torch.int8 else (self._spans[slot],)

    def group_span(self, group: Sequence[int], dtype: torch.dtype) -> slice:
        """Where slots that lie side by side lie in a half; of int8, a group."""
        if dtype == torch.int8:
            return self._payloads[tuple(group)]
        return slice(self._spans[group[0]].start, self._spans[group[-1]].stop)

    def codes(self, group: Sequence[int], dtype: torch.dtype) -> Blocks | None:
        """The layout of a group's payload; None unless it has one."""
        return self._codes[tuple(group)] if dtype == torch.int8 else None
