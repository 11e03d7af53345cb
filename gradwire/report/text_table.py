"""Tables of figures as plain text, for the terminal and the page."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import floor, isfinite, log10

from gradwire.lab.names import NOCOMM
from gradwire.lab.results import Run, Spread, Totals, shown
from gradwire.report.timing import Timing

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


def _spread(spread: Spread) -> list[str]:
    return [figure(spread.median), f"{figure(spread.low)} to {figure(spread.high)}"]


def _split_ms(totals: Totals, steps: int) -> list[str]:
    """Not known without Gradwire, where all are 0."""
    seconds = (totals.encode_s, totals.wire_s, totals.decode_s, totals.wait_s)
    return [figure(1e3 * part / steps) if any(seconds) else "-" for part in seconds]


def _sent(totals: Totals, unit: float) -> list[str]:
    counts = [totals.wire_bytes, totals.interface_bytes]
    return [figure(count / unit) for count in counts if count is not None]


def _sent_columns(totals: Totals, unit: str, sender: str = "rank") -> list[str]:
    """Of all ranks' interfaces there are counts on the emulated network alone."""
    return [f"{unit} per {sender}", *([f"{unit} at the interface"] if totals.interface_bytes is not None else [])]


def _held_out(run: Run, metric: str) -> str:
    if diverged(run):
        return "diverged"
    return score(run.last.held_out[metric]) if run.last.held_out else "-"


def training(runs: Sequence[Run], metric: str) -> TextTable:
    """Held-out figures, times and bytes of finished runs; speed-up is over the first."""
    first = runs[0].last
    columns = ["configuration", shown(metric), "s to finish", "ms per step", "quartiles, ms"]
    columns += [*_sent_columns(first.totals, "MB"), "fewer bytes", "speed-up"]
    rows = []
    for run in runs:
        last = run.last
        sent = [*_sent(last.totals, 1e6), times(last.totals.ratio)]
        # times, then bytes, then the speed-up over the first
        cost = [figure(last.wall_s), *_spread(run.step_ms()), *sent, figure(first.wall_s / last.wall_s)]
        rows.append([run.configuration, _held_out(run, metric), *cost])
    return TextTable("Training", columns, rows)


def splits(runs: Sequence[Run]) -> TextTable:
    """Gradwire's time by encode, wire, decode and wait."""
    rows = [[run.configuration, *_split_ms(run.last.totals, run.last.step)] for run in runs]
    return TextTable("Milliseconds per step", ["configuration", *_SPLIT], rows)


def timings(timings: Sequence[Timing], sender: str = "rank") -> TextTable:
    """Costs of one step of each configuration; `sender` has a link: a rank, or a host of several."""
    columns = ["configuration", "ms per step", "quartiles, ms", f"times {NOCOMM}", *_SPLIT]
    columns += [*_sent_columns(timings[0].totals, "kB", sender), "fewer bytes"]
    rows = []
    for timing in timings:
        # times of a step, and its bytes
        time = [*_spread(timing.step_ms), f"{timing.times_nocomm:.2f}"]
        time += _split_ms(timing.totals, timing.steps)
        sent = [*_sent(timing.totals, 1e3 * timing.steps), times(timing.totals.ratio)]
        rows.append([timing.configuration, *time, *sent])
    return TextTable("One step", columns, rows)


def with_column(table: TextTable, heading: str, cells: Sequence[str]) -> TextTable:
    """The table with one more column of numbers."""
    rows = [[*row, cell] for row, cell in zip(table.rows, cells, strict=True)]
    return replace(table, columns=[*table.columns, heading], rows=rows)
