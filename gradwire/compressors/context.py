"""What an algorithm may read and write for one group."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.collective import Message, framed
from gradwire.ops.host import to_host
from gradwire.ops.mean import Mean
from gradwire.ops.noise import SALT, Seed, step_word
from gradwire.ops.vectors import Output
from gradwire.ops.workspace import Workspace
from gradwire.slots import Layout
from gradwire.torch_private.foreach import copy_each, largest_of


class Halves(NamedTuple):
    """A tensor of gradient size that lasts from step to step: `old` (n,) is what it is and only read, `new` (n,) what
    it becomes when the step is good."""

    old: Tensor
    new: Tensor


class SlotState:
    """The small tensors that an algorithm keeps for each slot of a group, such as low-rank factors, on the device.

    They have two halves, as state of gradient size has: a step writes the next values beside those that hold, and the
    two change places when it is good. Until the next step they can change back. `slots` are those that hold, by name.
    `halves` are those of each name, first those that hold, then those that a step writes.
    `nonfinite` is NaN () where something that was staged is not finite, else 0; None where nothing was staged.
    """

    def __init__(self, slots: Sequence[dict[str, Tensor]]) -> None:
        self.slots = list(slots)
        names = dict.fromkeys(name for slot in slots for name in slot)
        held = {name: [slot[name] for slot in slots if name in slot] for name in names}
        self.halves = {name: (now, [*map(torch.empty_like, now)]) for name, now in held.items()}
        self._staged: list[str] = []
        self._committed: list[str] = []
        self.nonfinite: Tensor | None = None

    def all(self, name: str) -> list[Tensor]:
        """The tensors of this name of the slots that have one, in the group's order."""
        return self._both(name)[0]

    @property
    def staged(self) -> tuple[str, ...]:
        """The names of the staged state."""
        return tuple(self._staged)

    def stage(self, name: str, values: Sequence[Tensor], largest: Tensor | None = None) -> None:
        """The next values of `all(name)`. `largest` (k,) are numbers that are finite if, and only if, all values are,
        where the algorithm has them."""
        if values:
            copy_each(self._both(name)[1], values)
            self.written(name)
            nonfinite = (largest_of(values) if largest is None else largest).amax().mul_(0)
            self.nonfinite = nonfinite if self.nonfinite is None else self.nonfinite + nonfinite

    def written(self, *names: str) -> None:
        """The next values of these are in place."""
        self._staged += names

    def commit(self) -> None:
        """The step was good: what was staged is now the state."""
        for name in self._staged:
            self._swap(name)
        self._committed = self._staged
        self.forget()

    def take_back(self) -> None:
        """The last commit did not happen."""
        for name in self._committed:
            self._swap(name)
        self._committed = []

    def forget(self) -> None:
        """The step was not good."""
        self._staged, self.nonfinite = [], None

    def _both(self, name: str) -> tuple[list[Tensor], list[Tensor]]:
        """Those that hold, and those that a step writes."""
        return self.halves.get(name, ([], []))

    def _swap(self, name: str) -> None:
        before, now = self.halves[name]
        self.halves[name] = now, before
        for slot, tensor in zip((slot for slot in self.slots if name in slot), now, strict=True):
            slot[name] = tensor


class GroupState:
    """The small tensors on the host that an algorithm keeps for a group, such as thresholds. Each slot takes them along
    into other groups, where those of the group's first slot count. They change as `SlotState` does; `changed` are those
    that ever did."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._staged: dict[str, Tensor] = {}
        self._changed: frozenset[str] = frozenset()
        self._before = self._tensors, self._changed

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    @property
    def changed(self) -> dict[str, Tensor]:
        return {name: self._tensors[name] for name in self._changed}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over those of the same name and shape."""
        for name, mine in self._tensors.items():
            if name in tensors and tensors[name].shape == mine.shape:
                mine.copy_(tensors[name])

    def stage(self, name: str, value: Tensor) -> None:
        """The next value, of any device."""
        self._staged[name] = to_host(value)

    def commit(self) -> None:
        """The step was good: what was staged is now the state, but for what is not finite."""
        finite = {name: value for name, value in self._staged.items() if value.isfinite().all()}
        self._before = self._tensors, self._changed
        after = {name: self._tensors[name].clone().copy_(value) for name, value in finite.items()}
        self._tensors, self._changed = self._tensors | after, self._changed.union(after)
        self.forget()

    def take_back(self) -> None:
        """The last commit did not happen."""
        self._tensors, self._changed = self._before

    def forget(self) -> None:
        """The step was not good."""
        self._staged = {}


