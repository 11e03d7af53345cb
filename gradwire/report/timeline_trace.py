"""Timelines as Trace Event Format JSON, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format", Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gradwire.report.timeline_rows import LANES, TimelineRow, rows
from gradwire.schedule.timeline import Span, Timeline

_TRACKS = 64
"""More than a lane ever has; keeps the tids of lanes apart."""


def trace_events(timelines: Mapping[str, Timeline]) -> str:
    """JSON text. Each rank of each named timeline is a process, each row a thread, each span a complete event;
    times are in microseconds from the step's start."""
    events: list[dict[str, Any]] = []
    pid = 0
    for name, timeline in timelines.items():
        # the format knows processes and threads: ranks and their rows
        laid = rows(timeline)
        for rank in sorted({row.rank for row in laid}):
            pid += 1
            events += _process(pid, f"{name}, rank {rank}")
            for row in laid:
                if row.rank == rank:
                    events += _thread(pid, row)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _process(pid: int, name: str) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", pid, 0, {"name": name})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})


def _thread(pid: int, row: TimelineRow) -> Iterator[dict[str, Any]]:
    tid = 1 + LANES.index(row.lane) * _TRACKS + row.track
    name = f"{row.lane} {row.track + 1}" if row.track else row.lane
    yield _metadata("thread_name", pid, tid, {"name": name})
    yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})
    for span in row.spans:
        yield _complete(span, pid, tid)


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _complete(span: Span, pid: int, tid: int) -> dict[str, Any]:
    start_us, end_us = (round(1e6 * seconds, 3) for seconds in (span.start_s, span.end_s))
    args: dict[str, Any] = {"wire_bytes": span.wire_bytes} if span.wire_bytes else {}
    args |= {"group": span.group} if span.group >= 0 else {}
    args |= {"slots": list(span.slots)} if span.slots else {}
    timing = {"ts": start_us, "dur": round(end_us - start_us, 3)}
    return {"name": span.label, "cat": span.lane, "ph": "X", "pid": pid, "tid": tid, "args": args} | timing
