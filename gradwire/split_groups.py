"""Plans whose groups are split where parameters cannot travel together."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from gradwire.compressors import Compressor
from gradwire.group_checks import takes
from gradwire.plans import Plan
from gradwire.slots import NamedTensor


def cut_alike(plan: Plan, slots: Iterable[NamedTensor]) -> Plan:
    """The plan, in which groups of parameters that are cut over different ranks are split."""
    cut = {slot.name: slot.cut for slot in slots}
    return Plan(tuple(
        replace(group, slots=tuple(name for name in group.slots if cut[name] == each))
        for group in plan.groups
        for each in dict.fromkeys(cut[name] for name in group.slots)
    ))  # fmt: skip


def within_length(plan: Plan, slots: Collection[NamedTensor]) -> Plan:
    """The plan `cut_alike`, in which groups that have more elements than their compressor takes are split as well."""
    numel = {slot.name: slot.numel for slot in slots}
    return Plan(tuple(
        replace(group, slots=names)
        for group in cut_alike(plan, slots).groups
        for names in _parts_within({name: numel[name] for name in group.slots}, group.compressor)
    ))  # fmt: skip


def _parts_within(numel: dict[str, int], compressor: Compressor) -> list[tuple[str, ...]]:
    """A group's parameters, whose elements are given by name, in as few consecutive parts as the compressor takes; a
    parameter that is too long has a part of its own."""
    parts: list[list[str]] = [[]]
    total = 0
    for name, count in numel.items():
        if parts[-1] and not takes(compressor, total + count):
            parts.append([])
            total = 0
        parts[-1].append(name)
        total += count
    return [tuple(part) for part in parts]
