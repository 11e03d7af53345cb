"""Timelines as a picture: a panel for each, a row for each lane of the first rank."""

from collections.abc import Mapping

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradwire.report.pictures import COLOURS, STYLE, head
from gradwire.report.timeline_rows import LANES, TimelineRow, rows
from gradwire.schedule.timeline import Timeline


def picture(title: str, timelines: Mapping[str, Timeline]) -> Figure:
    """Named timelines ("predicted", "measured") below each other, on one scale of time."""
    laid = {name: [row for row in rows(each) if row.rank == 0] for name, each in timelines.items()}
    heights = [len(own) for own in laid.values()]
    with rc_context(STYLE):
        drawn = Figure(figsize=(8, 1.6 + 0.24 * sum(heights)), layout="constrained")
        panels = drawn.subplots(len(laid), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for panel, (name, own) in zip(panels, laid.items(), strict=True):
            _draw(panel, own)
            panel.set_title(f"{name}: {1e3 * timelines[name].step_s:.1f} ms")
        panels[-1].set_xlabel("milliseconds of a step")
        head(drawn, title)
    return drawn


def _draw(panel: Axes, own: list[TimelineRow]) -> None:
    """A row of bars for each lane, the first lane on top."""
    for y, row in enumerate(own):
        spans = [(1e3 * span.start_s, 1e3 * (span.end_s - span.start_s)) for span in row.spans]
        colour = COLOURS[LANES.index(row.lane)]
        panel.broken_barh(spans, (y - 0.4, 0.8), facecolor=colour, edgecolor="white", linewidth=0.3)
    panel.set_yticks(range(len(own)), [row.lane if not row.track else "" for row in own])
    panel.set_ylim(len(own) - 0.5, -0.5)
    panel.grid(axis="y", visible=False)
