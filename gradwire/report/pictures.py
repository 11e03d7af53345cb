"""Pictures of training runs, in colours that colour-blind readers can tell apart (Okabe and Ito 2008)."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from gradwire.lab.results import Record, Run, shown
from gradwire.report.tables import diverged, figure

COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_MARKERS = "osD^vPX"
_LINES = ("-", "--", ":")
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
}


def look(index: int, **other: Any) -> dict[str, Any]:
    """Colour, marker and dashes of the line of run `index`, but for what is `other`; those of 147 runs differ."""
    turn, colour = divmod(index, len(COLOURS))
    marker = _MARKERS[(index + turn) % len(_MARKERS)]
    return {"color": COLOURS[colour], "marker": marker, "linestyle": _LINES[turn % len(_LINES)]} | other


def names(runs: Sequence[Run]) -> list[str]:
    """For legends."""
    return [f"{run.configuration} (diverged)" if diverged(run) else run.configuration for run in runs]


def keep_in_sight(panel: Axes, runs: Sequence[Run]) -> None:
    """Cuts an axis of losses at twice what training began with, for one run that diverges would flatten all others."""
    top = 2 * min((run.records[0].loss for run in runs if isfinite(run.records[0].loss)), default=0.0)
    lowest, highest = panel.dataLim.intervaly
    if lowest < top < highest:
        panel.set_ylim(lowest - 0.05 * (top - lowest), top)


def curves(runs: Sequence[Run], metric: str, title: str) -> Figure:
    """The held-out metric against steps, seconds and, where anything is sent, megabytes per rank; a run starts at its
    first evaluation."""
    panels: list[tuple[str, Callable[[Record], float]]] = [
        ("steps", lambda record: record.step),
        ("seconds of training", lambda record: record.wall_s),
    ]
    if any(run.last.totals.wire_bytes for run in runs):
        panels.append(("MB sent per rank", lambda record: record.totals.wire_bytes / 1e6))
    with rc_context(STYLE):
        picture = Figure(figsize=(12, 4.6), layout="constrained")
        picture.suptitle(title)
        axes = picture.subplots(1, len(panels), sharey=True)
        for panel, (label, x) in zip(axes, panels, strict=True):
            for index, run in enumerate(runs):
                _draw(panel, run, metric, index, x)
            panel.set_xlabel(label)
            if label != "steps":
                _logarithmic(panel)
        axes[0].set_ylabel(f"{shown(metric)} (nats)" if metric.endswith("loss") else shown(metric))
        if metric.endswith("loss"):
            keep_in_sight(axes[0], runs)
        picture.legend(axes[0].lines, names(runs), loc="outside lower center", ncols=min(4, len(runs)), frameon=False)
    return picture


def costs(runs: Sequence[Run]) -> Figure:
    """What a step costs: milliseconds, with the quartiles, and megabytes sent per rank."""
    with rc_context({**STYLE, "axes.grid.axis": "x"}):
        picture = Figure(figsize=(12, 1.4 + 0.42 * len(runs)), layout="constrained")
        time, size = picture.subplots(1, 2, sharey=True)
        colours = [COLOURS[index % len(COLOURS)] for index in range(len(runs))]
        labels = [run.configuration for run in runs]
        spreads = [run.step_ms() for run in runs]
        medians = [spread.median for spread in spreads]
        whiskers = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
        style = {"ecolor": "#888888", "capsize": 3}
        bars = time.barh(labels, medians, color=colours, height=0.6, xerr=whiskers, error_kw=style)
        time.bar_label(bars, [figure(median) for median in medians], padding=6)
        time.set_xlabel("milliseconds per step (median, quartiles)")
        megabytes = [run.last.totals.wire_bytes / run.last.step / 1e6 for run in runs]
        bars = size.barh(labels, megabytes, color=colours, height=0.6)
        size.bar_label(bars, [figure(sent) for sent in megabytes], padding=6)
        size.set_xlabel("MB sent per rank and step")
        for panel in (time, size):
            panel.margins(x=0.12)
        time.invert_yaxis()
    return picture


def _draw(panel: Axes, run: Run, metric: str, index: int, x: Callable[[Record], float]) -> None:
    evaluated = run.evaluated
    panel.plot(
        [x(record) for record in evaluated],
        [record.held_out[metric] for record in evaluated if record.held_out],
        **look(index),
        markersize=4,
        linewidth=1.6 if index else 3,  # others may lie exactly on the first
    )


def _logarithmic(panel: Axes) -> None:
    panel.set_xscale("log")
    first, last = panel.get_xlim()
    wide = last / first > 300  # labels at 1, 2 and 5 would lie on each other
    panel.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=12))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
