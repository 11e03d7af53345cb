"""Pictures of training runs, in colours that colour-blind readers can tell apart, with a contrast of 3 or more on
white, and on the dark paper of a page, which inverts them."""

from collections.abc import Callable, Sequence
from math import isfinite
from statistics import fmean
from textwrap import fill, wrap
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from gradwire.lab.results import TRAINING_LOSS, Record, Run, Spread, shown
from gradwire.report.text_table import diverged, figure

COLOURS = ("#000000", "#0544A7", "#C98303", "#248056", "#A385A5", "#3E97E8", "#9F2301")
NARROW = 4.4
"""Inches across, for a phone: letters stay readable."""
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
    """Colour, marker and dashes of the line of run `index`, with `other` options; those of 147 runs differ."""
    turn, colour = divmod(index, len(COLOURS))
    marker = _MARKERS[(index + turn) % len(_MARKERS)]
    return {"color": COLOURS[colour], "marker": marker, "linestyle": _LINES[turn % len(_LINES)]} | other


def head(picture: Figure, title: str) -> None:
    """Writes a title above a picture, in lines that are no longer than it is wide."""
    picture.suptitle(fill(title, int(11 * picture.get_figwidth())))


def names(runs: Sequence[Run]) -> list[str]:
    """For legends."""
    return [f"{run.configuration} (diverged)" if diverged(run) else run.configuration for run in runs]


def keep_in_sight(panel: Axes, runs: Sequence[Run]) -> None:
    """Cuts an axis of losses at twice the first loss, since a run that diverges would flatten all others; not where
    the first loss is 0 or negative."""
    # an axis as the first run needs it, if another one leaves it
    top = 2 * min((run.records[0].loss for run in runs if isfinite(run.records[0].loss)), default=0.0)
    lowest, highest = panel.dataLim.intervaly
    if top > 0 and lowest < top < highest:
        panel.set_ylim(lowest - 0.05 * (top - lowest), top)