@dataclass
class GroupContext:
    """All that an algorithm knows of the group that it reduces and of the ranks that it reduces it with.

    `flat` holds its tensors of gradient size, `slots` the small ones of each slot and `group` its own; all go into
    checkpoints and through new plans parameter by parameter. `buffers` last as long as the group, `scratch` until the
    next yield. `remember` says that a memory keeps what is left in x, so that something must be left.
    """

    layout: Layout
    rank: int
    world: int
    buffers: Workspace
    scratch: Workspace
    slots: SlotState
    group: GroupState
    remember: bool = True
    seed: int = 0
    step: int = 0
    flat: dict[str, Halves] = field(default_factory=dict)
    draws: Iterator[int] = field(default_factory=count)

    @property
    def device(self) -> torch.device:
        return self.buffers.device

    @property
    def whole(self) -> "Parts":
        """All of the group as one part."""
        return Parts(self, (0, self.layout.numel))

    def part(self, start: int, end: int) -> "GroupContext":
        """The context of elements `start` to `end` of the group, by themselves."""
        return replace(self, layout=self.layout.cut(start, end))

    def message(self, name: str, size: int, rows: int | None = None) -> Message:
        """A message of `size` bytes, or of so many rows, kept as `name`."""
        key = (name, size, rows)

        def make() -> Message:
            message = Message.of_bytes(self.buffers.tensor(name, (rows or 1, framed(size)), torch.uint8), size)
            return message if rows else message.row(0)

        return self.buffers.once(key, make)

    def numbers(self, name: str, n: int, dtype: torch.dtype = torch.float32) -> Message:
        """A message of n numbers, kept as `name`."""
        key = (name, n, dtype)
        return self.buffers.once(key, lambda: Message.of_numbers(self.buffers.tensor(name, (n + 1,), dtype)))

    def shared_seed(self) -> Seed:
        """Changes with every step and is the same on all ranks."""
        number = (self.seed * 1_000_003 + self.step) & 0x7FFF_FFFF_FFFF_FFFF
        return Seed(number, self.seed & SALT, step_word(self.step, self.scratch))

    def own_seed(self) -> Seed:
        """Changes with every call, step and rank: noise that is used twice makes what is unbiased biased."""
        shared, call = self.shared_seed(), next(self.draws)
        number, salt = (
            (before * 1_000_003 + self.rank + 1) * 1_000_003 + call for before in (shared.number, shared.salt)
        )
        return Seed(number & 0x7FFF_FFFF_FFFF_FFFF, salt & SALT, shared.word)


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of a group that are encoded each to a payload of its own: the elements between neighbours of `bounds`, but
    for those that have none, which come last."""

    context: GroupContext
    bounds: Sequence[int]

    @property
    def is_whole(self) -> bool:
        """Whether all of the group is one part, whose payload has the size that the codec declared."""
        return len(self.bounds) == 2 and self.bounds[1] - self.bounds[0] == self.context.layout.numel

    @property
    def lengths(self) -> list[int]:
        """The elements of each part."""
        return [b - a for a, b in pairwise(self.bounds) if a < b or self.is_whole]

    @property
    def contexts(self) -> list[GroupContext]:
        """The context of each part by itself."""
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
        """Where the sum of all parts goes: of one part to wherever the gradients lie."""
        return mean.parts() if len(self.lengths) == 1 else mean.vector()
