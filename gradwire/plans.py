"""The Plan: which gradients travel together, how each group is compressed, with which memory and collective."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar

from gradwire.codec_trial import try_codec
from gradwire.communicator_trial import try_communicator
from gradwire.communicators import AllGather, AllReduce, Communicator, ScatterReduce
from gradwire.compressors import FP32, Compressor, FixedSizeCompressor
from gradwire.group_checks import check_group, check_parts, dense_memory
from gradwire.memories import Memory, NoMemory, Residual
from gradwire.memory_trial import try_memory
from gradwire.ops.vectors import LONGEST
from gradwire.options import Options, check_type, names
from gradwire.plan_parts import WrittenPart, as_json, from_dict, groups_as_json, in_place, json_of
from gradwire.slots import Layout, Slot

T = TypeVar("T")
MB = 1 << 20
"""As DDP counts its buckets."""


class GroupSizes(NamedTuple):
    """The sizes of a default plan's groups, in megabytes of gradient."""

    least: int
    """A group's; a collective of less is not worth its latency."""
    bulky: int
    """The same where the wire sets the pace."""
    edge: int
    """The first or last group's, at least."""
    full: int
    """The number of largest groups that hold a whole model."""


SIZES = {"cpu": GroupSizes(8, 4, 1, 8), "cuda": GroupSizes(32, 16, 8, 4)}
"""By kind of device. On a GPU a group costs Python as much as 30 to 60 MB cost the GPU to compress."""


@dataclass(frozen=True)
class Group(Options):
    """Slots, by name, that are compressed and sent together. Raises ValueError where the three parts do not work
    together."""

    slots: tuple[str, ...]
    """Their names, in the order of the group's buffer."""
    compressor: Compressor
    """Encodes their sum with the memory."""
    memory: Memory
    """Keeps what was not sent."""
    communicator: Communicator
    """Chooses the collectives that carry the payloads."""
    rule: str = ""
    """The pattern that its parameters match, where a user gave rules by layer."""

    def __post_init__(self) -> None:
        check_parts(self.compressor, self.memory, self.communicator)
        check_type("slots", self.slots, (tuple, list), '("weight",)', optional=False)
        object.__setattr__(self, "slots", tuple(self.slots))
        super().__post_init__()


