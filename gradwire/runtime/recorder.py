"""Where the time goes: totals always, and every span while somebody traces."""

from collections.abc import Callable

from gradwire.plans import Plan
from gradwire.runtime.clock import Clock
from gradwire.runtime.executor import Mark
from gradwire.runtime.place import BETWEEN
from gradwire.runtime.trace import RecordedSpan, Trace


class Recorder:
    """Of one rank. The thread that trains reports forward passes and gradients, the worker the rest. `doing` says in
    words where the training thread is before a step's first gradient."""

    def __init__(self, mark: Callable[[], Mark], rank: int) -> None:
        self.mark, self._rank = mark, rank
        self._clock = Clock()
        self._trace: Trace | None = None
        self.doing = BETWEEN

    def trace(self, steps: int) -> Trace:
        """Records the next `steps` whole steps."""
        self._trace = Trace(self._rank, steps)
        return self._trace

    def totals(self) -> dict[str, float]:
        """Seconds by lane."""
        return self._clock.totals()

    def so_far(self, lane: str) -> float:
        """Seconds of a lane that are known by now, without waiting for a GPU."""
        return self._clock.so_far(lane)

    def add(
        self, lane: str, start: Mark, group: int = -1, *, label: str = "", end: Mark | None = None, wire_bytes: int = 0
    ) -> Mark:
        """Writes down a span that ends now, unless `end` says when; returns its end."""
        end = self.mark() if end is None else end
        self._clock.add(lane, start, end)
        if trace := self._trace:  # the thread that trains may end it at any time
            trace.add(RecordedSpan(lane, start, end, group, label, wire_bytes))
        return end

    def forward_begins(self, plan: Plan) -> None:
        """A forward pass begins while `plan` is in force."""
        self.doing = "in forward"
        if self._trace:
            self._trace.forward_begins(self.mark(), plan)

    def forward_ends(self) -> None:
        """The forward pass that began ends."""
        self.doing = "between forward and backward"
        if self._trace:
            self._trace.forward_ends(self.mark())

    @property
    def traces(self) -> bool:
        """Whether somebody traces."""
        return self._trace is not None

    def gave(self, slot: str, group: int) -> None:
        """A gradient is ready."""
        if self._trace and not self._trace.gave(slot, group, self.mark()):
            self._trace = None
