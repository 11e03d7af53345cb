"""Steps of a model against the clock, on the ranks' own network or a played one."""

import time
from collections.abc import Callable, Sequence
from math import ceil, inf, lcm
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import SGD, Optimizer

from gradwire.importing import is_users
from gradwire.lab.curve import Carried, StepCurve, seconds
from gradwire.lab.jobs.measured_model import MeasuredModel
from gradwire.lab.jobs.meter import over_rounds
from gradwire.lab.played_cluster import PlayedCluster
from gradwire.lab.results import Totals
from gradwire.lab.workloads import Task
from gradwire.ops.host import synchronize
from gradwire.schedule import Timeline

WARM_UP_STEPS = 5
"""Steps that are made before the timed ones."""
LOADS = (0.0, 0.5, 1.0, 3.0)
"""The points of a curve: how long a step's messages keep the card busy, in steps without messages."""
CURVE_STEPS = 6
"""Timed at each point, if the time allows."""
_LENGTH = 8
"""Steps without messages that one step at each point takes."""


class TimedModel:
    """A model that takes steps on batches in turns."""

    def __init__(self, replica: MeasuredModel, task: Task, batches: Sequence[Any]) -> None:
        self._replica = replica
        self._task = task
        self._batches = batches
        self.late: Callable[[int, torch.device], None] = lambda step, device: None
        self._optimizer: Optimizer = replica.optimizer(SGD(replica.wrapped.parameters(), lr=1e-3))
        self._taken = 0

    def settle(self) -> None:
        """Takes the steps in which a plan is chosen, where the configuration chooses one."""
        while self._replica.choosing:
            self._step()

    def time(self, steps: int, warm_up: int = WARM_UP_STEPS) -> tuple[list[float], Totals]:
        """Milliseconds of each of the steps, after others that warm up, and all ranks' mean bytes and seconds."""
        replica, whole = self._replica, self._whole
        warm_up, steps = (ceil(count / whole) * whole for count in (warm_up, steps))
        step_ms: list[float] = []
        before = replica.totals(self._taken)
        for number in range(-warm_up, steps):
            # all ranks begin to time together
            if number == 0:
                synchronize(replica.peers.device)
                dist.barrier()
                before = replica.totals(self._taken)
            start = time.perf_counter()
            self._step()
            step_ms.append(1e3 * (time.perf_counter() - start))
        totals = replica.peers.mean_of(replica.totals(self._taken) - before)
        return over_rounds(step_ms[warm_up:], replica.every), totals

    def curve(
        self, played: PlayedCluster, within_s: float, tell: Callable[[float, float], None] = lambda done, s: None
    ) -> StepCurve:
        """Measures the curve: step times on a card that messages keep busy for longer and longer. Of long steps few
        are timed at each point, one at least, so that all takes no longer than `within_s` if that can be. `tell` gets
        the share that is done, and the seconds of a step without messages."""
        played.set_speed(inf)
        # how long a step takes says how many fit
        first_s = self.time(1, warm_up=1)[0][0] / 1e3
        timed = _at_a_point(first_s, within_s)
        tell(1 / (2 + len(LOADS)), first_s)
        if timed > 1:
            self.time(timed)
        # no time on the card: how long the step takes by itself, and its messages
        sent, taken = played.sent(), self._taken
        step_ms, totals = self.time(timed, warm_up=0)
        counts = played.sent() - sent
        steps, alone_s = self._taken - taken, median(step_ms) / 1e3
        carried = tuple(Carried(*each, count / steps) for each, count in counts.items())
        # the loads, in bytes of which the card sends so many a second
        nbytes = seconds(carried, played.hosts, 0.0, 1.0)
        points = {0.0: alone_s}
        for load in LOADS[1:] if nbytes else ():
            tell((1 + len(points)) / (2 + len(LOADS)), first_s)
            played.set_speed(nbytes / (load * alone_s))
            points[load * alone_s] = median(self.time(timed, warm_up=min(2, timed - 1))[0]) / 1e3
        played.set_speed()
        # how often a user's own communicator sends among others is not known
        groups = self._replica.plan.groups if self._replica.plan else ()
        elsewhere = not any(is_users(group.communicator) for group in groups)
        return StepCurve((*points,), (*points.values(),), carried, played.hosts, totals.decode_s / steps, elsewhere)

    @property
    def _whole(self) -> int:
        """The steps of a round of local steps, and of a period of compressors whose steps differ, if it is short."""
        groups = self._replica.plan.groups if self._replica.plan else ()
        periods = (group.compressor.period for group in groups)
        return self._replica.every * lcm(*(period for period in periods if period <= CURVE_STEPS))

    def timeline(self) -> Timeline | None:
        """The spans of one more step; None where Gradwire does not reduce every step."""
        plan = self._replica.plan
        if self._replica.handle is None or self._replica.local or plan is None or plan.native:
            return None
        trace = self._replica.handle.trace()
        # a step ends when the next one begins
        for _ in range(2):
            self._step()
        return trace.timelines()[0]

    def _step(self) -> None:
        self.late(self._taken, self._replica.peers.device)
        self._replica.backward(self._task, self._batches[self._taken % len(self._batches)])
        self._replica.step(self._optimizer)
        self._optimizer.zero_grad()
        synchronize(self._replica.peers.device)
        self._taken += 1


def curve_s(step_s: float, every: int, within_s: float) -> float:
    """About how many seconds a curve takes, in rounds of `every` steps that take `step_s` without messages."""
    rounds = ceil(_at_a_point(step_s, within_s) / every)
    return _LENGTH * step_s * every * (rounds + 0.5)


def _at_a_point(step_s: float, within_s: float) -> int:
    """The steps to time at each point of a curve."""
    return max(1, int(min(CURVE_STEPS, within_s / (_LENGTH * step_s))))
