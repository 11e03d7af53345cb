"""The notation for compression in one word, such as `topk:0.01+residual+allgather@25mb`.

A compressor with its options, then memory, communicator and controller in any order, each of which may be left out;
after `@` which tensors travel together: `25mb` of gradient at most, `4` groups, or `hybrid`. A part of a user's own is
written `my.module:MyCodec` or `file.py:MyCodec`, with options as in `my.module:MyCodec:0.01`; in a folder's name %20 is
a space, %2B a +, %40 a @, as in addresses.
"""

import re
from collections.abc import Sequence
from inspect import isclass
from typing import Any, NamedTuple

from gradwire import groups
from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.construct import check_options, construct, exported
from gradwire.controllers import Controller
from gradwire.importing import PART, imported_part
from gradwire.memories import Memory
from gradwire.plans import Group, default_memory
from gradwire.unknown import unknown_part
from gradwire.ways import CompressorWithMemory, Way

AUTO = "auto"
"""In place of a compressor: the automatic plan chooses one."""
_MEGABYTES = re.compile(r"(\d+(?:\.\d+)?)mb")
_OWN = re.compile(PART)


class Components(NamedTuple):
    """The parts that a text names; None for those that it leaves out."""

    compressor: Compressor
    memory: Memory | None
    communicator: Communicator | None
    controller: Controller | None


def read(text: str) -> tuple[Components, groups.Grouping | None]:
    """Reads one word. Raises ValueError, naming what is near, for an unknown name, and for a value that does not
    fit."""
    # the grouping is behind the @, all else between +
    parts, at, grouping = lowered(text).partition("@")
    head, *others = parts.split("+")
    return read_parts(text, head, others), read_grouping(grouping) if at else None


def lowered(text: str) -> str:
    """The text in lower case, except the names of users' own parts."""
    parts, at, grouping = text.partition("@")
    return "+".join(part if own(part) else part.lower() for part in parts.split("+")) + (at + grouping).lower()


def own(text: str) -> re.Match[str] | None:
    """The match of a part of a user's own, by its `name` and its `arguments`; None for any other text."""
    match = _OWN.fullmatch(text)
    # `topk:none` is an option; a class has a module with a dot or a slash, or a name that begins with a capital
    if match is None or match["module"].lower() in exported(object):
        return None
    return match if match["cls"][0].isupper() or re.search(r"[./]", match["module"]) else None


def read_parts(text: str, head: str, others: Sequence[str], also: Sequence[str] = ()) -> Components:
    """Reads the parts of `text`; names that are known `also` are offered where the compressor is not."""
    compressor = _make("compressor", head, (Compressor,), also)
    kinds = {"memories": Memory, "communicators": Communicator, "controllers": Controller}
    # the others in any order, at most one of each kind
    made = [_make("memory, communicator or controller", other, (*kinds.values(),)) for other in others]
    partners: list[Any] = []
    for plural, base in kinds.items():
        found = [part for part in made if isinstance(part, base)]
        if len(found) > 1:
            raise ValueError(f"{text!r} names two {plural}: keep one")
        partners.append(found[0] if found else None)
    return Components(compressor, *partners)


def read_rule(text: str) -> tuple[str, str]:
    """Reads PATTERN=WAY, such as `*.norm.*=fp32`, as a pair. Raises ValueError where there is no way."""
    pattern, equals, way = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is no rule: write PATTERN=COMPRESSOR, such as '*.norm.*=fp32'")
    return pattern, way


def read_ways(text: str) -> list[Way]:
    """Reads a rule's way, such as `topk:0.01+residual`; with `|` between them several; `auto` has none. Raises
    ValueError for anything else, and for a controller or a grouping, which are for all rules."""
    ways: list[Way] = []
    for word in map(lowered, text.split("|")) if text.lower() != AUTO else ():
        head, *others = word.partition("@")[0].split("+")
        parts = read_parts(word, head, others, (AUTO,))
        if "@" in word or parts.controller:
            raise ValueError(f"a rule has a compressor, a memory and a communicator, and {word!r} more; leave that out")
        ways.append(way_of(*parts[:3]))
    return ways


def way_of(compressor: Compressor, memory: Memory | None, communicator: Communicator | None) -> Way:
    """A way to send: the compressor, which goes with what suits it, or with the parts that are named."""
    if communicator:
        return Group((), compressor, memory or default_memory(compressor), communicator)
    return CompressorWithMemory(compressor, memory) if memory else compressor


def read_grouping(text: str) -> groups.Grouping:
    """Reads `25mb`, `4` or `hybrid`, which is partial sparsification. Raises ValueError for anything else."""
    if text == "hybrid":
        return groups.partial()
    if match := _MEGABYTES.fullmatch(text):
        return groups.of(megabytes=float(match[1]))
    if text.isdecimal() and int(text):
        return groups.of(count=int(text))
    if text.isdecimal():
        raise ValueError(f"@{text} is no grouping: write @0mb for every tensor by itself, or @1 for one group")
    words = f"@{text} is no grouping: write @25mb for up to 25 MB a group, @4 for 4 groups, or @hybrid"
    raise ValueError(words + ("; an @ in a folder's name is %40" if "/" in text else ""))


def _make(kind: str, text: str, bases: tuple[type[Any], ...], also: Sequence[str] = ()) -> Any:
    """The object that "name:option,option=value" names, of a class of one of these bases."""
    if match := own(text):
        return construct(_own_class(kind, match["name"], bases), _cut(match["arguments"]), match["name"])
    name, colon, arguments = text.partition(":")
    classes = {name: cls for base in bases for name, cls in exported(base).items()}
    if name not in classes:
        raise unknown_part(kind, name, [*classes, *also])
    return construct(classes[name], _cut(arguments if colon else None), name)


def _cut(arguments: str | None) -> list[str]:
    return [] if arguments is None else arguments.split(",")


def _own_class(kind: str, name: str, bases: tuple[type[Any], ...]) -> type[Any]:
    """A user's class. Raises ValueError for one of another kind, and for one that is no dataclass."""
    cls = imported_part(name)
    if not (isclass(cls) and issubclass(cls, bases)):
        raise ValueError(f"{name} is no {kind}: name a subclass of {' or '.join(f'gw.{b.__name__}' for b in bases)}")
    check_options(cls, name)
    return cls
