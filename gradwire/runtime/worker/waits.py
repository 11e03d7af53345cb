"""The time for which a rank has waited for the others."""

from time import monotonic

from torch import Tensor

from gradwire.ops.host import has_come


class Waits:
    """How long the worker has been in one task, or the device in one step. Written by the worker, read by the monitor's
    thread, which must not ask a GPU: that would make a context on the first one, and break a capture of the user's."""

    def __init__(self) -> None:
        self._task = self._step = 0.0
        self._copy: Tensor | None = None

    def task(self, begins: bool) -> None:
        """Notes that the worker begins a task, or is done with it."""
        self._task = monotonic() if begins else 0.0

    def step_begins(self) -> None:
        """Notes that a step's collectives follow; on a GPU the host does not see their end."""
        self._step, self._copy = monotonic(), None

    def step_ends(self, copy: Tensor) -> None:
        """Notes the copy to the host that comes behind the step: once it is there, the step is over."""
        self._copy = copy

    def seconds(self) -> float:
        """How long it has waited until now; 0 where it does not."""
        # on a GPU the step is over when its last word has come to the host
        copy = self._copy
        step = 0.0 if copy is not None and has_come(copy) else self._step
        since = min((moment for moment in (self._task, step) if moment), default=0.0)
        return monotonic() - since if since else 0.0
