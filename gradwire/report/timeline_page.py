"""Timelines under each other as one HTML file that needs nothing else, not even a network."""

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.report.page import filled
from gradwire.report.text_table import TextTable
from gradwire.report.timeline_rows import LANES, TimelineRow, rows
from gradwire.schedule.timeline import Timeline


def render(
    title: str, timelines: Mapping[str, Timeline], tables: Sequence[tuple[TextTable, str]] = (), verdict: str = ""
) -> str:
    """The page's text: the verdict, named timelines ("predicted", "measured") on one scale of time, each rank's lanes
    below each other, then tables with a note each."""
    # the scale of time is that of all timelines together
    steps_s = {name: timeline.step_s for name, timeline in timelines.items()}
    lanes = [lane for lane in LANES if any(span.lane == lane for t in timelines.values() for span in t.spans)]
    parts = {"verdict": verdict, "steps": _in_words(steps_s), "lanes": lanes, "data": _data(timelines)}
    return filled("timeline.html", title=title, tables=tables, **parts)


def _in_words(steps_s: Mapping[str, float]) -> dict[str, str]:
    """Each step's milliseconds; from the second on, how far it is from the first."""
    (first, reference_s), *others = steps_s.items()
    words = {first: f"{1e3 * reference_s:.1f} ms"}
    for name, step_s in others:
        percent = 100 * (step_s / reference_s - 1)
        words[name] = f"{1e3 * step_s:.1f} ms, {abs(percent):.1f} % {'more' if percent >= 0 else 'less'} than {first}"
    return words


def _data(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """Input of the page's script; a tensor's name is written once and meant by its index."""
    index: dict[str, int] = {}
    panels = [
        {"name": name, "step_s": timeline.step_s, "rows": [_row(row, index) for row in rows(timeline)]}
        for name, timeline in timelines.items()
    ]
    return {"panels": panels, "slots": list(index)}


def _row(row: TimelineRow, index: dict[str, int]) -> dict[str, Any]:
    # arrays rather than objects, and slots by number: pages of many steps stay small
    spans = [
        [
            round(span.start_s, 7),
            round(span.end_s, 7),
            span.label,
            span.group,
            span.wire_bytes,
            [index.setdefault(slot, len(index)) for slot in span.slots],
        ]
        for span in row.spans
    ]
    return {"rank": row.rank, "lane": row.lane, "track": row.track, "spans": spans}
