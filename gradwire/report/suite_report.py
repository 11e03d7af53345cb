"""The report of a suite, in one folder: a table with the command of each row, and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradwire.lab.experiments.bench_setup import TimingOptions
from gradwire.lab.experiments.suites import SuiteRow
from gradwire.lab.names import DENSE, NOCOMM
from gradwire.report import page
from gradwire.report.pictures import NARROW, STYLE, draw_spreads, label
from gradwire.report.report_files import write_json, write_picture, write_text
from gradwire.report.text_table import Columns, TextTable, figure, spread, times
from gradwire.report.timing import Timing
from gradwire.report.words import counted, in_words

_NOTE = """Times nocomm: over the same model on as many ranks that do not talk, in turns with the others of the set-up.
Bytes are the mean over the ranks; for plain DDP they are those of its ring all-reduce. Fewer bytes: than plain DDP.
Cut: what differs from the published set-up, to fit this machine. On a GPU DGC, GaussianK, RedSync, SIDCo and
ReusedThreshold select exactly, as TopK does: their rows time one algorithm there."""
_SHOWN = """Milliseconds per step of each configuration, with quartiles, one panel per model and set-up; figures in the
table below."""
_PANELS_PER_LINE = 3


@dataclass(frozen=True)
class Result:
    """The measurement of one row of a suite, beside its set-up's `nocomm`."""

    row: SuiteRow
    """The row of the suite."""
    timing: Timing
    nocomm_ms: float
    """Milliseconds of a step without communication."""
    parameters: int
    """Of the model."""
    command: str
    """A command line that measures this row again."""

    def to_json(self) -> dict[str, Any]:
        measured = {"parameters": self.parameters, "nocomm_ms": self.nocomm_ms, **self.timing.to_json()}
        return {**asdict(self.row.setup), "cut": self.row.note, **measured, "command": self.command}


def results(rows: Sequence[SuiteRow], timings: Sequence[Timing], timed: TimingOptions) -> list[Result]:
    """Results of the timed rows of one set-up, from the timings of its configurations and of `nocomm`."""
    of = {timing.configuration: timing for timing in timings}
    alone = of[NOCOMM].step_ms.median
    return [
        Result(row, of[row.configuration], alone, row.setup.parameters(), row.setup.command(row.configuration, timed))
        for row in rows
        if row.configuration in of
    ]


def table(name: str, results: Sequence[Result], others: Columns[Result] | None = None) -> TextTable:
    """One line for every row; `others` are columns of words."""
    columns: Columns[Result] = {
        "model": lambda each: each.row.setup.model,
        "M parameters": lambda each: figure(each.parameters / 1e6),
        "batch": lambda each: str(each.row.setup.batch),
        "ranks": lambda each: str(each.row.setup.ranks),
        "link": lambda each: each.row.setup.link,
        "configuration": lambda each: each.timing.configuration,
        **spread(lambda each: each.timing.step_ms),
        f"times {NOCOMM}": lambda each: f"{each.timing.times_nocomm:.2f}",
        "kB per rank": lambda each: figure(each.timing.totals.wire_bytes / each.timing.steps / 1e3),
        "fewer bytes": lambda each: times(each.timing.totals.ratio),
        **({"cut": lambda each: each.row.note} if any(each.row.note for each in results) else {}),
    }
    more = others or {}
    return TextTable.of(f"Suite {name}", results, {**columns, **more}, texts=("configuration", "cut", *more))


def picture(name: str, results: Sequence[Result], narrow: bool = False) -> Figure:
    """Milliseconds per step, a panel for each set-up; the dashed line is its `nocomm`, and plain DDP is grey."""
    # a panel for each set-up, several to a line of the picture
    setups = list(dict.fromkeys(result.row.setup for result in results))
    panels = [[result for result in results if result.row.setup == setup] for setup in setups]
    across = 1 if narrow else min(_PANELS_PER_LINE, len(panels))
    lines = [panels[start : start + across] for start in range(0, len(panels), across)]
    heights = [0.9 + (0.5 if narrow else 0.26) * max(len(panel) for panel in line) for line in lines]
    # lines are as high as their longest panel
    with rc_context({**STYLE, "axes.grid.axis": "x", "font.size": 9}):
        drawn = Figure(figsize=(NARROW if narrow else 6 * max(2, across), sum(heights) + 0.4), layout="constrained")
        meanings = "dashed: no communication; grey: plain DDP"
        separator = "\n" if narrow else "; "
        drawn.suptitle(f"Suite {name}: milliseconds per step (median, quartiles){separator}{meanings}")
        axes = drawn.subplots(len(lines), across, squeeze=False, height_ratios=heights)
        for axis, panel, setup in zip(axes.flat, panels, setups, strict=False):
            _bars(axis, panel, narrow)
            axis.set_title(str(setup), fontsize=9)
        for empty in list(axes.flat)[len(panels) :]:
            empty.set_axis_off()
    return drawn


def write(folder: Path, name: str, results: Sequence[Result], facts: Mapping[str, Any]) -> list[Path]:
    """Writes suite.png, report.html and suite.json; returns the first two's paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = picture(name, results)
    write_picture(drawn, folder / "suite.png")
    # the page's table also has the command that measures a row again
    whole = table(name, results, {"command": lambda each: each.command})
    shown = [page.Picture("Step times", _SHOWN, drawn, picture(name, results, narrow=True))]
    report = page.render(
        f"{whole.title}: {counted(len(results), 'row')}", _verdict(results), shown, [(whole, _NOTE)], in_words(facts)
    )
    write_text(folder / "report.html", report)
    write_json(folder / "suite.json", {"suite": name, **facts, "rows": [result.to_json() for result in results]})
    return [folder / "suite.png", folder / "report.html"]


def _verdict(results: Sequence[Result]) -> str:
    """The fastest configuration beside plain DDP, in a sentence."""
    gains: list[tuple[float, Result]] = []
    setups = dict.fromkeys(result.row.setup for result in results)
    # gains over plain DDP, set-up by set-up
    for setup in setups:
        own = {result.timing.configuration: result for result in results if result.row.setup == setup}
        dense = own[DENSE].timing.step_ms.median if DENSE in own else None
        others = [result for name, result in own.items() if name.partition("@")[0] != DENSE]
        gains += [(dense / result.timing.step_ms.median, result) for result in others if dense]
    if not gains:
        return f"{counted(len(results), 'row')} without plain DDP beside any."
    most, best = max(gains, key=lambda gain: gain[0])
    faster = {result.row.setup for gain, result in gains if gain > 1}
    if not faster:
        return f"Nothing is faster than plain DDP in {counted(len(setups), 'set-up')}."
    where = f"{best.timing.configuration} on {best.row.setup}: {times(most)} faster"
    where = f"something is faster than plain DDP, most of all {where}"
    return f"In {len(faster)} of {counted(len(setups), 'set-up')} {where}."


def _bars(axis: Axes, panel: Sequence[Result], narrow: bool) -> None:
    names = [result.timing.configuration for result in panel]
    # grey for reductions without compression
    colours = ["#888888" if name.partition("@")[0] == DENSE else "#0072B2" for name in names]
    draw_spreads(axis, [label(name, narrow) for name in names], [result.timing.step_ms for result in panel], colours)
    axis.axvline(panel[0].nocomm_ms, color="#D55E00", linestyle="--", linewidth=1.4)
    axis.margins(x=0.15)
    axis.invert_yaxis()
