"""How far a rank is, asked for when its job ends, so that a step pays next to nothing for it."""

import sys
from threading import get_ident
from time import monotonic
from weakref import WeakSet

import torch

from gradwire.runtime.failures.job_errors import BETWEEN, ELSEWHERE, WAITING, RankStatus
from gradwire.runtime.steps.gradient_collector import GradientCollector
from gradwire.runtime.steps.steps import Steps

FILE = sys.modules[torch.optim.Optimizer.__module__].__file__
"""torch wraps the `step()` of every optimizer with a function of this file."""

_of_process: "WeakSet[RankProgress]" = WeakSet()
"""The RankProgress of every job in this process: the training thread may be waiting in another job when one fails."""


class RankProgress:
    """How far a rank is in one job; for any thread. Made on the thread that trains."""

    def __init__(self, collector: GradientCollector, steps: Steps) -> None:
        self._collector, self._steps = collector, steps
        self._thread, self._made_at = get_ident(), monotonic()
        _of_process.add(self)

    def step_s(self) -> float:
        """Seconds from the last step's beginning to this one's; 0 in the first."""
        return self._collector.step_s

    def status(self) -> RankStatus:
        """The step that the rank is in, and what it does there."""
        if self._collector.opened == self._collector.reduced:
            return RankStatus(self._steps.number, self._doing())
        doing = "in backward" if self._collector.unfinished else WAITING
        return RankStatus(self._steps.number, doing, self._exchanged_s)

    @property
    def _exchanged_s(self) -> float:
        begun_at = self._collector.first_group_at
        return monotonic() - begun_at if begun_at else 0.0

    def _doing(self) -> str:
        """Where the training thread is outside of this job's steps."""
        # another job on the same training thread may wait in a step that began after this job was made
        others = [
            job for job in list(_of_process)
            if job._thread == self._thread and job._collector.first_group_at > self._made_at
        ]  # fmt: skip
        if any(job._waits for job in others if job is not self):
            return ELSEWHERE
        doing = self._collector.doing
        return "in optimizer" if doing == BETWEEN and in_optimizer(self._thread) else doing

    @property
    def _waits(self) -> bool:
        """Whether this rank waits in a step whose exchange began less than two timeouts ago, or has given it up."""
        collector, lately_s = self._collector, 2 * self._steps.pipeline.mesh.timeout_s
        waits = collector.opened > collector.reduced and not collector.unfinished
        return waits and 0 < self._exchanged_s < lately_s


def in_optimizer(thread: int) -> bool:
    """Whether the thread with this `threading.get_ident()` is inside a step of some optimizer. Frames are asked for
    their code alone: a frame that was asked for its variables keeps them."""
    frame = sys._current_frames().get(thread)
    # from the innermost call outwards
    while frame:
        if frame.f_code.co_filename == FILE:
            return True
        frame = frame.f_back
    return False
