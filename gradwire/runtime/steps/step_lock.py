"""The lock that keeps changes of a job's plan and state between the gradients of two steps.

    a step    lasts from its first gradient to the end of the backward pass
    a call    which all ranks make together, changes plan or state, or exchanges something. It waits until the steps
              that were begun are reduced, and none begins meanwhile; inside a backward pass it is refused on all ranks
    give_up   ends a step whose backward pass failed. A note in the store says so to all ranks. Zeros complete its
              groups, so that no rank waits, and count as not finite, so that no rank takes the step

A step and a call exclude each other, whichever threads they are on: each holds one lock. A call first has all ranks
agree that they have begun the same steps, and only then waits for these. The other order would hang: one rank would
wait for a step that another rank cannot begin, for that one waits in a call.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from gradwire.runtime.failures.first_error import FirstError
from gradwire.runtime.steps.gradient_collector import GradientCollector
from gradwire.runtime.steps.step_results import StepResults
from gradwire.torch_private.autograd import in_backward, when_backward_ends
from gradwire.transports import Mesh

T = TypeVar("T")

GONE = "the DDP of this handle was garbage collected: keep a reference to ddp, or attach anew"
"""Why a job has ended although its handle was kept."""


class RunOnAll(Protocol):
    """A function that has all ranks carry out a task together."""

    def __call__(self, task: Callable[[Mesh, torch.device], T], alone: T) -> T:
        """The task's result; `alone` where there is one rank."""
        ...


class StepLock:
    """The lock that a job's steps and calls hold, one at a time. The next one gives up a step whose backward pass
    failed, on all ranks."""

    closed = False
    """The job was closed: no more calls of all ranks."""

    def __init__(self, collector: GradientCollector, results: StepResults, first_error: FirstError) -> None:
        self._collector, self._results, self._first_error = collector, results, first_error
        self._lock = Lock()
        self._given_up = False
        self._backward: weakref.ref[Callable[[], None]] | None = None

    def open_step(self, until_backward_ends: bool = False) -> bool:
        """Opens a step of all groups at its first gradient. With `until_backward_ends` its last group waits for
        `backward_done`. Returns False, and opens none, where a call of another thread has just put a native plan in
        force: the framework reduces this step."""
        self.give_up()
        # no call of all ranks is under way from here on
        with self._lock:
            if self._collector.is_native:
                return False
            self._open(until_backward_ends=until_backward_ends)
            return True

    def reduce(
        self, gradients: Mapping[str, Tensor], groups: Sequence[int] | None = None, times_sent: int | None = None
    ) -> None:
        """Takes a step with these `gradients` by parameter: of all groups, or of some, which were sent `times_sent`
        times before."""
        # a step that failed, first; it ends before the next one begins
        self.give_up()
        with self._lock:
            self._open(groups, times_sent)
            # gradients in the plan's order; the last one of a group has the worker reduce it
            for index, slot in enumerate(self._collector.slots):
                if slot.name in gradients:
                    self._collector.submit(index, gradients[slot.name])
            self._collector.backward_done()

    def give_up(self) -> None:
        """Ends a step that was begun and whose backward pass failed; no rank takes it."""
        self._first_error.raise_error()
        # complete the step, and wait for it outside the lock: the worker's end of a step does not take it
        with self._lock:
            self._give_up()
        if self._given_up:
            self._results.finish()
            self._given_up = False

    def backward_failed(self) -> bool:
        """Whether the backward pass that opened the last step is gone, and did not come to its end."""
        return self._backward is not None and self._backward() is None

    @contextmanager
    def collective_call(
        self, call: str, facts: Mapping[str, object], agree: Callable[[Callable[[], Mapping[str, str]], str], None]
    ) -> Iterator[None]:
        """Holds the lock for a call that all ranks make; inside, they have begun the same steps, which have ended.
        `agree` compares facts. Raises ValueError, on all ranks, where one of them is inside a backward pass, has begun
        other steps, or has other `facts`; on this one, where its job has ended."""
        # from here on no step begins, and no other call comes
        with self._lock:
            self._first_error.raise_error()
            if self.closed:
                raise ValueError(GONE)
            # a step of this rank whose backward pass failed must end, as on the others
            if not self._in_backward:
                self._give_up()
            # all ranks compare how many steps they have begun
            agree(lambda: {**self._moment(call), **{name: str(fact) for name, fact in facts.items()}}, call)
            # only now is it safe to wait for those steps
            self._results.finish()
            yield

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Holds the lock: no step begins, and no call of all ranks comes."""
        self.give_up()
        with self._lock:
            yield

    @contextmanager
    def local_call(self, call: str) -> Iterator[None]:
        """Holds the lock for one rank's call. Raises ValueError, and nothing has changed, inside a backward pass."""
        with self._lock:
            if self._first_error.first is None:
                self._moment(call)
                self._give_up()
            yield

    def detach(self) -> None:
        """The job's last call. Raises ValueError, and nothing has changed, inside a backward pass."""
        with self.local_call("detach()"):
            pass

    def _open(
        self, groups: Sequence[int] | None = None, times_sent: int | None = None, until_backward_ends: bool = False
    ) -> None:
        """Opens a step, and follows the backward pass that it belongs to, if any."""
        self._collector.open(groups, times_sent, until_backward_ends)
        self._backward = None
        if in_backward():
            # autograd calls it at the pass's end, and drops it where the pass fails
            backward = partial(setattr, self, "_backward", None)
            when_backward_ends(backward)
            self._backward = weakref.ref(backward)

    def _give_up(self) -> None:
        """Gives up a step whose backward pass failed, without waiting for its end."""
        if self._collector.unfinished:
            self._collector.give_up()
            self._given_up = True

    @property
    def _in_backward(self) -> bool:
        """Whether gradients of a step are still to come, or this thread is inside any backward pass."""
        return in_backward() or (self._backward is not None and not self.backward_failed())

    def _moment(self, call: str) -> Mapping[str, str]:
        """The moment of a call, which all ranks must share. Raises ValueError inside a backward pass."""
        if self._in_backward:
            raise ValueError(f"{call} inside a backward pass; make this call when backward() has returned")
        return {f"when they call {call}": f"after {self._collector.opened} steps"}
