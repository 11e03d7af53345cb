"""The options of algorithms: fields of dataclasses, whose types are checked when an object is made."""

from dataclasses import MISSING, fields
from functools import cache
from inspect import isclass
from reprlib import repr as short
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

_KINDS = {bool: "True or False", int: "a whole number", float: "a finite number", str: "a text"}
"""The types of plain options, as errors name them."""
_LARGEST = {int: 2**63 - 1, float: torch.finfo(torch.float32).max}
"""Kernels compute with int64 and float32."""


class Options:
    """A dataclass of options, written by a user, read from a plan or from the command line.

    A subclass that has a `__post_init__`, for what its options may be beyond their types, calls this one's first.
    """

    def __post_init__(self) -> None:
        """Raises ValueError, naming the option and what it takes, for a value of another type than it is annotated
        with; numbers must be finite."""
        for name, annotation, default in _annotations(type(self)):
            value = getattr(self, name)
            if not _fits(value, annotation):
                given = " ".join(short(value).split())
                example = "" if default in (MISSING, None) else f", e.g. {name}={default!r}"
                raise ValueError(f"{type(self).__name__}({name}={given}) takes {_wanted(annotation)}{example}")


@cache
def _annotations(cls: Any) -> list[tuple[str, Any, Any]]:
    """Name, annotation and default of each option. None where an annotation cannot be read, as in a user's module that
    imports names for type checkers alone."""
    try:
        hints = get_type_hints(cls)
    except NameError:
        return []
    return [(field.name, hints[field.name], field.default) for field in fields(cls) if field.init]


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value is one of an option's annotation; annotations that are none of those below fit every value."""
    # bool is an int in Python, and True == 1: types are compared too
    if get_origin(annotation) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(annotation))
    if NoneType in get_args(annotation):
        return value is None or all(_fits(value, kind) for kind in _others(annotation))
    # annotations that are not checked
    if annotation not in _KINDS and not (isclass(annotation) and issubclass(annotation, Options)):
        return True
    if not isinstance(value, (int, float) if annotation is float else annotation):
        return False
    # what kernels take as a C integer
    largest = _LARGEST.get(annotation)
    return largest is None or (value is not True and value is not False and -largest <= value <= largest)


def _wanted(annotation: Any) -> str:
    """A description of the values that an option takes."""
    if get_origin(annotation) is Literal:
        return " or ".join(repr(choice) for choice in get_args(annotation))
    if NoneType in get_args(annotation):
        return f"{' or '.join(_wanted(kind) for kind in _others(annotation))}, or None"
    return _KINDS.get(annotation) or f"a {annotation.__name__}"


def names(value: Any) -> tuple[str, ...]:
    """A list of names that was read from JSON. Raises TypeError for anything else."""
    if not isinstance(value, list) or not all(_fits(name, str) for name in value):  # pyright: ignore
        raise TypeError(f"{value!r} are no names")
    return tuple(value)  # pyright: ignore


def _others(annotation: Any) -> list[Any]:
    """The members of a union but None."""
    return [kind for kind in get_args(annotation) if kind is not NoneType]
