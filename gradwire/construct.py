"""Objects from text: `ratio=0.01` and the class TopK become TopK(ratio=0.01).

A compressor inside a compressor is written with slashes: `interleaved:alldimensiontopk/0.01,topk/0.01`.
"""

from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from inspect import isabstract, isclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch

from gradwire import communicators, compressors, controllers, memories
from gradwire.communicators import Communicator
from gradwire.compressors import Codec, Compressor
from gradwire.controllers import Controller
from gradwire.importing import name_of_part
from gradwire.memories import Memory
from gradwire.options import check_type, dtype_name, dtype_of, one_line
from gradwire.unknown import unknown

T = TypeVar("T")

_WANTED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    torch.dtype: "a type of torch's numbers, such as bfloat16",
}


def construct(cls: type[T], arguments: Sequence[str], called: str) -> T:
    """An instance of a dataclass that the user calls `called`; `arguments` are values in the order of its
    fields, or name=value.

    Raises ValueError for an unknown name, a value of the wrong type, one given twice, and one missing.
    """
    # each argument by name, or by its place among the options
    options = options_of(cls)
    types = get_type_hints(cls)
    values: dict[str, Any] = {}
    for position, argument in enumerate(arguments):
        name, text = _named(argument, position, list(options), called)
        if name in values:
            raise ValueError(f"{called} got {name} twice")
        values[name] = _read(text, types[name], f"{name} of {called}")
    # options without a default must have been given
    for name, default in options.items():
        if default is MISSING and name not in values:
            raise ValueError(f"{called} needs {name}={name.upper()}")
    return cls(**values)


def exported(base: type) -> dict[str, type[Any]]:
    """Gradwire's public subclasses of `base` that text can say, by lower-case name."""
    modules = (compressors, communicators, memories, controllers)
    members = [getattr(module, name) for module in modules for name in module.__all__]
    classes = [cls for cls in members if isclass(cls) and issubclass(cls, base) and is_dataclass(cls)]
    classes = [cls for cls in classes if not isabstract(cls)]
    return {cls.__name__.lower(): cls for cls in sorted(classes, key=lambda cls: cls.__name__)}


def options_of(cls: type) -> dict[str, Any]:
    """A dataclass's fields with their defaults, MISSING where there is none; without those that only code can give."""
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(cls)
        if field.init and "code" not in field.metadata
    }


def text_of(value: Any) -> str:
    """The text for a compressor, a memory, a communicator or a controller, Gradwire's or a user's, and for a group's
    three; of a text itself. Raises ValueError for anything else."""
    if isinstance(value, str):
        return value
    if hasattr(value, "compressor"):  # a group
        return "+".join(map(text_of, (value.compressor, value.memory, value.communicator)))
    cls = type(value)
    if not isinstance(value, Compressor | Memory | Communicator | Controller):
        raise ValueError(f"{one_line(value)} is no configuration; pass a compressor, such as gw.TopK(0.01), or a text")
    check_options(cls, cls.__name__)
    name = cls.__name__.lower() if cls in exported(object).values() else name_of_part(cls)
    parts = _parts(value)
    return name + (f":{','.join(parts)}" if parts else "")


def texts_of(name: str, values: Any) -> list[str]:
    """The texts of a list. Raises ValueError, naming the argument, for what is none."""
    check_type(name, values, (list, tuple), '["dense", gw.TopK(0.01)]', optional=False)
    return [text_of(each) for each in values]


def check_options(cls: type, called: str) -> None:
    """Raises ValueError for a class whose options have no text."""
    if not is_dataclass(cls):
        raise ValueError(
            f"{called} is no dataclass, whose options can be written: put @dataclass(frozen=True) above it"
        )


def _parts(value: Any) -> list[str]:
    """name=value of each option that has another value than by default."""
    options = {name: (getattr(value, name), default) for name, default in options_of(type(value)).items()}
    return [f"{name}={_written(own)}" for name, (own, default) in options.items() if own != default]


def _written(value: Any) -> str:
    if is_dataclass(value):
        return "/".join([type(value).__name__.lower(), *_parts(value)])
    match value:
        case None | True | False:
            return str(value).lower()
        case torch.dtype():
            return dtype_name(value)
        case _:
            return str(value)


def _named(argument: str, position: int, names: list[str], called: str) -> tuple[str, str]:
    """The option that an argument sets, by its name or its place, and its text."""
    name, equals, text = argument.partition("=")
    if equals:
        if name not in names:
            raise unknown(f"option of {called} named", name, names) if names else _too_many(called, names)
        return name, text
    if position >= len(names):
        raise _too_many(called, names)
    return names[position], argument


def _too_many(called: str, names: list[str]) -> ValueError:
    return ValueError(f"{called} takes only {', '.join(names)}" if names else f"{called} takes no options")


def _read(text: str, annotation: Any, what: str) -> Any:
    """The value of a text, by an option's annotation. Raises ValueError, naming `what`, where it is none."""
    # one of a few words
    if get_origin(annotation) is Literal:
        choices = {str(choice): choice for choice in get_args(annotation)}
        if text not in choices:
            raise unknown(f"{what} named", text, choices)
        return choices[text]
    # "none", or a value
    if NoneType in get_args(annotation):
        return None if text == "none" else _read(text, get_args(annotation)[0], what)
    # a compressor inside this one
    if annotation not in _WANTED and not (isclass(annotation) and issubclass(annotation, Codec)):
        raise ValueError(f"{what} cannot be written as text: leave it out")
    if issubclass(annotation, Codec):
        name, *arguments = text.split("/")
        if name not in exported(Codec):
            raise unknown(f"{what} named", name, exported(Codec))
        return construct(exported(Codec)[name], arguments, name)
    # a plain value
    try:
        return _plain(text, annotation)
    except (ValueError, KeyError):
        raise ValueError(f"{what} takes {_WANTED[annotation]}, not {text!r}") from None


def _plain(text: str, annotation: Any) -> Any:
    """A plain value. Raises ValueError or KeyError for a text that is none."""
    if annotation is bool:
        return {"true": True, "false": False}[text.lower()]
    return dtype_of(text) if annotation is torch.dtype else annotation(text)
