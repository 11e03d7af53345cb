"""Step time against the time that messages take: measured on one played cluster, read for others."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from gradwire.transports.played import SentCollective
from gradwire.wire import depth


@dataclass(frozen=True)
class Carried:
    """A collective of a mean step."""

    sent: SentCollective
    per_host: int
    """How many ranks of a host take part."""
    count: float
    """How often it is sent in a step."""


@dataclass(frozen=True)
class StepCurve:
    """Median seconds of a step of one configuration, against the seconds for which its messages keep a card busy.

    It is linear between measured points; beyond the last one each second on the card makes the step one second longer.
    The time to decode an all-gather is taken as proportional to the number of payloads. With more hosts than were
    played the difference is added to the step; with fewer it is subtracted, though part of it may have been hidden:
    the result can be shorter than a step without messages, below which callers do not go.
    """

    busy_s: tuple[float, ...]
    """Ascending, from 0."""
    step_s: tuple[float, ...]
    carried: tuple[Carried, ...]
    hosts: int
    """That were played."""
    decode_s: float
    """Seconds of a step in which payloads are decoded."""
    elsewhere: bool = True
    """Whether it holds for other numbers of hosts: not where a user's own communicator sends."""

    def at(self, hosts: int, latency_s: float, bytes_per_s: float) -> float:
        """The seconds of a step with so many hosts, whose links are these."""
        busy_s = seconds(self._carried_among(hosts), hosts, latency_s, bytes_per_s)
        # steps never get shorter, whatever a measurement says
        rising = np.maximum.accumulate(self.step_s)
        step_s = float(np.interp(busy_s, self.busy_s, rising)) + max(0.0, busy_s - self.busy_s[-1])
        # nor are they shorter than their messages; then more payloads are decoded, or fewer
        gathers = any(each.sent.kind == "Gather" for each in self.carried)
        return max(step_s, busy_s) + gathers * self.decode_s * (hosts / self.hosts - 1)

    def later(self, more_s: float) -> Self:
        """The curve of steps that compute for so much longer."""
        return replace(self, step_s=tuple(each + more_s for each in self.step_s))

    def _carried_among(self, hosts: int) -> tuple[Carried, ...]:
        """The collectives of a step among so many hosts: messages up a tree grow with its depth."""
        deeper = depth(hosts) / depth(self.hosts) if self.hosts > 1 else 1.0
        return tuple(
            replace(each, count=deeper * each.count) if each.sent.kind == "SendReceive" else each
            for each in self.carried
        )

    def to_line(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> Self:
        carried = (Carried(SentCollective(**each["sent"]), each["per_host"], each["count"]) for each in line["carried"])
        points = {name: tuple(line[name]) for name in ("busy_s", "step_s")}
        rest = {name: line[name] for name in ("hosts", "decode_s", "elsewhere")}
        return cls(**points, carried=tuple(carried), **rest)


def seconds(carried: tuple[Carried, ...], hosts: int, latency_s: float, bytes_per_s: float) -> float:
    """For how long a step's messages keep a card busy, among so many hosts."""
    return sum(
        each.count * min(way.seconds(latency_s, bytes_per_s) for way in each.sent.ways(hosts * each.per_host, hosts))
        for each in carried
    )
