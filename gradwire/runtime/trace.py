"""Times of a step: totals by name always, and every span while a trace is recorded."""

from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock

from gradwire.plans import Plan
from gradwire.runtime.worker.events import EPOCH, Event, elapsed_s
from gradwire.runtime.worker.executor import Executor
from gradwire.schedule.timeline import Span, Timeline

BATCH = 64
"""Spans that are read at once: asking a GPU whether one is over takes as long as reading it."""
EVERY = 16
"""On a GPU one of so many steps is timed, once so many have been: a group's six events take Python time."""


@dataclass(slots=True)
class TimedStep:
    """A step whose groups are timed."""

    stands_for: int = 1
    """Itself, and the steps behind it that are not timed."""


class Clock:
    """Total seconds by name, for any thread. A timed step's seconds count once for each step that it stands for. On a
    GPU a span lies between two events and is read later."""

    def __init__(self) -> None:
        # spans that a GPU may not have come to yet, the oldest first
        self._open: deque[tuple[str, Event, Event, TimedStep | None]] = deque()
        # seconds that were read: of older steps, times what they stand for; of the newest, which may stand for more
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._newest: defaultdict[str, float] = defaultdict(float)
        self._step = TimedStep()
        self._reading = Lock()

    def add(self, name: str, start: Event, end: Event, step: TimedStep | None = None) -> None:
        """Adds the span from `start` to `end` to `name`. `step` is the timed step that it belongs to, in the order of
        steps; None for a span that is timed in every step."""
        with self._reading:
            self._open.append((name, start, end, step))
            # waits for nothing
            if len(self._open) >= BATCH and self._open[BATCH - 1][2].query():
                for _ in range(BATCH):
                    self._close()

    def so_far(self, name: str) -> float:
        """Seconds of a name's spans that are known to be over, without waiting for a GPU."""
        with self._reading:
            while self._open and self._open[0][2].query():
                self._close()
            return self._total(name)

    def totals(self) -> dict[str, float]:
        """Seconds by name; waits for spans that are still open on a GPU."""
        with self._reading:
            while self._open:
                self._close()
            return {name: self._total(name) for name in {**self._totals, **self._newest}}

    def _total(self, name: str) -> float:
        return self._totals[name] + self._step.stands_for * self._newest[name]

    def _close(self) -> None:
        name, start, end, step = self._open.popleft()
        if step and step is not self._step:
            # what the one before stands for is final
            for each in self._newest:
                self._totals[each] = self._total(each)
            self._newest.clear()
            self._step = step
        (self._newest if step else self._totals)[name] += elapsed_s(start, end)


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """A span as it is recorded; on CUDA its moments are read later."""

    lane: str
    start: Event
    end: Event
    group: int = -1
    """The plan's group; -1 where it is about none."""
    label: str = ""
    """By default its group's compressor."""
    wire_bytes: int = 0
    slot: str | None = None
    """The tensor that it is about; None for all of the group's."""


class Trace:
    """A record of `steps` steps of rank `rank`, each from its first forward pass to the next step's.

    The thread that trains adds forward passes and gradients, the worker the rest. Backward is cut at the moments when
    gradients became ready. All that follows the wait for the means, until the next step begins, is on the lane
    "optimizer". Steps that the framework reduces by itself are no part of it.
    """

    def __init__(self, rank: int, steps: int) -> None:
        self.rank, self.steps = rank, steps
        self._begins: list[tuple[Event, Plan]] = []
        self._exchanged = 0  # those of them that are not of a native plan
        self._spans: list[RecordedSpan] = []
        self._had_gradient = True
        self._last: Event = EPOCH

    def forward_begins(self, mark: Event, plan: Plan) -> None:
        """A forward pass begins while `plan` is in force; the first one after a backward pass begins a step."""
        # the first forward pass after a gradient begins a step; another one, without backward, is part of it
        if self._had_gradient or (self._is_native and not plan.native):
            self._begins.append((mark, plan))
            self._exchanged += not plan.native
            self._had_gradient = False
        elif plan.native:
            # native steps until the next exchanged one are one time; a step that began without gradients is part of it
            self.follow(plan)
        else:
            self.add(RecordedSpan("backward", self._last, mark, label="backward that only accumulates"))
        self._last = mark

    @property
    def _is_native(self) -> bool:
        return bool(self._begins) and self._begins[-1][1].native

    def follow(self, plan: Plan) -> None:
        """The plan of the step that began last is this one: it may change between forward and backward."""
        if self._begins:
            self._exchanged += self._is_native - plan.native
            self._begins[-1] = self._begins[-1][0], plan

    def forward_ends(self, mark: Event) -> None:
        """The forward pass that began last ends."""
        if self._begins and not self._had_gradient and not self._is_native:
            self.add(RecordedSpan("forward", self._last, mark, label="forward"))
            self._last = mark

    def gradient_ready(self, slot: str, group: int, mark: Event) -> bool:
        """A gradient is ready. Returns whether there is more to record."""
        if self._begins:
            self.add(RecordedSpan("backward", self._last, mark, group, slot, slot=slot))
            self._last, self._had_gradient = mark, True
        return self._exchanged <= self.steps

    def add(self, span: RecordedSpan) -> None:
        """Adds any other span; for any thread."""
        self._spans.append(span)

    def timelines(self) -> list[Timeline]:
        """The complete steps, each from its own begin on. Waits for the GPU. Raises ValueError while there are none."""
        steps = [(begin, end) for begin, end in pairwise(self._begins) if not begin[1].native][: self.steps]
        if not steps:
            raise ValueError("no traced step has ended; a step ends when the next forward pass begins: train one more")
        return [self._timeline(start, end, plan) for (start, plan), (end, _) in steps]

    def _timeline(self, start: Event, end: Event, plan: Plan) -> Timeline:
        step_s = elapsed_s(start, end)
        # seconds since the step's beginning
        placed = [(elapsed_s(start, taken.start), elapsed_s(start, taken.end), taken) for taken in list(self._spans)]
        # the spans that begin in this step
        spans = [
            self._span(taken, from_s, min(to_s, step_s), plan) for from_s, to_s, taken in placed if 0 <= from_s < step_s
        ]
        # what follows the wait is the optimizer's time
        waited_s = max((span.end_s for span in spans if span.lane == "wait"), default=step_s)
        rest = Span("optimizer", waited_s, step_s, "optimizer, and all else until the next step", -1, self.rank)
        return Timeline((*sorted(spans, key=lambda span: span.start_s), rest))

    def _span(self, taken: RecordedSpan, start_s: float, end_s: float, plan: Plan) -> Span:
        group = plan.groups[taken.group] if taken.group >= 0 else None
        label = taken.label or (repr(group.compressor) if group else taken.lane)
        slots = (taken.slot,) if taken.slot else group.slots if group else ()
        return Span(taken.lane, start_s, end_s, label, taken.group, self.rank, taken.wire_bytes, slots)


