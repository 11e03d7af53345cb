"""The terminal: where tables go, how progress and the user's mistakes look."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from gradwire.cli.run_setup import leads
from gradwire.report import terminal
from gradwire.report.text_table import TextTable

_WIDTH_IN_FILES = 100
_NO_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
"""Phrases of torch's errors where memory is lacking."""


class Mistake(typer.TyperException):
    """A mistake of the user's, printed in one line, with exit code 2."""


@contextmanager
def mistakes() -> Iterator[None]:
    """Turns ValueErrors, and sizes for which there is no memory, into the user's mistakes."""
    try:
        yield
    except ValueError as error:
        raise Mistake(str(error)) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _NO_MEMORY):
            raise
        reason = str(error).partition("\n")[0] or "MemoryError"
        raise Mistake(
            f"there is no memory for such sizes: give smaller ones, such as of the batch ({reason})"
        ) from error


def show(*shown: TextTable | str | None) -> None:
    """Prints tables, as wide as there is room, and sentences; nothing for what is empty."""
    there = console()
    for each in filter(None, shown):
        if isinstance(each, TextTable):
            there.print(terminal.fitted(each, there.width))
        else:
            there.print(each, highlight=False, markup=False)


def show_and_write(shown: Iterable[TextTable | str | None], write: Callable[[], Iterable[Path]]) -> None:
    """Shows a report, and then the paths of its files. They are written even where the output is closed, as by `head`,
    and where a generator of what is `shown` fails."""
    try:
        show(*shown)
    finally:
        paths = write()
    for path in paths:
        print(path)


def console(stderr: bool = False) -> Console:
    """A console as wide as the terminal, or as COLUMNS says; in files of 100 columns."""
    measured = "COLUMNS" in os.environ or (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, width=None if measured else _WIDTH_IN_FILES)


class _TimeLeft(TimeRemainingColumn):
    """The time left until `ends`, a second on the task's clock, where a task has it: rich takes all turns for equally
    long."""

    def render(self, task: Task) -> Text:
        if not (ends := task.fields.get("ends")):
            return super().render(task)
        left = timedelta(seconds=max(0, int(ends - task.get_time())))
        return Text(str(left), style="progress.remaining")


def progress_bars() -> Progress:
    """Progress bars on standard error, each with a note, of the process that leads: others would wipe them away."""
    names, figures = Column(overflow="ellipsis"), Column(no_wrap=True)
    return Progress(
        # where there is little room, names are cut, not figures
        TextColumn("{task.description}", markup=False, table_column=names),
        BarColumn(),
        MofNCompleteColumn(table_column=figures),
        TextColumn("{task.fields[note]}", markup=False, table_column=names),
        TimeElapsedColumn(table_column=figures),
        TextColumn("left"),
        _TimeLeft(table_column=figures),
        console=console(stderr=True),
        speed_estimate_period=3600,  # of turns that take minutes too
        disable=not leads(),
    )
