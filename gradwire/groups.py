"""Groupings: the gradients that travel together, chosen by a user instead of the plan.

gw.attach(ddp, gw.TopK(0.01), groups=gw.groups.of(megabytes=25))
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

from gradwire.compressors import Compressor
from gradwire.options import called_as, check_type
from gradwire.plans import MB, Group, Plan, dense_group
from gradwire.slots import Slot


class Grouping(ABC):
    """A way to group a plan's parameters anew; groups that travel uncompressed stay as planned."""

    @property
    def bucket_mb(self) -> float | None:
        """The size of DDP's own buckets that amounts to the same, in megabytes; None where there is none."""
        return None

    def suits(self, compressor: Compressor) -> bool:
        """Whether what this compresses can be grouped in this way; by default any."""
        return True

    def check(self, compressor: Compressor) -> None:  # noqa: B027
        """Raises ValueError for a compressor that this does not suit."""

    def check_names(self, names: Collection[str]) -> None:  # noqa: B027
        """Raises ValueError for a name that is none of these, of all that are planned."""

    @abstractmethod
    def regroup(self, plan: Plan, slots: Sequence[Slot], compressor: Compressor) -> Plan:
        """`plan` with the slots that `compressor` compresses grouped in this way. Raises ValueError where it cannot
        be."""


@called_as("gw.groups.of(megabytes=25)")
def of(*, megabytes: float | None = None, count: int | None = None) -> Grouping:
    """Groups of at most so many megabytes of gradient, of 2^20 bytes as in DDP's `bucket_cap_mb`, where 0 is every
    tensor by itself; or so many groups, with equally many tensors each. Raises ValueError for both or neither."""
    # exactly one of the two
    if (megabytes is None) == (count is None):
        raise ValueError("a group's size or the number of groups is needed; use groups.of(megabytes=25) or of(count=4)")
    check_type("megabytes", megabytes, (float, int), "25")
    check_type("count", count, (int,), "4")
    if megabytes is not None:
        if not 0 <= megabytes < inf:
            raise ValueError(f"megabytes={megabytes} is no size; use megabytes=25, or 0 for every tensor by itself")
        return Filled(megabytes)
    assert count is not None
    if count < 1:
        raise ValueError(f"count={count} leaves no group; use 1 or more")
    return Counted(count)


def listed(names: Sequence[Sequence[str]]) -> Grouping:
    """These groups of parameters, by name. A group is split where its parameters belong to several rules or several
    fragments of local steps, and where tensor parallelism cuts some of them and leaves others whole. Raises ValueError
    for names alone."""
    if one := next((group for group in names if isinstance(group, str)), None):
        raise ValueError(f"{one!r} is a name where a group of names belongs; write gw.groups.listed([[{one!r}]])")
    return Listed(tuple(tuple(group) for group in names))


def partial(threshold: int | None = None) -> Grouping:
    """ADTopk's partial sparsification: small matrices travel dense, within the budget of their group, or all that
    have at most `threshold` elements. Beside rules it is for those that have a ratio. Raises ValueError for a threshold
    that is no number of elements."""
    check_type("threshold", threshold, (int,), "65536")
    if threshold is not None and threshold < 1:
        raise ValueError(f"threshold={threshold} leaves nothing dense; use e.g. threshold=65536 elements, or none")
    return Partial(threshold)


@dataclass(frozen=True)
class Filled(Grouping):
    """Groups of at most `megabytes` of gradient."""

    megabytes: float
    """MiB, of 2^20 bytes, as in DDP's `bucket_cap_mb`."""

    @property
    def bucket_mb(self) -> float:
        return self.megabytes

    def regroup(self, plan: Plan, slots: Sequence[Slot], compressor: Compressor) -> Plan:
        parts: list[list[Slot]] = [[]]
        size = 0
        # in order, as long as a group has room
        for slot in _compressed(plan, slots, compressor):
            size += 4 * slot.numel
            if parts[-1] and size > self.megabytes * MB:
                parts.append([])
                size = 4 * slot.numel
            parts[-1].append(slot)
        return _cut(plan, parts, compressor)


