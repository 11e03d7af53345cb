"""Copies of a plan with other compressors."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from gradwire.communicators import AllReduce, Communicator
from gradwire.compressors import Compressor
from gradwire.plans import Group, Plan, default_communicator


def recompress(plan: Plan, compressor_of: Callable[[Group, str], Compressor]) -> Plan:
    """A copy of the plan with `compressor_of(group, name)` for each parameter; groups are split where that differs."""
    return Plan(tuple(part for group in plan.groups for part in _parts(group, compressor_of)))


def _parts(group: Group, compressor_of: Callable[[Group, str], Compressor]) -> list[Group]:
    # the parameters of each compressor, in order
    names: dict[Compressor, list[str]] = {}
    for name in group.slots:
        names.setdefault(compressor_of(group, name), []).append(name)
    return [
        replace(group, slots=tuple(own), compressor=compressor, communicator=_communicator(group, compressor))
        for compressor, own in names.items()
    ]


def _communicator(group: Group, compressor: Compressor) -> Communicator:
    """The group's own where nothing changes; all-reduce for summable codecs; else its own where that takes the
    compressor, else the default."""
    if compressor == group.compressor:
        return group.communicator
    if compressor.summable and not compressor.sparse:
        return AllReduce()
    return group.communicator if group.communicator.takes(compressor) else default_communicator(compressor)


def has(compressor: Compressor, option: str) -> bool:
    """Whether the compressor has this hyperparameter."""
    return option in {field.name for field in fields(compressor)}  # pyright: ignore[reportArgumentType]


def setting_of(compressor: Compressor) -> str | None:
    """The name of the option that says how much a compressor sends; None where it has none, as casts."""
    return next((name for name in ("ratio", "rank", "levels") if has(compressor, name)), None)


def with_options(compressor: Compressor, options: Mapping[str, Any]) -> Any:
    """The compressor with other hyperparameters."""
    return replace(compressor, **options)  # pyright: ignore[reportArgumentType, reportCallIssue]
