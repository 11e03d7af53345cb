"""The context of an algorithm that reduces one group: its state, buffers, seeds and messages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.collective import Message, framed
from gradwire.ops.host import to_host
from gradwire.ops.mean import Mean
from gradwire.ops.noise import SALT_MASK, Seed, step_word
from gradwire.ops.vectors import Output
from gradwire.ops.workspace import Workspace
from gradwire.slots import Layout
from gradwire.torch_private.foreach import copy_each, largest_of

SHARED = "shared/"
"""Begins the names, in states, of small tensors that are equal on all ranks, or on all replicas of one shard."""
COMMON = "common/"
"""Prefix of the names of a group's tensors that are equal on all ranks that reduce the group together. Where these
ranks load states in which one differs, or is missing, all of them begin it anew."""


class DoubleBuffer(NamedTuple):
    """State of gradient size in two buffers, which change places when a step is good."""

    read: Tensor
    """(n,) the state, which a step only reads."""
    write: Tensor
    """(n,) the next state, which a step writes."""


class SmallBuffers(NamedTuple):
    """The small tensors of one name, of all slots that have it, in two buffers as a `DoubleBuffer`."""

    read: list[Tensor]
    write: list[Tensor]


class SlotState:
    """The small tensors that an algorithm keeps for each slot of a group, such as low-rank factors, on the device.

    They are double-buffered: a step stages the next values, and the buffers change places when it is good. Until the
    next step they can change back.
    """

    slots: list[dict[str, Tensor]]
    """The state of each slot, by name."""
    buffers: dict[str, SmallBuffers]
    """The state and the next state, by name."""
    nonfinite: Tensor | None
    """() NaN where something that was staged is not finite, else 0; None where nothing was staged."""

    def __init__(self, slots: Sequence[dict[str, Tensor]]) -> None:
        self.slots = list(slots)
        # two buffers of each name: the state, and the next one
        names = dict.fromkeys(name for slot in slots for name in slot)
        held = {name: [slot[name] for slot in slots if name in slot] for name in names}
        self.buffers = {name: SmallBuffers(now, [*map(torch.empty_like, now)]) for name, now in held.items()}
        self._staged: list[str] = []
        self._committed: list[str] = []
        self.nonfinite = None

    def load(self, slots: Sequence[dict[str, Tensor]]) -> None:
        """Copies the tensors of each slot, which have the same names and shapes."""
        for name, both in self.buffers.items():
            copy_each(both.read, [slot[name] for slot in slots if name in slot])

    def all(self, name: str) -> list[Tensor]:
        """The tensors of this name, of the slots that have one, in the group's order."""
        return self.buffers[name].read if name in self.buffers else []

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers of all names."""
        return sum(tensor.nbytes for both in self.buffers.values() for tensor in (*both.read, *both.write))

    @property
    def staged(self) -> tuple[str, ...]:
        """The names of the staged state."""
        return tuple(self._staged)

    def stage(self, name: str, values: Sequence[Tensor], largest: Tensor | None = None) -> None:
        """Writes the next values of `all(name)`. `largest` (k,) are numbers that are finite if, and only if, all values
        are, for an algorithm that has them already."""
        if values:
            copy_each(self.buffers[name].write, values)
            self.written(name)
            nonfinite = (largest_of(values) if largest is None else largest).amax().mul_(0)
            self.nonfinite = nonfinite if self.nonfinite is None else self.nonfinite + nonfinite

    def written(self, *names: str) -> None:
        """Notes that the next values of these names are in place."""
        self._staged += names

    def commit(self) -> None:
        """Makes what was staged the state: the step was good."""
        for name in self._staged:
            self._swap(name)
        self._committed = self._staged
        self.forget()

    def take_back(self) -> None:
        """Undoes the last commit."""
        for name in self._committed:
            self._swap(name)
        self._committed = []

    def forget(self) -> None:
        """Drops what was staged: the step was bad."""
        self._staged, self.nonfinite = [], None

    def _swap(self, name: str) -> None:
        before, now = self.buffers[name]
        self.buffers[name] = SmallBuffers(now, before)
        for slot, tensor in zip((slot for slot in self.slots if name in slot), now, strict=True):
            slot[name] = tensor


class GroupState:
    """The small tensors on the host that an algorithm keeps for a group, such as thresholds.

    A step stages the next values, which become the state when it is good. Where a plan regroups the slots, a new group
    starts from what its first slot's group had.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._fresh = self._tensors = tensors
        self._staged: dict[str, Tensor] = {}
        self._changed: frozenset[str] = frozenset()
        self._before = self._tensors, self._changed

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    @property
    def changed(self) -> dict[str, Tensor]:
        """The tensors that a step has changed, ever."""
        return {name: self._tensors[name] for name in self._changed}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Begins anew, with copies of those tensors that have the name and shape of one of its own."""
        self._tensors = dict(self._fresh)
        for name, fresh in self._fresh.items():
            if name in tensors and tensors[name].shape == fresh.shape:
                self._tensors[name] = fresh.clone().copy_(tensors[name])
        self._changed = frozenset()
        self._before = self._tensors, self._changed

    def stage(self, name: str, value: Tensor) -> None:
        """Notes the next value, which may lie on any device."""
        self._staged[name] = to_host(value)

    def commit(self) -> None:
        """Makes what was staged the state: the step was good. What is not finite is dropped."""
        # copies from a GPU have come by now
        finite = {name: value for name, value in self._staged.items() if value.isfinite().all()}
        self._before = self._tensors, self._changed
        # new tensors, so that the old ones stay for `take_back`
        after = {name: self._tensors[name].clone().copy_(value) for name, value in finite.items()}
        self._tensors, self._changed = self._tensors | after, self._changed.union(after)
        self.forget()

    def take_back(self) -> None:
        """Undoes the last commit."""
        self._tensors, self._changed = self._before

    def forget(self) -> None:
        """Drops what was staged: the step was bad."""
        self._staged = {}


@dataclass
class GroupContext:
    """The context of an algorithm that reduces one group. Its state (`flat`, `slots`, `group`) goes into checkpoints
    and through new plans, parameter by parameter."""

    layout: Layout
    """The group's slots in its flat vector (n,)."""
    rank: int
    """Of this rank along the axis that is reduced."""
    world: int
    """How many ranks reduce."""
    buffers: Workspace
    """Tensors that last as long as the group."""
    scratch: Workspace
    """Tensors that last until the next yield; all groups use the same."""
    slots: SlotState
    """The algorithm's small tensors of each slot."""
    group: GroupState
    """The algorithm's small tensors of the group."""
    error_feedback: bool = True
    """A memory keeps what is left in x, so the error must be left there."""
    seed: int = 0
    """The same on all ranks."""
    step: int = 0
    """How many steps have counted so far."""
    flat: dict[str, DoubleBuffer] = field(default_factory=dict)
    """The tensors of gradient size that the algorithm and its memory keep, by name."""
    draws: Iterator[int] = field(default_factory=count)
    """Numbers the calls of `own_seed` in a step."""

    @property
    def device(self) -> torch.device:
        """The device of the group's gradients."""
        return self.buffers.device

    @property
    def whole(self) -> "Parts":
        """All of the group as one part."""
        return Parts(self, (0, self.layout.numel))

    def part(self, start: int, end: int) -> "GroupContext":
        """The context of elements `start` to `end` of the group, as a group of their own."""
        return replace(self, layout=self.layout.cut(start, end))

    def message(self, name: str, size: int, rows: int | None = None) -> Message:
        """A message of `size` bytes, or of so many rows of that size, kept as `name`."""
        key = (name, size, rows)

        def make() -> Message:
            message = Message.of_bytes(self.buffers.tensor(name, (rows or 1, framed(size)), torch.uint8), size)
            return message if rows else message.row(0)

        return self.buffers.once(key, make)

    def numbers(self, name: str, n: int, dtype: torch.dtype = torch.float32) -> Message:
        """A message of n numbers of this type, kept as `name`."""
        key = (name, n, dtype)
        return self.buffers.once(key, lambda: Message.of_numbers(self.buffers.tensor(name, (n + 1,), dtype)))

    def shared_seed(self) -> Seed:
        """A seed that changes with every step and is the same on all ranks."""
        number = (self.seed * 1_000_003 + self.step) & 0x7FFF_FFFF_FFFF_FFFF
        return Seed(number, self.seed & SALT_MASK, step_word(self.step, self.scratch))

    def own_seed(self) -> Seed:
        """A seed that changes with every call, step and rank: noise that is used twice adds a bias."""
        shared, call = self.shared_seed(), next(self.draws)
        number, salt = (
            (before * 1_000_003 + self.rank + 1) * 1_000_003 + call for before in (shared.number, shared.salt)
        )
        return Seed(number & 0x7FFF_FFFF_FFFF_FFFF, salt & SALT_MASK, shared.word)


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of a group, each encoded to a payload of its own."""

    context: GroupContext
    bounds: Sequence[int]
    """The first element of each part, and the end of the last. Empty parts come last, and have no payload."""

    @property
    def is_whole(self) -> bool:
        """Whether the group is one part, whose payload has the size that the codec declared."""
        return len(self.bounds) == 2 and self.bounds[1] - self.bounds[0] == self.context.layout.numel

    @property
    def lengths(self) -> list[int]:
        """The elements of each part."""
        return [b - a for a, b in pairwise(self.bounds) if a < b or self.is_whole]

    @property
    def contexts(self) -> list[GroupContext]:
        """The context of each part, as a group of its own."""
        if self.is_whole:
            return [self.context]
        return [self.context.part(a, b) for a, b in pairwise(self.bounds) if a < b]

    @property
    def layouts(self) -> list[Layout]:
        """The slots of each part."""
        if self.is_whole:
            return [self.context.layout]
        return [self.context.layout.cut(a, b) for a, b in pairwise(self.bounds) if a < b]

    def output(self, mean: Mean) -> Output:
        """The output for the sums of all parts: of one part, to wherever the gradients lie."""
        return mean.parts() if len(self.lengths) == 1 else mean.vector()
