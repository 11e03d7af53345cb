"""The parts of a plan, compressors, memories and communicators, as JSON: the class by its name, and its options."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from inspect import isclass
from pathlib import Path
from typing import Any

import torch

from gradwire import communicators, compressors, memories
from gradwire.importing import place_of
from gradwire.options import dtype_name, dtype_of, names

WrittenPart = Callable[[Any], Any]
"""`as_json`, or `in_place`."""


def json_of(text: str, kind: str) -> Any:
    """Parses JSON of a `kind`, such as "plan". Raises JSONDecodeError, which names that kind, for other text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        said = f"this is no {kind} that {kind.title()}.to_json() wrote: {error.msg}"
        raise json.JSONDecodeError(said, text, error.pos) from None
    except RecursionError:
        raise ValueError(f"this is no {kind} that {kind.title()}.to_json() wrote: it is nested too deeply") from None


def as_json(value: Any) -> Any:
    """What `json.dumps` writes for a part of a plan: the names of its class and its options; for a torch type its name.
    Raises TypeError for anything else."""
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    options = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"name": class_name(type(value))} | options


def in_place(value: Any) -> Any:
    """As `as_json`, for a file: what reads it elsewhere finds a script with a user's part by its whole path."""
    data, place = as_json(value), place_of(type(value))
    return data | {"name": f"{place}:{type(value).__qualname__}"} if isinstance(place, Path) else data


def class_name(cls: type) -> str:
    """The name of a part's class in a plan's JSON; a user's has its module in front, or its script's file without the
    folder, which may be another one on another rank."""
    if _of_gradwire(cls.__name__) is cls:
        return cls.__name__
    return f"{Path(str(place_of(cls))).name}:{cls.__qualname__}"


def groups_as_json(groups: Iterable[Any], part: WrittenPart) -> list[dict[str, Any]]:
    """A plan's groups as JSON has them, each part as `part` says."""
    plain = [
        {"slots": list(g.slots)}
        | ({"rule": g.rule} if g.rule else {})
        | {name: getattr(g, name) for name in ("compressor", "memory", "communicator")}
        for g in groups
    ]
    return json.loads(json.dumps(plain, default=part))


def users_parts(text: str) -> list[str]:
    """The names of users' classes in the JSON of a plan or a profile; none in other text."""
    found: list[Any] = []
    # the innermost comes first, and all but its name is dropped
    with suppress(ValueError, RecursionError):
        match json.loads(text):
            case {"groups": parts} | {"candidates": parts}:
                json.loads(json.dumps(parts), object_hook=lambda part: found.append(part.get("name")))
            case _:
                pass
    return [name for name in found if isinstance(name, str) and ":" in name]


def from_dict(data: dict[str, Any], base: type) -> Any:
    """The inverse of `as_json`. Raises ValueError for a class that is not known here, TypeError for what is no name."""
    arguments = dict(data)
    (name,) = names([arguments.pop("name")])
    part = _class(name, base)
    inner = {key: _value(value, base) for key, value in arguments.items()}
    # a type of numbers is written by its name
    defaults = {field.name: field.default for field in dataclasses.fields(part) if field.name in arguments}
    dtypes = {key: dtype_of(arguments[key]) for key, value in defaults.items() if isinstance(value, torch.dtype)}
    return part(**inner | dtypes)


def _value(value: Any, base: type) -> Any:
    """An option's value: a part of its own, a tuple, which JSON has as a list, or a plain one."""
    match value:
        case dict():
            return from_dict(value, base)
        case list():
            return tuple(_value(each, base) for each in value)
        case _:
            return value


def _names(cls: type) -> set[str]:
    """The names by which a plan may know a user's class: a script may have been imported as a module here."""
    name, file = class_name(cls), getattr(sys.modules.get(cls.__module__), "__file__", None)
    return {name, f"{Path(file).name}:{cls.__qualname__}"} if file and ":" in name else {name}


def _fit(cls: type, name: str) -> tuple[bool, bool]:
    """How well one of several classes fits a name: it is of that very file, and its module has no newer one."""
    current = getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls
    return f"{place_of(cls)}:{cls.__qualname__}" == name, current


def _class(name: str, base: type) -> type[Any]:
    """The class of a name. A user's must have been imported already, for a plan's file runs no code. Raises ValueError
    where there is none."""
    if ":" in name:
        known = [cls for cls in _below(base) if Path(name).name in _names(cls)]
        if known:
            return max(reversed(known), key=partial(_fit, name=name))
        raise ValueError(f"the plan names {name}, which is not imported here; import it, then read the plan")
    part = _of_gradwire(name)
    if not (isclass(part) and issubclass(part, base)):
        raise ValueError(f"the plan names {name!r}, which is no {base.__name__} of Gradwire")
    return part


def _of_gradwire(name: str) -> Any:
    """Gradwire's compressor, memory or communicator of this name; None where there is none."""
    modules = (compressors, memories, communicators)
    return next((found for module in modules if (found := getattr(module, name, None))), None)


def _below(base: type) -> Iterator[type]:
    """All subclasses."""
    for cls in base.__subclasses__():
        yield cls
        yield from _below(cls)
