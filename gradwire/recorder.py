"""Where the time goes: totals always, and every span while somebody traces."""

import torch

from gradwire.clock import Clock, Mark
from gradwire.plan import Plan
from gradwire.trace import Taken, Trace


class Recorder:
    """Of one rank. The thread that trains tells of forward passes and gradients, the engine's of the rest."""

    def __init__(self, device: torch.device, rank: int) -> None:
        self._clock, self._rank = Clock(device), rank
        self._trace: Trace | None = None

    def trace(self, steps: int) -> Trace:
        """Records the next `steps` whole steps."""
        self._trace = Trace(self._rank, steps)
        return self._trace

    def mark(self) -> Mark:
        """Now."""
        return self._clock.mark()

    def totals(self) -> dict[str, float]:
        """Seconds by lane."""
        return self._clock.totals()

    def add(
        self, lane: str, start: Mark, group: int = -1, *, label: str = "", end: Mark | None = None, wire_bytes: int = 0
    ) -> Mark:
        """Writes down a span that ends now, unless `end` says when; returns its end."""
        end = self._clock.mark() if end is None else end
        self._clock.add(lane, start, end)
        if trace := self._trace:  # the thread that trains may end it at any time
            trace.add(Taken(lane, start, end, group, label, wire_bytes))
        return end

    def forward_begins(self, plan: Plan) -> None:
        """A forward pass begins while `plan` is in force."""
        if self._trace:
            self._trace.forward_begins(self._clock.mark(), plan)

    def forward_ends(self) -> None:
        """The forward pass that began ends."""
        if self._trace:
            self._trace.forward_ends(self._clock.mark())

    def gave(self, slot: str, group: int) -> None:
        """A gradient is ready."""
        if self._trace and not self._trace.gave(slot, group, self._clock.mark()):
            self._trace = None