@dataclass(frozen=True)
class Counted(Grouping):
    """So many groups with equally many tensors."""

    count: int
    """The number of groups."""

    def regroup(self, plan: Plan, slots: Sequence[Slot], compressor: Compressor) -> Plan:
        mine = _compressed(plan, slots, compressor)
        count = min(self.count, len(mine))
        # numbers of tensors that differ by one at most
        bounds = [len(mine) * part // count for part in range(count + 1)] if count else [0]
        return _cut(plan, [mine[start:end] for start, end in pairwise(bounds)], compressor)


@dataclass(frozen=True)
class Listed(Grouping):
    """Groups of these names; those of slots that are planned elsewhere are passed over. Raises ValueError for names
    that are not compressed, and where some are left out."""

    names: tuple[tuple[str, ...], ...]
    """The parameters of each group."""

    def check_names(self, names: Collection[str]) -> None:
        if unknown := [name for group in self.names for name in group if name not in names]:
            known = next(iter(names))
            raise ValueError(f"the groups name {unknown[0]!r}, which is not reduced; use names as {known!r}")

    def regroup(self, plan: Plan, slots: Sequence[Slot], compressor: Compressor) -> Plan:
        mine = {slot.name: slot for slot in _compressed(plan, slots, compressor)}
        # a rule's or a fragment's slots are grouped by themselves
        here = {slot.name for slot in slots}
        groups = [[name for name in group if name in here] for group in self.names]
        listed = dict.fromkeys(name for group in groups for name in group)
        if unknown := [name for name in listed if name not in mine]:
            raise ValueError(f"the groups name {unknown[0]!r}, which {compressor} does not compress; leave it out")
        if missing := [name for name in mine if name not in listed]:
            raise ValueError(f"the groups lack {missing[0]!r}; list every parameter that {compressor} compresses")
        return _cut(plan, [[mine[name] for name in group] for group in groups], compressor)


@dataclass(frozen=True)
class Partial(Grouping):
    """Within each group, matrices travel dense, the smallest first, as long as all of them have fewer elements than the
    group would send in all; the others send what is left of that. With a `threshold` those of at most so many elements
    do instead, and the others' ratio stays (ADTopk, HPDC 2024, https://doi.org/10.1145/3625549.3658678)."""

    threshold: int | None = None
    """The most elements of a dense matrix; without one, a group's budget decides."""

    def suits(self, compressor: Compressor) -> bool:
        """Whether it has a ratio: else there is no budget to keep."""
        return bool(_ratios(compressor))

    def check(self, compressor: Compressor) -> None:
        if not self.suits(compressor):
            raise ValueError(f"{type(compressor).__name__} has no ratio, so no budget: this is for sparse ones")

    def regroup(self, plan: Plan, slots: Sequence[Slot], compressor: Compressor) -> Plan:
        self.check(compressor)
        numel = {slot.name: slot.numel for slot in slots}
        dense: list[str] = []
        groups: list[Group] = []
        for group in plan.groups:
            if group.compressor != compressor:
                dense += group.slots
                continue
            # small matrices become dense, and the others send as much less as that costs
            small = dict.fromkeys(self._small(group.slots, numel, max(_ratios(compressor))))
            dense += small
            rest = tuple(name for name in group.slots if name not in small)
            if rest:
                factor = self._factor(group.slots, small, numel, max(_ratios(compressor)))
                groups.append(replace(group, slots=rest, compressor=_scaled(compressor, factor)))
        # what is dense travels together, last
        last = [dense_group(tuple(dense), plan.groups[0].memory)] if dense else []
        return Plan((*groups, *last))

    def _small(self, names: Sequence[str], numel: dict[str, int], ratio: float) -> list[str]:
        """The names of a group's dense matrices."""
        if self.threshold is not None:
            return [name for name in names if numel[name] <= self.threshold]
        # the smallest first, as long as they cost less than the group would send in all
        budget, chosen = ratio * sum(numel[name] for name in names), []
        for name in sorted(names, key=lambda name: numel[name]):
            budget -= numel[name]
            if budget <= 0:
                break
            chosen.append(name)
        return chosen

    def _factor(self, names: Sequence[str], small: Collection[str], numel: dict[str, int], ratio: float) -> float:
        """The factor of the others' ratio with which the group sends as many elements as before."""
        if self.threshold is not None:
            return 1.0
        # the others send as much less as the dense ones take
        total, filled = (sum(numel[name] for name in some) for some in (names, small))
        return (total * ratio - filled) / (total - filled) / ratio


def _compressed(plan: Plan, slots: Sequence[Slot], compressor: Compressor) -> list[Slot]:
    names = {name for group in plan.groups if group.compressor == compressor for name in group.slots}
    return [slot for slot in slots if slot.name in names]


def _cut(plan: Plan, parts: Sequence[Sequence[Slot]], compressor: Compressor) -> Plan:
    mine = [group for group in plan.groups if group.compressor == compressor]
    others = [group for group in plan.groups if group.compressor != compressor]
    names = [tuple(slot.name for slot in part) for part in parts if part]
    return Plan((*(replace(mine[0], slots=own) for own in names), *others))


def _ratios(compressor: Compressor) -> list[float]:
    """Its own, and those of the compressors that it is made of."""
    nested = [ratio for part in _parts(compressor).values() for ratio in _ratios(part)]
    return [*([compressor.ratio] if hasattr(compressor, "ratio") else []), *nested]  # pyright: ignore


def _parts(compressor: Compressor) -> dict[str, Any]:
    values = {field.name: getattr(compressor, field.name) for field in fields(compressor)}  # pyright: ignore[reportArgumentType]
    return {name: value for name, value in values.items() if is_dataclass(value)}


def _scaled(compressor: Compressor, factor: float) -> Compressor:
    changes: dict[str, object] = {name: _scaled(part, factor) for name, part in _parts(compressor).items()}
    if hasattr(compressor, "ratio"):
        changes["ratio"] = factor * compressor.ratio  # pyright: ignore
    return replace(compressor, **changes)  # pyright: ignore[reportArgumentType, reportCallIssue]
