"""Costs of groups, their intervals on lanes, and backward's slowdown meanwhile."""

from dataclasses import dataclass, field
from typing import NamedTuple


class TimedGroup(NamedTuple):
    """One group's seconds: when it is ready, in backward alone, and its costs."""

    ready_s: float
    encode_s: float
    wire_s: float
    decode_s: float


class Interval(NamedTuple):
    """A group's time on a lane."""

    lane: str
    start_s: float
    end_s: float
    group: int


@dataclass
class SlowedBackward:
    """Backward, which loses a share `slow` of its speed in the intervals `busy`, while the worker computes."""

    slow: float
    busy: list[tuple[float, float]] = field(default_factory=list)

    def at(self, work_s: float) -> float:
        """The time at which so many seconds of work are done."""
        now, left = 0.0, work_s
        # work is done at full speed between the busy intervals, and slower inside them
        for start, end in self.busy:
            if left <= start - now:
                return now + left
            left -= start - now
            if left < (done := (end - start) * (1 - self.slow)):
                return start + left / (1 - self.slow)
            now, left = end, left - done
        return now + left
