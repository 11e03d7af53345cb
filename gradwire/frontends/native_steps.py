"""Steps that DDP makes by itself, while the plan is native."""

from functools import partial
from time import perf_counter

from gradwire.runtime.runtime import Runtime
from gradwire.torch_private.autograd import in_backward, when_backward_ends


class NativeSteps:
    """Counts DDP's own steps, each when its backward pass ends, and times them from one forward pass to the next."""

    made: bool
    """DDP has made a step since the last forward pass."""

    def __init__(self) -> None:
        self.made = self._under_way = False
        self._left: int | None = None
        self._since = 0.0
        self._seconds: list[float] = []

    def begin(self) -> None:
        """The first of several steps begins."""
        self.made, self._since = False, perf_counter()
        self._seconds.clear()

    def reduces(self, runtime: Runtime) -> None:
        """DDP reduces this backward pass. Until the next forward pass one call counts: DDP ignores other passes."""
        if self._under_way or self.made:
            return
        self._under_way = True
        if in_backward():
            when_backward_ends(partial(self._ended, runtime))
        else:
            self._ended(runtime)

    def _ended(self, runtime: Runtime) -> None:
        self._under_way, self.made = False, True
        self._left = runtime.native_step_ended()

    def forward_begins(self, runtime: Runtime) -> None:
        """Ends the time of the step that DDP has made, if any; after the last one, the runtime decides on what
        follows."""
        self._under_way = False  # a backward pass that failed made no step
        if not self.made:
            return
        before, self._since = self._since, perf_counter()
        self.made = False
        # where so many steps were asked for, their times decide on the next plan
        if self._left is None:
            return
        self._seconds.append(self._since - before)
        if self._left == 0:
            seconds, self._seconds = self._seconds, []
            runtime.native_ended(seconds)
