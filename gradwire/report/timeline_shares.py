"""Shares of a step's time: compute, and the parts of communication and codecs that are not hidden behind it."""

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire.schedule.timeline import Span, Timeline

COMPUTE = ("forward", "backward", "optimizer")

_Parts = list[tuple[float, float]]
"""Apart and in order."""


@dataclass(frozen=True)
class Shares:
    """One rank's step of `step_s` seconds = `compute_s` + `wire_exposed_s` + `codec_exposed_s` + `idle_s`.

    `busy_s` of a lane counts overlapping spans once. Where nothing computes, an instant belongs to the wire if
    anything is on it, else to encoding or decoding, else it is idle.
    """

    step_s: float
    """Of the whole step."""
    busy_s: dict[str, float]
    """By lane."""
    compute_s: float
    """In forward, backward or optimizer."""
    codec_s: float
    """Of encoding and decoding, hidden or not."""
    wire_exposed_s: float
    """On the wire while nothing computes."""
    codec_exposed_s: float
    """Encoding or decoding while nothing computes or is on the wire."""
    idle_s: float
    """With nothing under way on this rank."""

    @property
    def wire_s(self) -> float:
        return self.busy_s.get("wire", 0.0)

    @property
    def wire_hidden_s(self) -> float:
        return self.wire_s - self.wire_exposed_s

    @property
    def codec_hidden_s(self) -> float:
        """Encoding and decoding behind compute or behind the wire."""
        return self.codec_s - self.codec_exposed_s

    @classmethod
    def of(cls, timeline: Timeline) -> "Shares":
        """The shares of the rank that ends last, for it is the one that the others wait for."""
        spans = of_slowest_rank(timeline)
        # what is left of the step without compute, then without the wire, then without codecs
        computing, wire = _union(spans, COMPUTE), _union(spans, ("wire",))
        codec = _union(spans, ("encode", "decode"))
        alone = _minus([(0.0, timeline.step_s)], computing)
        off_wire = _minus(alone, wire)
        idle = _minus(off_wire, codec)
        return cls(
            step_s=timeline.step_s,
            busy_s={lane: _length(_union(spans, (lane,))) for lane in dict.fromkeys(span.lane for span in spans)},
            compute_s=timeline.step_s - _length(alone),
            codec_s=_length(codec),
            wire_exposed_s=_length(alone) - _length(off_wire),
            codec_exposed_s=_length(off_wire) - _length(idle),
            idle_s=_length(idle),
        )


def of_slowest_rank(timeline: Timeline) -> list[Span]:
    """The spans of the rank that ends last; of the first such rank."""
    ends: dict[int, float] = {}
    for span in timeline.spans:
        ends[span.rank] = max(span.end_s, ends.get(span.rank, 0.0))
    slowest = min(ends, key=lambda rank: (-ends[rank], rank))
    return [span for span in timeline.spans if span.rank == slowest]


def _union(spans: Iterable[Span], lanes: tuple[str, ...]) -> _Parts:
    """The time in which any of these lanes is busy."""
    joined: _Parts = []
    for start_s, end_s in sorted((span.start_s, span.end_s) for span in spans if span.lane in lanes):
        if joined and start_s <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_s))
        else:
            joined.append((start_s, end_s))
    return joined


def _minus(whole: _Parts, taken: _Parts) -> _Parts:
    """The parts of `whole` that are not `taken`."""
    left: _Parts = []
    for start_s, end_s in whole:
        # both are in order of time: what is left of it begins after each taken part
        for from_s, to_s in taken:
            if from_s < end_s and to_s > start_s:
                left.append((start_s, from_s))
                start_s = to_s
        left.append((start_s, end_s))
    return [(start_s, end_s) for start_s, end_s in left if end_s > start_s]


def _length(parts: _Parts) -> float:
    return sum(end_s - start_s for start_s, end_s in parts)
