"""Steps that DDP makes by itself, while the plan is native.

    begin            the plan has become native
    reduces          DDP reduces this backward pass; at its end `Runtime.native_step_ended` counts the step
    forward_begins   ends its time; after the last step that a controller asked for, `Runtime.native_ended` has the
                     controller decide, and puts in force what follows

A hook cannot be taken from DDP again, and with one DDP needs one pass more to divide. So when the plan becomes native,
DDP gets a new reducer without a hook, as when it is unpickled, and later one with it. That is done before a forward
pass; until one comes, the hook reduces as DDP would.
"""

from functools import partial
from itertools import pairwise

from gradwire.runtime.runtime import Runtime
from gradwire.runtime.worker.events import Event, elapsed_s
from gradwire.torch_private.autograd import in_backward, when_backward_ends

NO_JOIN = (
    "a native plan counts DDP's steps, and under DDP.join() ranks take different numbers of them; name a compressor, "
    "such as gw.FP32()"
)
"""Why DDP.join() is refused while the plan is native."""


class NativeSteps:
    """Counts DDP's own steps, each when its backward pass ends, and times them from one forward pass to the next, by
    the device's clock: nothing in them need wait for a GPU."""

    made: bool
    """DDP has made a step since the last forward pass."""

    def __init__(self) -> None:
        self.made = self._under_way = False
        self._left: int | None = None
        self._begins: list[Event] = []  # of steps that were asked for, and of the one under way

    def begin(self, runtime: Runtime) -> None:
        """The first of several steps begins."""
        self.made, self._begins = False, [runtime.record_event()]

    def reduces(self, runtime: Runtime) -> None:
        """Notes that DDP reduces this backward pass. Further calls before the next forward pass do nothing, for DDP
        reduces one pass alone."""
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
        self.made = False
        now, begins = runtime.record_event(), self._begins
        # where so many steps were asked for, their times decide on the next plan
        self._begins = [*begins, now] if (self._left or 0) > 0 else [now]
        if self._left == 0:
            # training waits for the decision in any case
            runtime.native_ended([elapsed_s(*each) for each in pairwise([*begins, now])])
