"""The options of algorithms: fields of dataclasses, whose types are checked when an object is made; checks of other
arguments; each mistake is one line with the right call."""

from abc import ABCMeta
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache, partial, wraps
from inspect import Parameter, Signature, isclass, signature
from reprlib import repr as short
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import torch

P = ParamSpec("P")
T = TypeVar("T")
_KINDS = {
    bool: "True or False", int: "a whole number", float: "a finite number", str: "a text", torch.dtype: "a torch.dtype"
}  # fmt: skip
"""The types of plain options, as errors name them."""
_LARGEST = {int: 2**63 - 1, float: torch.finfo(torch.float32).max}
"""Kernels compute with int64 and float32."""


class _Called(ABCMeta):
    """The type of classes of options, whose call names the mistake where arguments do not fit."""

    if not TYPE_CHECKING:
        # a type checker would take these arguments for the class's own
        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            try:
                return super().__call__(*arguments, **options)
            except TypeError:
                _check_call(cls, arguments, options)
                raise

    @property
    def __signature__(cls) -> Signature:
        """The options, not the arguments of the call above: for help(), and the docstring that `dataclass` writes."""
        return signature(partial(cls.__init__, None)).replace(return_annotation=Signature.empty)


def _check_call(cls: type, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Raises TypeError, with the call as it could be, where the arguments do not fit the class."""
    own = signature(cls)
    try:
        own.bind(*arguments, **options)
    except TypeError as error:
        known = ", ".join(map(_written, own.parameters.values()))
        raise TypeError(f"{cls.__name__}(): {error}; write {cls.__name__}({known})") from None


def _written(parameter: Parameter) -> str:
    required = parameter.default is Parameter.empty
    return parameter.name if required else f"{parameter.name}={parameter.default!r}"


class Options(metaclass=_Called):
    """A dataclass of options, written by a user, read from a plan or from the command line.

    A subclass that has a `__post_init__`, for what its options may be beyond their types, calls this one's first.
    """

    called: ClassVar[str]
    """The name in errors; by default the class's."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "called" not in vars(cls):
            cls.called = cls.__name__

    def __post_init__(self) -> None:
        """Raises ValueError, naming the option and what it takes, for a value of another type than it is annotated
        with; numbers must be finite."""
        for name, annotation, default in _annotations(type(self)):
            value = getattr(self, name)
            if not _fits(value, annotation):
                example = "" if default in (MISSING, None) else f", e.g. {name}={default!r}"
                raise ValueError(f"{self.called}({name}={one_line(value)}) takes {_wanted(annotation)}{example}")


def one_line(value: object) -> str:
    """A value in one short line."""
    return " ".join(short(value).split())


def check_type(name: str, value: object, kinds: tuple[type, ...], example: str, optional: bool = True) -> None:
    """Raises ValueError, naming an argument that works, for one of another type than these; None passes where it is
    `optional`."""
    if optional and value is None:
        return
    if isclass(value) and issubclass(value, kinds):
        raise ValueError(f"{name}={value.__name__} is a class; pass an object, such as {name}={example}")
    if not isinstance(value, kinds):
        raise ValueError(f"{name}={one_line(value)} is no {kinds[0].__name__}; pass one, such as {name}={example}")


def called_as(example: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator for a function: where its arguments do not fit, the error has the `example` of a call that does."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        own = signature(function)

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            try:
                own.bind(*arguments, **options)
            except TypeError as error:
                raise TypeError(f"{example.partition('(')[0]}(): {error}; write {example}") from None
            return function(*arguments, **options)

        return call

    return decorate


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


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch type, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The torch type of a name, such as "bfloat16". Raises ValueError where there is none."""
    found: Any = getattr(torch, name, None)
    if not _fits(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of torch's; write e.g. bfloat16")
    return found


def names(value: Any) -> tuple[str, ...]:
    """A list of names that was read from JSON. Raises TypeError for anything else."""
    if not isinstance(value, list) or not all(_fits(name, str) for name in value):  # pyright: ignore
        raise TypeError(f"{value!r} are no names")
    return tuple(value)  # pyright: ignore


def _others(annotation: Any) -> list[Any]:
    """The members of a union but None."""
    return [kind for kind in get_args(annotation) if kind is not NoneType]
