"""Exit codes of the command line, with one line for an error; signals end it as Ctrl-C does."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from signal import SIG_DFL, SIGHUP, SIGTERM, getsignal, signal

import typer

from gradwire.cli.commands import app
from gradwire.cli.plain import open_closed, spell_out
from gradwire.lab.launch.rank_failed import RankFailed
from gradwire.lab.network.network import NetworkUnavailable
from gradwire.lab.task_error import TaskError


def run(arguments: list[str] | None) -> int:
    """Runs a command, without one `--help`; returns its exit code."""
    wanted = sys.argv[1:] if arguments is None else arguments
    open_closed()
    if empty := _empty(wanted):
        return _fail(f"{empty} is empty: give a value, or leave it out", 2)
    if unreadable := _unreadable(wanted):
        return _fail(f"{unreadable} is not UTF-8, which reports are: name it anew, or give a link to it, by ln -s", 2)
    # run it, and turn errors into one line and an exit code
    spell_out()
    with _ended_in_order():
        try:
            return app(wanted or ["--help"], standalone_mode=False) or 0
        except typer.TyperException as mistake:
            return _fail(mistake.format_message(), 2)
        except NetworkUnavailable as mistake:
            return _fail(f"{mistake}{_without_links(wanted)}", 2)
        except (OSError, RankFailed, TaskError) as failure:
            return _fail(str(failure), 1)


def _empty(arguments: list[str]) -> str | None:
    """The first of the arguments without a value, as one of a variable that is not set; None where all have one."""
    for before, argument in pairwise(["", *arguments]):
        if argument == "":
            return before if before.startswith("--") else "an argument"
        if argument.startswith("--") and argument.endswith("="):
            return argument[:-1]
    return None


def _unreadable(arguments: list[str]) -> str | None:
    """The first of the arguments with bytes that are no text, which it shows as \\xe9; None where all are text."""
    shown = {each: each.encode(errors="surrogateescape").decode(errors="backslashreplace") for each in arguments}
    return next((text for argument, text in shown.items() if text != argument), None)


def _without_links(arguments: list[str]) -> str:
    """Advice for where links cannot be emulated, as a clause; "" for `--resume`, which takes no other link."""
    if any(argument.startswith("--resume") for argument in arguments):
        return ""
    hosts = arguments[:1] == ["doctor"] and any(argument.startswith("--hosts") for argument in arguments)
    return f", or give --link loopback{' and leave --hosts out' if hosts else ''}"


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process as Ctrl-C does: temporary folders go, and what was measured is shown."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    # nohup has SIGHUP ignored
    deadly = [number for number in (SIGTERM, SIGHUP) if getsignal(number) == SIG_DFL]
    for number in deadly:
        signal(number, leave)
    try:
        yield
    finally:
        for number in deadly:
            signal(number, SIG_DFL)


def _fail(message: str, exit_code: int) -> int:
    print(f"gradwire: {' '.join(message.split())}", file=sys.stderr)
    return exit_code
