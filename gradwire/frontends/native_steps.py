"""Steps that DDP reduces by itself."""

from statistics import median
from time import perf_counter

from gradwire.runtime.runtime import Runtime


class NativeSteps:
    """Counts and times them. Whether one is over is known when the next begins: `reduced` says that its gradients have
    come."""

    def __init__(self) -> None:
        self.reduced = False
        self._since = 0.0
        self._seconds: list[float] = []

    def begin(self) -> None:
        """DDP reduces by itself from now on."""
        self.reduced, self._since = False, perf_counter()
        self._seconds.clear()

    def count(self, runtime: Runtime) -> None:
        """A forward pass begins: counts the step before it, if DDP made one. After as many as it was to make, what
        follows is decided."""
        if not self.reduced:
            return
        now = perf_counter()
        self._seconds.append(now - self._since)
        self._since, self.reduced = now, False
        runtime.native_step_ended()
        if runtime.native_steps == 0:
            seconds, self._seconds = median(self._seconds), []
            runtime.native_ended(seconds)
