"""Steps that DDP makes by itself, while the plan is native."""

from statistics import median
from time import perf_counter

from gradwire.runtime.runtime import Runtime


class NativeSteps:
    """Counts and times DDP's own steps. A step is over when the next one begins."""

    reduced: bool
    """DDP has made a step that is not counted yet."""

    def __init__(self) -> None:
        self.reduced = False
        self._since = 0.0
        self._seconds: list[float] = []

    def begin(self) -> None:
        """The first of several steps begins."""
        self.reduced, self._since = False, perf_counter()
        self._seconds.clear()

    def count(self, runtime: Runtime) -> None:
        """Counts the step that DDP has made, if any; after the last one, the runtime decides on what follows."""
        if not self.reduced:
            return
        before, self._since = self._since, perf_counter()
        self.reduced = False
        # where so many steps were asked for, their median time decides on the next plan
        left = runtime.native_step_ended()
        if left is None:
            return
        self._seconds.append(self._since - before)
        if left == 0:
            seconds, self._seconds = median(self._seconds), []
            runtime.native_ended(seconds)
