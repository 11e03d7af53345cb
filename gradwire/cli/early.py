"""Checks of arguments that load no torch, so that these mistakes are named at once. What passes is checked again, in
full, where it is used."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import typer

from gradwire.importing import PART
from gradwire.lab.names import (
    AUTO,
    DDP,
    DENSE,
    LOCAL,
    MODELS,
    NOCOMM,
    PARTNERS,
    PLAN,
    exported_names,
)
from gradwire.lab.network.link import Link
from gradwire.report.report_files import BESIDE
from gradwire.unknown import unknown, unknown_part

V = TypeVar("V")
_OWN = re.compile(PART)


def early(check: Callable[[V], object]) -> Callable[[V | None], V | None]:
    """A callback for an option, which is named where `check` raises ValueError for its value."""

    def callback(value: V | None) -> V | None:
        try:
            if value is not None:
                check(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        return value

    return callback


def named(kind: str, known: Sequence[str]) -> Callable[[str | None], str | None]:
    """A callback for an option that takes one of the `known` names of a `kind`, such as a task."""

    def check(name: str) -> None:
        if name not in known:
            raise unknown(kind, name, known)

    return early(check)


def beside(suffix: str) -> Callable[[bool], bool]:
    """A callback for an option that has pictures written in one more format."""

    def callback(wanted: bool) -> bool:
        (BESIDE.add if wanted else BESIDE.discard)(suffix)
        return wanted

    return callback


def links(text: str) -> None:
    """Raises ValueError for what is no link among several, separated by commas."""
    for each in text.split(","):
        Link.parse(each)


def model(name: str) -> None:
    """Raises ValueError for an unknown model; a function of the user's is one."""
    if ":" in name or name in MODELS:
        return
    if "." in name:
        raise ValueError(f"{name!r} is no model: one of your own is a function in it, {name}:make")
    raise unknown("model", name, (*MODELS, "my.module:make"))


def configurations(texts: Sequence[str]) -> None:
    """Raises ValueError for a name that nothing has."""
    for text in texts:
        if text.startswith(PLAN):
            continue
        head, *others = text.partition(";")[0].partition("@")[0].split("+")
        # local steps may stand before a compressor
        if others and _name(head) == LOCAL:
            head, *others = others
        _check("compressor", head, (*exported_names("compressors"), DENSE, DDP, NOCOMM, LOCAL, AUTO))
        for other in others:
            _check("memory, communicator or controller", other, exported_names(*PARTNERS))


def controller(text: str) -> None:
    """Raises ValueError for an unknown controller."""
    _check("controller", text, exported_names("controllers"))


def _check(kind: str, part: str, known: Sequence[str]) -> None:
    if _name(part) not in known and not _name(part).startswith("torch-") and not _OWN.fullmatch(part):
        raise unknown_part(kind, _name(part), known)


def _name(part: str) -> str:
    return part.partition(":")[0].lower()
