"""Compressors, memories and communicators as JSON, in a plan: the class by its name, and its options."""

import dataclasses
from collections.abc import Iterator
from inspect import isclass
from pathlib import Path
from typing import Any

import torch

from gradwire import communicators, compressors, memories
from gradwire.importing import place_of
from gradwire.options import dtype_name, dtype_of


def to_dict(part: Any) -> dict[str, Any]:
    """A part of a plan, by the names of its class and its options."""
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    inner = {name: to_dict(value) for name, value in values.items() if dataclasses.is_dataclass(value)}
    dtypes = {name: dtype_name(value) for name, value in values.items() if isinstance(value, torch.dtype)}
    return {"name": _name(type(part))} | values | inner | dtypes


def from_dict(data: dict[str, Any], base: type) -> Any:
    """The inverse of `to_dict`. Raises ValueError for a class that is not known here."""
    arguments = dict(data)
    part = _class(arguments.pop("name"), base)
    inner = {key: from_dict(value, base) for key, value in arguments.items() if isinstance(value, dict)}
    # a type of numbers is written by its name
    defaults = {field.name: field.default for field in dataclasses.fields(part) if field.name in arguments}
    dtypes = {key: dtype_of(arguments[key]) for key, value in defaults.items() if isinstance(value, torch.dtype)}
    return part(**arguments | inner | dtypes)


def _name(cls: type) -> str:
    """The name of a part's class in a plan's JSON; a user's has its module, or the file of its script, in front."""
    if _of_gradwire(cls.__name__) is cls:
        return cls.__name__
    place = place_of(cls)
    return f"{place.name if isinstance(place, Path) else place}:{cls.__qualname__}"


def _class(name: Any, base: type) -> type[Any]:
    """The class of a name. A user's must have been imported already, for a plan's file runs no code. Raises ValueError
    where there is none."""
    if isinstance(name, str) and ":" in name:
        for cls in _below(base):
            if _name(cls) == name:
                return cls
        raise ValueError(f"the plan names {name}, which is not imported here; import it, then read the plan")
    part = _of_gradwire(name)
    if not (isclass(part) and issubclass(part, base)):
        raise ValueError(f"the plan names {name!r}, which is no {base.__name__} of Gradwire")
    return part


def _of_gradwire(name: Any) -> Any:
    """Gradwire's compressor, memory or communicator of this name; None where there is none."""
    modules = (compressors, memories, communicators)
    return next((found for module in modules if (found := getattr(module, name, None))), None)


def _below(base: type) -> Iterator[type]:
    """All subclasses."""
    for cls in base.__subclasses__():
        yield cls
        yield from _below(cls)
