"""Tables of figures as plain text, for the terminal and the page."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor, isfinite, log10
from typing import TypeVar

from gradwire.lab.names import NOCOMM
from gradwire.lab.results import Run, Spread, Totals, shown
from gradwire.report.timing import Timing

R = TypeVar("R")
Columns = Mapping[str, Callable[[R], str]]
"""Headings, each with the function that makes a row's cell below it."""
_SPLIT = ("encode", "wire", "decode", "wait")


@dataclass(frozen=True)
class TextTable:
    """Rows under columns."""

    title: str
    columns: list[str]
    """Their headings."""
    rows: list[list[str]]
    """Cells as text, one for each column."""
    texts: Collection[str] = ()
    """Columns of words; the others are numbers."""
    keys: int = 1
    """How many columns, the first ones, name the row."""

    @classmethod
    def of(cls, title: str, rows: Iterable[R], columns: Columns[R], texts: Collection[str] = ()) -> "TextTable":
        """A line of cells for each of `rows`, of any type; `texts` as above."""
        return cls(title, [*columns], [[cell(row) for cell in columns.values()] for row in rows], texts)


def figure(number: float) -> str:
    """The number with three significant digits and no exponent; - where it is not finite."""
    if not isfinite(number):
        return "-"
    digits = max(0, 2 - floor(log10(abs(number)))) if number else 0
    return f"{number:.{digits}f}"


def score(number: float) -> str:
    """A loss, an accuracy and the like, with three decimals; with three digits where it is small."""
    return figure(number) if abs(number) < 0.1 else f"{number:.3f}"


def times(number: float) -> str:
    """The number as a factor; - where it is infinite, because nothing was sent."""
    return f"{figure(number)}×" if isfinite(number) else "-"


def diverged(run: Run) -> bool:
    """Whether its loss has grown beyond all numbers."""
    return not all(map(isfinite, (run.last.loss, *(run.last.held_out or {}).values())))


def spread(of: Callable[[R], Spread]) -> Columns[R]:
    """Columns of a step's time."""
    return {
        "ms per step": lambda row: figure(of(row).median),
        "quartiles, ms": lambda row: f"{figure(of(row).low)} to {figure(of(row).high)}",
    }


def _split(of: Callable[[R], tuple[Totals, int]]) -> Columns[R]:
    """Columns of the milliseconds per step, of totals and their steps. Not known without Gradwire, where all are 0."""

    def cell(part: str, row: R) -> str:
        totals, steps = of(row)
        seconds = {name: getattr(totals, f"{name}_s") for name in _SPLIT}
        return figure(1e3 * seconds[part] / steps) if any(seconds.values()) else "-"

    return {part: partial(cell, part) for part in _SPLIT}


def _sent(rows: Sequence[R], unit: str, sender: str, of: Callable[[R], tuple[Totals, float]]) -> Columns[R]:
    """Columns of bytes, of totals and how many bytes count as one `unit`. Of all ranks' interfaces there are counts on
    the emulated network alone."""
    columns: dict[str, Callable[[R], str]] = {
        f"{unit} per {sender}": lambda row: figure(of(row)[0].wire_bytes / of(row)[1])
    }
    if of(rows[0])[0].interface_bytes is not None:
        columns[f"{unit} at the interface"] = lambda row: figure((of(row)[0].interface_bytes or 0.0) / of(row)[1])
    return columns | {"fewer bytes": lambda row: times(of(row)[0].ratio)}


def _held_out(run: Run, metric: str) -> str:
    if diverged(run):
        return "diverged"
    return score(run.last.held_out[metric]) if run.last.held_out else "-"


def training(runs: Sequence[Run], metric: str) -> TextTable:
    """Held-out figures, times and bytes of finished runs; speed-up is over the first."""
    columns: Columns[Run] = {
        "configuration": lambda run: run.configuration,
        shown(metric): lambda run: _held_out(run, metric),
        "s to finish": lambda run: figure(run.last.wall_s),
        **spread(Run.step_ms),
        **_sent(runs, "MB", "rank", lambda run: (run.last.totals, 1e6)),
        "speed-up": lambda run: figure(runs[0].last.wall_s / run.last.wall_s),
    }
    return TextTable.of("Training", runs, columns)


def splits(runs: Sequence[Run]) -> TextTable:
    """Gradwire's time by encode, wire, decode and wait."""
    columns: Columns[Run] = {"configuration": lambda run: run.configuration}
    return TextTable.of(
        "Milliseconds per step", runs, {**columns, **_split(lambda run: (run.last.totals, run.last.step))}
    )


def timings(timings: Sequence[Timing], sender: str = "rank", others: Columns[Timing] | None = None) -> TextTable:
    """Costs of one step of each configuration, and `others`; `sender` has a link: a rank, or a host of several."""
    columns: Columns[Timing] = {
        "configuration": lambda timing: timing.configuration,
        **spread(lambda timing: timing.step_ms),
        f"times {NOCOMM}": lambda timing: f"{timing.times_nocomm:.2f}",
        **_split(lambda timing: (timing.totals, timing.steps)),
        **_sent(timings, "kB", sender, lambda timing: (timing.totals, 1e3 * timing.steps)),
        **(others or {}),
    }
    return TextTable.of("One step", timings, columns)