def sheet(panels: int, width: float, height: float, narrow: bool, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with panels of `width` by `height` inches side by side, or where it is narrow below each other."""
    across = 1 if narrow else panels
    size = (NARROW, panels * height) if narrow else (panels * width, height)
    picture = Figure(figsize=size, layout="constrained")
    return picture, list(picture.subplots(panels // across, across, squeeze=False, **options).flat)


def label(text: str, narrow: bool, width: int = 20) -> str:
    """A name, over several lines of so many letters, or twice as many, where it is longer."""
    return "\n".join(wrap(text, width if narrow else 2 * width))


def legend(picture: Figure, lines: Sequence[Line2D], labels: Sequence[str], narrow: bool) -> None:
    """Below the panels, with as many columns as fit; the picture grows by its height."""
    short = [label(text, narrow, 40) for text in labels]
    longest = max(len(line) for text in short for line in text.split("\n"))
    # inches of a line's sample and of a letter
    fitting = int(picture.get_figwidth() / (0.6 + 0.085 * longest))
    columns = max(1, min(fitting, len(short)))
    picture.set_figheight(picture.get_figheight() + 0.22 * sum(1 + text.count("\n") for text in short) / columns)
    picture.legend(lines, short, loc="outside lower center", ncols=columns, frameon=False)


def curves(runs: Sequence[Run], metric: str, title: str, narrow: bool = False) -> Figure:
    """The held-out metric against steps, seconds and, where anything is sent, megabytes per rank; a run starts at its
    first evaluation."""
    panels: list[tuple[str, Callable[[Record], float]]] = [
        ("steps", lambda record: record.step),
        ("seconds of training", lambda record: record.wall_s),
    ]
    if any(run.last.totals.wire_bytes for run in runs):
        panels.append(("MB sent per rank", lambda record: record.totals.wire_bytes / 1e6))
    with rc_context(STYLE):
        picture, axes = sheet(len(panels), 12 / len(panels), 3.2 if narrow else 4.6, narrow, sharey=True)
        head(picture, "" if narrow else title)
        for panel, (label, x) in zip(axes, panels, strict=True):
            # a line for each run, in every panel
            for index, run in enumerate(runs):
                _draw(panel, run, metric, index, x)
            panel.set_xlabel(label)
            if label == "steps":
                panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            else:
                _logarithmic(panel)
        for panel in axes if narrow else axes[:1]:
            panel.set_ylabel(f"{shown(metric)} (nats)" if metric.endswith("loss") else shown(metric))
        if metric.endswith("loss"):
            keep_in_sight(axes[0], runs)
        legend(picture, named_lines(axes[0]), names(runs), narrow)
    return picture


def costs(runs: Sequence[Run], narrow: bool = False) -> Figure:
    """Costs of a step: milliseconds, with the quartiles, and megabytes sent per rank."""
    with rc_context({**STYLE, "axes.grid.axis": "x"}):
        # two panels with a bar for each run
        picture, (time, size) = sheet(2, 6, 1.4 + (0.6 if narrow else 0.42) * len(runs), narrow, sharey=True)
        colours = [COLOURS[index % len(COLOURS)] for index in range(len(runs))]
        labels = [label(run.configuration, narrow) for run in runs]
        draw_spreads(time, labels, [run.step_ms() for run in runs], colours, whiskers="#888888")
        time.set_xlabel("milliseconds per step (median, quartiles)")
        # bytes of a step
        megabytes = [run.last.totals.wire_bytes / run.last.step / 1e6 for run in runs]
        bars = size.barh(labels, megabytes, color=colours, height=0.6)
        size.bar_label(bars, [figure(sent) for sent in megabytes], padding=6)
        size.set_xlabel("MB sent per rank and step")
        for panel in (time, size):
            panel.margins(x=0.25 if narrow else 0.12)
            panel.locator_params(axis="x", nbins=5 if narrow else 8)
        time.invert_yaxis()
    return picture


def draw_spreads(
    panel: Axes, labels: Sequence[str], spreads: Sequence[Spread], colours: Sequence[str], whiskers: str = "#444444"
) -> None:
    """A bar for each median, with whiskers to the quartiles and the figure behind them."""
    medians = [spread.median for spread in spreads]
    lengths = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
    style = {"ecolor": whiskers, "capsize": 3}
    bars = panel.barh(labels, medians, color=colours, height=0.6, xerr=lengths, error_kw=style)
    panel.bar_label(bars, [figure(median) for median in medians], padding=6)


def make_room_behind_bars(picture: Figure) -> None:
    """Has each panel of horizontal bars end where the longest text behind one does."""
    for text in (text for panel in picture.axes for text in panel.texts):
        text.set_in_layout(False)
    picture.draw_without_rendering()
    for panel in picture.axes:
        # a text keeps its width, however long the axis is; three quarters of a panel at most
        notes = [text for text in panel.texts if isinstance(text, Annotation)]
        widths = [note.get_window_extent().x1 - panel.transData.transform((note.xy[0], 0))[0] for note in notes]
        parts = [min(0.75, width / panel.bbox.width) for width in widths]
        panel.set_xlim(0, max(note.xy[0] / (1 - part) for note, part in zip(notes, parts, strict=True)))


def named_lines(panel: Axes) -> list[Line2D]:
    """The lines of runs, without the pale ones behind them."""
    return [line for line in panel.lines if line.get_alpha() is None]


def _draw(panel: Axes, run: Run, metric: str, index: int, x: Callable[[Record], float]) -> None:
    evaluated = run.evaluated
    # only steps at which the model was evaluated
    places = [x(record) for record in evaluated]
    values = [record.held_out[metric] for record in evaluated if record.held_out]
    wide = 1.6 if index else 3  # others may lie exactly on the first
    if metric == TRAINING_LOSS:
        draw_smoothed(panel, places, values, **look(index), markersize=4, linewidth=wide)
    else:
        panel.plot(places, values, **look(index), markersize=4, linewidth=wide)


def draw_smoothed(panel: Axes, places: Sequence[float], values: Sequence[float], **style: Any) -> None:
    """A line of losses of single batches: their mean over a twentieth of them, and they themselves, pale, behind."""
    reach = len(values) // 40
    around = [values[max(0, at - reach) : at + reach + 1] for at in range(len(values))]
    panel.plot(places, [fmean(window) for window in around], **style)
    if reach:
        panel.plot(places, values, color=style["color"], alpha=0.25, linewidth=0.8, zorder=0.5)


def _logarithmic(panel: Axes) -> None:
    panel.set_xscale("log")
    first, last = panel.get_xlim()
    # labels at 1, 2 and 5 would lie on each other
    wide = last / first > 300
    panel.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=12))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
