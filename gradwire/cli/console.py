"""The terminal: where tables go, how progress and the user's mistakes look."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

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
from rich.text import Text

from gradwire.cli.run_setup import leads
from gradwire.report import terminal
from gradwire.report.text_table import TextTable

_WIDTH_IN_FILES = 100


class Mistake(typer.TyperException):
    """A mistake of the user's, printed in one line, with exit code 2."""


@contextmanager
def mistakes() -> Iterator[None]:
    """Turns ValueErrors into the user's mistakes."""
    try:
        yield
    except ValueError as error:
        raise Mistake(str(error)) from error


def show(table: TextTable) -> None:
    """Prints a table, as wide as there is room."""
    there = console()
    there.print(terminal.fitted(table, there.width))


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
    return Progress(
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        _TimeLeft(),
        console=console(stderr=True),
        speed_estimate_period=3600,  # of turns that take minutes too
        disable=not leads(),
    )