@dataclass(frozen=True)
class Plan:
    """Groups in the order in which they are sent; every slot is in exactly one. Without groups it is `native`: the
    framework, such as DDP, reduces all gradients by itself."""

    groups: tuple[Group, ...]
    """In the order in which they are sent."""

    def __post_init__(self) -> None:
        example = "(gw.Group(names, gw.TopK(0.01), gw.Residual(), gw.AllGather()),)"
        check_type("groups", self.groups, (tuple,), example, optional=False)
        for group in self.groups:
            check_type("groups", group, (Group,), example, optional=False)

    @property
    def native(self) -> bool:
        """Whether the framework reduces by itself."""
        return not self.groups

    @property
    def names(self) -> tuple[str, ...]:
        """All its slots, by name, in the order in which they are sent."""
        return tuple(name for group in self.groups for name in group.slots)

    def only(self, names: Collection[str]) -> "Plan":
        """The plan for these parameters alone."""
        groups = [replace(group, slots=tuple(n for n in group.slots if n in names)) for group in self.groups]
        return Plan(tuple(group for group in groups if group.slots))

    def describe(self) -> str:
        """A short description of the plan."""
        names = dict.fromkeys(f"{group.compressor} by {group.communicator}" for group in self.groups)
        number = len(self.groups)
        return f"{number} group{'s' if number > 1 else ''} of {', '.join(names)}" if number else "native"

    def to_json(self) -> str:
        """The plan as JSON text; `from_json` reads it back."""
        return self._text(as_json)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Raises ValueError for text that is no plan of this version."""
        check_type("text", text, (str,), "Path(...).read_text()", optional=False)
        try:
            return cls._read(json_of(text, "plan"))
        except RecursionError as error:
            raise ValueError("this is no plan that Plan.to_json() wrote: it is nested too deeply") from error

    def _text(self, part: WrittenPart) -> str:
        return json.dumps({"version": 1, "groups": groups_as_json(self.groups, part)}, indent=1)

    @classmethod
    def _read(cls, data: Any) -> "Plan":
        check_version(data, "plan", 1)
        try:
            return cls(tuple(
                Group(
                    names(g["slots"]),
                    from_dict(g["compressor"], Compressor),
                    from_dict(g["memory"], Memory),
                    from_dict(g["communicator"], Communicator),
                    *names([g.get("rule", "")]),
                )
                for g in data["groups"]
            ))  # fmt: skip
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no plan that Plan.to_json() wrote: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes the plan to a file, as JSON."""
        Path(path).write_text(self._text(in_place) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Reads what `save` wrote. Raises ValueError, naming the file, where it cannot be read or has no plan."""
        return from_file(path, cls.from_json)

    def check(self, slots: Sequence[Slot]) -> None:
        """Raises ValueError, naming the parameter, where plan and model do not fit."""
        # every slot of the model is in one group, and in no other
        planned, known = self.names, {slot.name for slot in slots}
        if self.native:
            return
        if twice := {name for name, count in Counter(planned).items() if count > 1}:
            if within := [name for group in self.groups for name in twice if group.slots.count(name) > 1]:
                raise ValueError(f"a group of the plan has parameter {min(within)!r} twice; name it once")
            raise ValueError(f"the plan has parameter {min(twice)!r} in two groups; each belongs in one")
        if any(not group.slots for group in self.groups):
            raise ValueError("the plan has a group without parameters; leave it out")
        if unknown := set(planned) - known:
            raise ValueError(f"the plan names parameter {min(unknown)!r}, which the model lacks; make a plan for it")
        if missing := known - set(planned):
            raise ValueError(f"the plan lacks the model's parameter {min(missing)!r}; make a plan for this model")
        by_name = {slot.name: slot for slot in slots}
        for group in self.groups:
            check_group([by_name[name] for name in group.slots], group.compressor)
            try_memory(group.memory)
        for group in {id(group.compressor): group for group in self.groups}.values():
            if sizes_follow_from_shapes(group.compressor):
                try_codec(group.compressor, group.memory.error_feedback)
        for group in self.groups:
            try_communicator(group.compressor, group.communicator, group.memory.error_feedback)


NATIVE = Plan(())
"""The framework reduces by itself."""


def check_version(data: Any, kind: str, known: int) -> None:
    """Raises ValueError where JSON of a `kind`, such as "plan", has another version than the one that is read here."""
    version = data.get("version") if isinstance(data, dict) else None
    if version != known:
        raise ValueError(f"{kind} version {version!r} is not known; this Gradwire reads version {known}")


def from_file(path: str | Path, read: Callable[[str], T]) -> T:
    """The result of `read` for a file's text. Raises ValueError, naming the file, where it cannot be read."""
    try:
        return read(Path(path).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def uniform(
    slots: Sequence[Slot],
    compressor: Compressor,
    memory: Memory | None = None,
    communicator: Communicator | None = None,
    dense: Callable[[Slot], bool] | None = None,
    ranks: int = 1,
    sizes: GroupSizes = SIZES["cpu"],
) -> Plan:
    """One way for all: slots in the given order, cut into groups of the `least` size or more, the last of them smaller;
    where the wire sets the pace of the `bulky` one or more, the first of them smaller.

    Slots for which `dense` holds travel uncompressed in a group of their own, sent last: their bytes do not
    matter, their accuracy does. By default these are the vectors, unless the compressor carries them itself, or votes:
    their means would be no votes. The default communicator is chosen for so many `ranks`.
    """
    dense = dense or (lambda slot: slot.is_vector and not (compressor.carries_dense or compressor.sign_vote))
    memory = memory or default_memory(compressor)
    # small vectors travel uncompressed, in one group
    small = [] if compressor.is_cast else [slot for slot in slots if dense(slot)]
    apart = {slot.name for slot in small}
    large = [slot for slot in slots if slot.name not in apart]
    communicator = communicator or default_communicator(compressor, large, ranks)
    # the rest in groups that are worth a collective
    groups = [Group(names, compressor, memory, communicator) for names in _cut(large, bulky(compressor, large), sizes)]
    if small:
        groups.append(dense_group(tuple(slot.name for slot in small), memory))
    return Plan(tuple(groups))


def dense_group(names: tuple[str, ...], memory: Memory) -> Group:
    """A group that travels uncompressed beside others that have this memory, with the same momentum, if they have
    any."""
    return Group(names, FP32(), dense_memory(memory), AllReduce())


def default_memory(compressor: Compressor) -> Memory:
    """Residual for what is biased and can be taken out of a memory, none for the rest."""
    return Residual() if compressor.biased and Residual().takes(compressor) else NoMemory()


def default_communicator(compressor: Compressor, slots: Sequence[Slot] = (), ranks: int = 1) -> Communicator:
    """All-reduce where payloads can be added, all-gather where not; scatter-reduce where it fits and by all-gather each
    of so many `ranks` would receive more of these slots than by a dense all-reduce."""
    if compressor.summable:
        return AllReduce()
    scatters = ScatterReduce().takes(compressor) and not compressor.once_only
    if slots and scatters and sizes_follow_from_shapes(compressor):
        layout = Layout(tuple(slots))
        gathered, dense = AllGather().wire(compressor, layout, ranks), AllReduce().wire(FP32(), layout, ranks)
        if gathered.wire_bytes > dense.wire_bytes:
            return ScatterReduce()
    return AllGather()


def bulky(compressor: Compressor, slots: Sequence[Slot]) -> bool:
    """Whether it sends an eighth of these gradients or more, so that the wire sets the pace."""
    layout = Layout(tuple(slots))
    sent = payload_bytes(compressor, layout, 0)
    return sent is not None and sent >= layout.numel // 2


def payload_bytes(compressor: Compressor, layout: Layout, step: int) -> int | None:
    """A codec's payload bytes at a step; None for compressors whose rounds differ in size."""
    if compressor.own_collectives or not sizes_follow_from_shapes(compressor):
        return None
    return compressor.group_bytes(layout, step)


def sizes_follow_from_shapes(compressor: Compressor) -> TypeGuard[FixedSizeCompressor]:
    """Whether a group's bytes at a step are known before."""
    return isinstance(compressor, FixedSizeCompressor)


def _cut(slots: Sequence[Slot], early: bool, sizes: GroupSizes) -> list[tuple[str, ...]]:
    """Groups that are worth a collective. Where `early`, smaller ones first, to have the wire busy early; else smaller
    ones last, for what is sent last hides under nothing."""
    # few groups, each of a size that hides its latency
    least, edge = MB * (sizes.bulky if early else sizes.least), MB * sizes.edge
    full = max(least, 4 * sum(slot.numel for slot in slots) // sizes.full)
    if early:
        return _grow(slots, edge, full)
    return [names[::-1] for names in reversed(_grow(slots[::-1], edge, full))]


def _grow(slots: Sequence[Slot], edge: int, full: int) -> list[tuple[str, ...]]:
    """Neighbours together: a group of `edge` bytes of gradient or more, then of twice that, and so on up to `full`;
    what is left over, where it is less than `edge`, joins the one before. Several slots are no longer than LONGEST."""
    groups: list[list[str]] = []
    names: list[str] = []
    size = 0
    for slot in slots:
        if names and size + 4 * slot.numel > 4 * LONGEST - edge:
            groups.append(names)
            names, size = [], 0
        names.append(slot.name)
        size += 4 * slot.numel
        # each group may be twice as large as the one before
        if size >= min(full, edge << len(groups)):
            groups.append(names)
            names, size = [], 0
    # a rest that is too small for a group of its own
    if groups and size < edge:
        groups[-1] += names
    elif names:
        groups.append(names)
    return [tuple(group) for group in groups]
