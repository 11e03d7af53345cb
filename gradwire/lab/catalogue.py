"""What there is to choose from, found among Gradwire's exports and described by its own docstrings."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from typing import Any

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.controllers import Controller
from gradwire.lab.construct import construct, exported, options_of, unknown
from gradwire.lab.workloads import TASKS, Task
from gradwire.memories import Memory

_CITATION = re.compile(r"\s*\(([^()]*\b(?:19|20)\d\d\b[^()]*|https?://[^()]*)\)")


@dataclass(frozen=True)
class Entry:
    """One class: its name on the command line, what it is, its paper, its options."""

    name: str
    summary: str
    paper: str
    defaults: str


def tasks() -> dict[str, type[Task]]:
    """Every task by name."""
    return {task.name: task for task in TASKS}


def make_task(name: str, options: Sequence[str]) -> Task:
    """The task `name` with options such as `width=128`; it reads its data.

    Raises ValueError for an unknown task, an unknown or bad option, and data that is not there."""
    if name not in tasks():
        raise unknown("task", name, tasks())
    for option in options:
        if "=" not in option:
            raise ValueError(f"{option!r} is not an option of a task: write name=value, such as width=128")
    return construct(tasks()[name], options, name)


def catalogue() -> dict[str, list[Entry]]:
    """All entries by kind."""
    kinds = {
        "Compressors": exported(Compressor),
        "Memories": exported(Memory),
        "Communicators": exported(Communicator),
        "Controllers": {name: cls for name, cls in exported(Controller).items() if is_dataclass(cls)},
        "Tasks": tasks(),
    }
    return {kind: [_entry(name, cls) for name, cls in classes.items()] for kind, classes in kinds.items()}


def _entry(name: str, cls: type) -> Entry:
    paragraph = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
    whole = " ".join((inspect.getdoc(cls) or "").split())
    citation = _CITATION.search(whole)
    summary = re.split(r"(?<=\.)\s", _CITATION.sub("", paragraph))[0]
    return Entry(name, summary, citation[1] if citation else "", _defaults(cls))


def _defaults(cls: type) -> str:
    values = options_of(cls).items()
    return " ".join(f"{name}={_shown(default, name)}" for name, default in values)


def _shown(default: Any, name: str) -> str:
    match default:
        case _ if default is MISSING:
            return name.upper()
        case None | bool():
            return str(default).lower()
        case _:
            return str(default)