class Recorder:
    """A rank's totals, and its traces while there are some, such as a user's and a controller's. The thread that trains
    adds forward passes and gradients, the worker the rest. On a GPU the groups of one step in EVERY are timed, and
    stand for those of the steps behind it."""

    def __init__(self, executor: Executor, rank: int) -> None:
        self.record_event = executor.record_event
        self._rank = rank
        self._every = 1 if executor.is_immediate else EVERY
        self._clock = Clock()
        self._traces: list[Trace] = []
        # steps so far; whether this one is timed; and the last one that is
        self._steps = 0
        self._is_timed = True
        self._step = TimedStep()

    def step_begins(self, is_timed: bool) -> None:
        """Begins a step, whose groups are timed if `is_timed` asks for it, or if it is one in EVERY. On the worker."""
        number, self._steps = self._steps, self._steps + 1
        self._is_timed = is_timed or self.traces or number < self._every or number % self._every == 0
        if self._is_timed:
            self._step = TimedStep()
        else:
            self._step.stands_for += 1

    def trace(self, steps: int) -> Trace:
        """Records the next `steps` whole steps, beside what is being recorded already."""
        self._traces.append(trace := Trace(self._rank, steps))
        return trace

    def totals(self) -> dict[str, float]:
        """Seconds by lane: of groups as if those of all steps so far were timed. They never fall, so that any two
        readings may be compared."""
        return self._clock.totals()

    def so_far(self, lane: str) -> float:
        """Seconds of a lane that are known to be over, without waiting for a GPU."""
        return self._clock.so_far(lane)

    def waited(self, start: Event) -> None:
        """Adds the time from `start` until now for which training waits for the means."""
        self._add("wait", start, None)

    def now(self) -> Event:
        """Where a group's span begins, if this step is timed."""
        return self.record_event() if self._is_timed else EPOCH

    def add(self, lane: str, start: Event, group: int, label: str = "", wire_bytes: int = 0) -> Event:
        """Adds a group's span that ends now, if this step is timed; returns its end."""
        return self._add(lane, start, self._step, group, label, wire_bytes) if self._is_timed else EPOCH

    def _add(
        self, lane: str, start: Event, step: TimedStep | None, group: int = -1, label: str = "", wire_bytes: int = 0
    ) -> Event:
        end = self.record_event()
        self._clock.add(lane, start, end, step)
        for trace in [*self._traces]:  # the thread that trains may end one at any time
            trace.add(RecordedSpan(lane, start, end, group, label, wire_bytes))
        return end

    def forward_begins(self, plan: Plan) -> None:
        """A forward pass begins while `plan` is in force."""
        for trace in [*self._traces]:
            trace.forward_begins(self.record_event(), plan)

    def follow(self, plan: Plan) -> None:
        """The step under way takes this plan."""
        for trace in [*self._traces]:
            trace.follow(plan)

    def forward_ends(self) -> None:
        """The forward pass that began ends."""
        for trace in [*self._traces]:
            trace.forward_ends(self.record_event())

    @property
    def traces(self) -> bool:
        """Whether a trace is being recorded."""
        return bool(self._traces)

    def gradient_ready(self, slot: str, group: int) -> None:
        """A gradient is ready."""
        for trace in [*self._traces]:
            if not trace.gradient_ready(slot, group, self.record_event()):
                # the trace is complete
                self._traces.remove(trace)
