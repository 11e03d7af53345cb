"""Rows of a timeline's picture, each of spans that do not overlap."""

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire.schedule.timeline import Span, Timeline

LANES = ("forward", "backward", "encode", "wire", "decode", "wait", "optimizer")
"""From top to bottom: the way of a gradient."""
_TOLERANCE_S = 1e-9


@dataclass(frozen=True)
class TimelineRow:
    """Spans of one lane of one rank, by start; `track` counts the rows of a lane whose spans overlap."""

    rank: int
    """The rank that did it."""
    lane: str
    """One of LANES."""
    track: int
    """Its number among the rows of its lane."""
    spans: list[Span]
    """By their beginning."""


def rows(timeline: Timeline) -> list[TimelineRow]:
    """The rows of all ranks: rank by rank, lane by lane, with as few tracks as the overlaps allow."""
    of: dict[tuple[int, str], list[Span]] = {}
    # each rank's lanes, from top to bottom
    for span in sorted(timeline.spans, key=lambda span: (span.start_s, span.end_s)):
        of.setdefault((span.rank, span.lane), []).append(span)
    ordered = sorted(of, key=lambda place: (place[0], LANES.index(place[1])))
    return [
        TimelineRow(rank, lane, track, spans)
        for rank, lane in ordered
        for track, spans in enumerate(_tracks(of[rank, lane]))
    ]


def _tracks(spans: Iterable[Span]) -> list[list[Span]]:
    """First fit, which needs no more tracks than spans ever overlap."""
    tracks: list[list[Span]] = []
    for span in spans:
        # the first track whose last span has ended
        free = (track for track in tracks if track[-1].end_s <= span.start_s + _TOLERANCE_S)
        track = next(free, None)
        if track is None:
            tracks.append(track := [])
        track.append(span)
    return tracks
