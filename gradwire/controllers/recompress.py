"""Copies of a plan with other compressors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from gradwire.communicators import AllReduce, Communicator
from gradwire.compressors import Compressor
from gradwire.plans import Group, Plan, default_communicator
from gradwire.slots import Slot

Names = tuple[str, ...]
Part = TypeVar("Part", Compressor, Communicator)


class Defaults:
    """Default communicators, for plans of these `slots` among so many `ranks` that compress together."""

    def __init__(self, slots: Sequence[Slot] = (), ranks: int = 1) -> None:
        self._slots, self._ranks = {slot.name: slot for slot in slots}, ranks
        # asked in every step
        self.communicator = lru_cache(64)(self._communicator)

    def _communicator(self, compressor: Compressor, names: Names) -> Communicator:
        """The communicator of a compressor for some of the slots, where the user names none."""
        slots = [self._slots[name] for name in names if name in self._slots]
        return default_communicator(compressor, slots, self._ranks)

    def named(self, plan: Plan) -> Sequence[Group]:
        """The groups whose communicator the user must have named: it is not the default of their kind."""
        slots: dict[tuple[Compressor, str], Names] = {}
        for group in plan.groups:
            slots[_kind(group)] = slots.get(_kind(group), ()) + group.slots
        usual = {kind: self.communicator(kind[0], names) for kind, names in slots.items()}
        return [group for group in plan.groups if group.communicator != usual[_kind(group)]]

    def changed(self, before: Plan, plan: Plan) -> dict[str, tuple[Group, Group]]:
        """See `Controller.changed`. Communicators count where the user has named them: the default is another one for
        another number of ranks."""
        named, groups = self.named(plan), {name: group for group in before.groups for name in group.slots}
        pairs = {name: (groups[name], group) for group in plan.groups for name in group.slots if name in groups}
        return {
            name: (old, new)
            for name, (old, new) in pairs.items()
            if (old.compressor, old.memory) != (new.compressor, new.memory)
            or (new in named and old.communicator != new.communicator)
        }

    def for_these_ranks(self, ranks: int, origin: Plan, own: Plan) -> Callable[[Plan], Plan]:
        """See `Controller.for_these_ranks`."""
        before = Defaults(list(self._slots.values()), ranks)
        # what the user gives here, but communicators that were named there stay
        there, here = _given(origin, before.named(origin)), _given(own, self.named(own))
        here |= {name: given for name, given in there.items() if given[1]}

        def communicator_of(group: Group, name: str) -> Communicator:
            then = _communicator(*there[name], group.compressor, group.slots, before)
            # the controller may have chosen one by itself
            if group.communicator != then:
                return group.communicator
            return _communicator(*here[name], group.compressor, group.slots, self)

        return lambda plan: Plan(tuple(
            replace(group, slots=names, communicator=communicator)
            for group in plan.groups
            for communicator, names in _parts(group, communicator_of).items()
        ))  # fmt: skip


def update_in(plan: Plan) -> Compressor | None:
    """The first of its compressors whose results are updates, not means of gradients; None where there is none."""
    return next((group.compressor for group in plan.groups if group.compressor.is_update), None)


def _kind(group: Group) -> tuple[Compressor, str]:
    """A group's compressor and rule: groups that have both in common got one default communicator, for all of them."""
    return group.compressor, group.rule


def _given(plan: Plan, named: Sequence[Group]) -> dict[str, tuple[Group, bool]]:
    """By name its group, and whether that is among the `named`."""
    return {name: (group, group in named) for group in plan.groups for name in group.slots}


def recompress(plan: Plan, compressor_of: Callable[[Group, str], Compressor], defaults: Defaults) -> Plan:
    """A copy of the plan with `compressor_of(group, name)` for each parameter; groups are split where that differs.
    A communicator that the user named stays where it can; else the default suits the new compressor. What travels dense
    masks no momentum."""
    named = defaults.named(plan)
    return Plan(tuple(
        replace(group, slots=names, compressor=compressor, communicator=communicator, memory=memory)
        for group in plan.groups
        for compressor, names in _parts(group, compressor_of).items()
        for communicator in [_communicator(group, group in named, compressor, names, defaults)]
        for memory in [(compressor.is_cast and group.memory.for_dense()) or group.memory]
    ))  # fmt: skip


def _parts(group: Group, part_of: Callable[[Group, str], Part]) -> Mapping[Part, Names]:
    """The group's parameters by their compressor, or communicator, in order."""
    names: dict[Part, list[str]] = {}
    for name in group.slots:
        names.setdefault(part_of(group, name), []).append(name)
    return {part: tuple(own) for part, own in names.items()}


def _communicator(group: Group, named: bool, compressor: Compressor, names: Names, defaults: Defaults) -> Communicator:
    """The group's own where nothing changes; all-reduce for summable codecs; else its own where the user `named` it and
    it takes the compressor, else the default."""
    if compressor == group.compressor:
        return group.communicator
    if compressor.summable and not compressor.sparse:
        return AllReduce()
    if named and group.communicator.takes(compressor):
        return group.communicator
    return defaults.communicator(compressor, names)


def has(compressor: Compressor, option: str) -> bool:
    """Whether the compressor has this hyperparameter."""
    return option in {field.name for field in fields(compressor)}  # pyright: ignore[reportArgumentType]


def setting_of(compressor: Compressor) -> str | None:
    """The name of the option that says how much a compressor sends; None where it has none, as casts."""
    return next((name for name in ("ratio", "rank", "levels") if has(compressor, name)), None)


def with_options(compressor: Compressor, options: Mapping[str, Any]) -> Any:
    """The compressor with other hyperparameters."""
    return replace(compressor, **options)  # pyright: ignore[reportArgumentType, reportCallIssue]
