"""When a job's plan and state may change: between the gradients of two steps.

    a step    its gradients come from its first one to the end of the backward pass, or are all there at once
    a call    that changes the plan or the state, or has ranks talk, all ranks make together: it waits until gradients
              are reduced, and no step begins meanwhile. Inside a backward pass it is refused, on all ranks

Either takes a turn, and turns follow each other, whichever threads they are on. Nobody waits for another rank's step
during a turn, for there a call may have the turn and wait for this rank; but after all ranks have agreed that they have
begun the same steps.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from gradwire.runtime.intake import Intake
from gradwire.torch_private.autograd import in_backward, when_backward_ends
from gradwire.transports import Mesh

T = TypeVar("T")


class Together(Protocol):
    """Has all ranks carry out a task together."""

    def __call__(self, task: Callable[[Mesh, torch.device], T], alone: T) -> T:
        """The task's result; `alone` where there is one rank."""
        ...


class Job(Protocol):
    """The runtime that reduces."""

    error: BaseException | None

    def raise_error(self) -> None:
        """Raises what went wrong, if anything did."""
        ...

    def finish(self) -> None:
        """Returns when all steps that were begun have ended."""
        ...


class _Backward:
    """A backward pass. Autograd holds this until the pass has ended, and lets go of it where the pass fails."""

    over = False

    def __call__(self) -> None:
        self.over = True


class Turns:
    """The turns of one job. A step whose backward pass failed is given up by the next turn, as it is on all ranks."""

    def __init__(self, job: Job, intake: Intake) -> None:
        self._job, self._intake = job, intake
        self._one = Lock()
        self._lost = False
        self._backward: weakref.ref[_Backward] | None = None

    def open_step(self, groups: Sequence[int] | None = None) -> None:
        """A step of all groups or of some begins with its first gradient."""
        self.give_up()
        with self._one:
            self._open(groups)

    def reduce(self, gradients: Mapping[str, Tensor], groups: Sequence[int] | None = None) -> None:
        """A step of all groups or of some, whose gradients are all there, by parameter."""
        self.give_up()
        with self._one:
            self._open(groups)
            for index, slot in enumerate(self._intake.slots):
                if slot.name in gradients:
                    self._intake.submit(index, gradients[slot.name])

    def give_up(self) -> None:
        """A step that was begun and not finished, for backward failed, ends, and no rank takes it."""
        self._job.raise_error()
        with self._one:
            self._abandon()
        if self._lost:
            self._job.finish()
            self._lost = False

    @contextmanager
    def call(
        self, call: str, words: Mapping[str, object], agree: Callable[[Callable[[], Mapping[str, str]], str], None]
    ) -> Iterator[None]:
        """Inside, all ranks have begun the same steps, which have ended. `agree` compares what all of them say. Raises
        ValueError, on all ranks, where one of them is inside a backward pass, has begun other steps, or has other
        `words`."""
        with self._one:
            self._job.raise_error()
            if not self._in_backward:
                self._abandon()
            agree(lambda: {**self._moment(call), **{name: str(word) for name, word in words.items()}}, call)
            self._job.finish()
            yield

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside, no step begins and no call of all ranks comes; one whose backward pass failed was given up before."""
        self.give_up()
        with self._one:
            yield

    @contextmanager
    def own(self, call: str) -> Iterator[None]:
        """A turn of one rank's call. Raises ValueError, and nothing has changed, inside a backward pass."""
        with self._one:
            if self._job.error is None:
                self._moment(call)
                self._abandon()
            yield

    def end(self) -> None:
        """No step follows. Raises ValueError, and nothing has changed, inside a backward pass."""
        with self.own("detach()"):
            pass

    def _open(self, groups: Sequence[int] | None) -> None:
        self._intake.open(groups)
        if in_backward():
            backward = _Backward()
            when_backward_ends(backward)
            self._backward = weakref.ref(backward)

    def _abandon(self) -> None:
        """All gradients of a step whose backward pass failed are there, or known to be absent."""
        if self._intake.unfinished:
            self._intake.abandon()
            self._lost = True

    @property
    def _in_backward(self) -> bool:
        """Whether gradients of a step are still to come, or this thread is inside any backward pass."""
        backward = self._backward and self._backward()
        return in_backward() or (backward is not None and not backward.over)

    def _moment(self, call: str) -> Mapping[str, str]:
        if self._in_backward:
            raise ValueError(f"{call} inside a backward pass; make this call when backward() has returned")
        return {f"when they call {call}": f"after {self._intake.step} steps"}
