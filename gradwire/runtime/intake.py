"""A step as the thread that trains sees it: gradients come one by one, and complete groups go to the worker.

    open, submit         training thread: slots are counted; the last one of a group posts the group to the worker
    Steps.complete       worker: carries out the script as far as groups are there; it alone starts their collectives
    Runtime._step_ended  worker: the plan of the next step is in force, and only then are futures completed
    Runtime.finish       training thread: behind all that was posted; raises what any thread has left in `error`

The executor's queue orders the two threads.
"""

import weakref
from collections.abc import Sequence
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.runtime.active_plan import ActivePlan
from gradwire.runtime.executor import Executor
from gradwire.runtime.failures import BETWEEN, RankStatus
from gradwire.runtime.machine import Arrivals
from gradwire.runtime.steps import Steps
from gradwire.runtime.trace import Recorder


class Waiting:
    """Futures of buffers, by the step whose means they wait for; for any thread."""

    def __init__(self) -> None:
        self._changing = Lock()
        self._futures: list[tuple[int, Future[Tensor], Tensor]] = []

    def add(self, step: int, future: Future[Tensor], buffer: Tensor) -> None:
        """`future` gets `buffer` when the means of that step are in place."""
        with self._changing:
            self._futures.append((step, future, buffer))

    def serve(self, ended: int, error: BaseException | None) -> None:
        """The steps up to `ended` have ended; with an `error`, no other will. One that is no Exception, such as
        SystemExit, has to be raised by who added the futures, behind the framework's own end of the step."""
        with self._changing:  # only: what is chained to a future runs here, and may come back
            over = [waiting for waiting in self._futures if error or waiting[0] <= ended]
            self._futures = [waiting for waiting in self._futures if not error and waiting[0] > ended]
        for _, future, buffer in over:
            if error is None:
                future.set_result(buffer)
            elif isinstance(error, Exception):
                future.set_exception(error)  # pyright: ignore[reportArgumentType]
            else:  # torch takes no exit for an error; the framework goes on with numbers that are none
                future.set_result(buffer.fill_(torch.nan))


class Intake:
    """Counts what arrives. When the last slot of a group is there, the worker is told where its gradients lie, or only
    that they are where they were.

    `step` counts the steps that were opened, and `groups` are those of the one that is open, whose first group was
    complete at `begun_s`, 0 before; `ended` of them are over. The worker's part of a step begins with its first
    complete group. It may still be at a step before, for a step can be opened once all gradients of the one before are
    there.
    """

    def __init__(self, steps: Steps, plans: ActivePlan, executor: Executor, recorder: Recorder) -> None:
        self.step = self.ended = 0
        self.groups: Sequence[int] = ()
        self._step_s, self._opened = 0.0, float("inf")
        self.arrivals = Arrivals(partial(Intake._complete, weakref.proxy(self)))
        self._steps, self._plans, self._executor, self._recorder = steps, plans, executor, recorder
        self.slots = steps.store.slots
        self._members: list[tuple[int, ...]] = []
        self._tensors: list[Any] = [None] * len(self.slots)
        self.begun_s = 0.0
        self._fixed = False
        self._known: set[int] = set()

    @property
    def unfinished(self) -> bool:
        """Whether some gradients of the open step have come, and others never will: backward failed."""
        return self.arrivals.begun and not self.arrivals.all_there(self.groups)

    def open(self, groups: Sequence[int] | None) -> None:
        """A step of these groups, or of all, begins."""
        if self._members is not self._steps.members:
            self._members = self._steps.members
            self._known.clear()
            self.arrivals.follow(self._members, len(self.slots))
        self.arrivals.begin()
        self.groups = range(len(self._members)) if groups is None else groups
        self.step += 1
        now = monotonic()
        self._step_s, self._opened = max(0.0, now - self._opened), now
        self.begun_s, self._recorder.doing = 0.0, BETWEEN

    def step_s(self) -> float:
        """How long the last step took, from its beginning to the next one's; 0 in the first."""
        return self._step_s

    def place(self) -> RankStatus:
        """Where this rank is; for any thread."""
        if self.step == self.ended:
            return RankStatus(self._steps.number, self._recorder.doing)
        seconds = monotonic() - self.begun_s if self.begun_s else 0.0
        doing = "waiting for the other ranks" if self.arrivals.all_there(self.groups) else "in backward"
        return RankStatus(self._steps.number, doing, seconds)

    def native_step_ended(self) -> None:
        """The framework has reduced a step by itself."""
        self.step += 1
        self.ended, self._recorder.doing = self.step, BETWEEN

    def submit(self, slot: int, gradient: Tensor) -> None:
        """A slot's gradient, which its mean is to replace. Raises ValueError where it is sparse."""
        if gradient.is_sparse:
            raise ValueError(f"parameter {self.slots[slot].name!r} has a sparse gradient; use Embedding(sparse=False)")
        self._tensors[slot] = gradient
        self.arrivals.arrive(slot)

    def submit_absent(self, slot: int, zeros: Tensor) -> None:
        """A slot has no gradient on this rank; the mean replaces the `zeros` all the same."""
        self._tensors[slot] = zeros
        self.arrivals.absent(slot)

    def became_ready(self, slot: int) -> None:
        """Backward has made a slot's gradient, which arrives now or later. Needed while `wants_readiness`."""
        if self._plans.follows_order:
            self._plans.became_ready(slot)
        if self._recorder.traces:
            self._recorder.gave(self.slots[slot].name, self.arrivals.group_of(slot))

    def wants_readiness(self) -> bool:
        """Whether it makes a difference when gradients became ready."""
        return self._plans.follows_order or self._recorder.traces

    def fix_places(self, fixed: bool) -> None:
        """With `fixed`, gradients lie from now on where they were last submitted, and slots just arrive."""
        self._fixed = fixed
        self._known.clear()
        self._executor.post(self._steps.forget_places)

    def abandon(self) -> None:
        """Completes a step that no rank is to take, so that all of them come to its end."""
        self._executor.post(self._steps.lose)
        for slot in self.arrivals.missing(self.groups):
            zeros = torch.zeros(self.slots[slot].numel, dtype=torch.float32, device=self._executor.device)
            self.submit_absent(slot, self.slots[slot].view(zeros))

    def _complete(self, group: int, absent: Sequence[int]) -> None:
        if not self.begun_s:
            self.begun_s = monotonic()
            self._executor.post(partial(self._steps.begin, self.groups, self.step))
        members, tensors = self._members[group], None
        if group not in self._known:
            tensors = [self._tensors[slot] for slot in members]
            if self._fixed:
                self._known.add(group)
        missing = [members.index(slot) for slot in absent]
        given = partial(self._steps.complete, group, tensors, missing, self._fixed, self._recorder.mark())
        self._executor.post(given)
