"""A rank's step-time job: configurations in turns, so that a drift of the machine hits them all."""

import time
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Self

import torch.distributed as dist
from torch.optim import SGD, Optimizer

from gradwire.lab.configuration import parse
from gradwire.lab.jobs.measured_model import MeasuredModel
from gradwire.lab.launch.rank_job import Log, Peers, Spec, run_rank
from gradwire.lab.local import over_rounds
from gradwire.lab.results import Totals
from gradwire.lab.workloads import Task
from gradwire.lab.workloads.make_task import make_task

WARM_UP_STEPS = 5
"""Steps that are made before the timed ones."""


@dataclass(frozen=True, kw_only=True)
class BenchSpec(Spec):
    """Configurations to time on one task, `steps` steps at a time, of local steps whole rounds. Raises ValueError for
    less than one."""

    configurations: list[str]
    """As texts."""
    steps: int
    """To time at a time."""
    repeats: int
    """Turns of each configuration."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.repeats < 1:
            raise ValueError(f"{self.repeats} x {self.steps} steps cannot be timed: give 1 or more of both")


@dataclass(frozen=True)
class TimedSteps:
    """Rank 0's timings of one configuration in one repeat, warm-up left out; totals are of these steps."""

    configuration: str
    repeat: int
    step_ms: list[float]
    totals: Totals

    def to_line(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> Self:
        return cls(line["configuration"], line["repeat"], line["step_ms"], Totals(**line["totals"]))


def bench(spec: BenchSpec, peers: Peers, log: Log) -> None:
    """Times every configuration `spec.repeats` times, each time on a fresh model; `log` gets a `TimedSteps` each.

    Raises RuntimeError where a configuration leaves replicas that differ."""
    task = make_task(spec.task, spec.options)
    # one batch again and again: loading data is not what is timed
    batch = next(task.batches(peers.rank, peers.world, spec.seed))
    configurations = [parse(text) for text in spec.configurations]
    for repeat in range(spec.repeats):
        # configurations take turns, so that a slow minute of the machine hits all of them
        for index, configuration in enumerate(configurations):
            with MeasuredModel(task.build_model(spec.seed), configuration, peers, spec.seed, spec.shard) as replica:
                step_ms, totals = _time(replica, task, batch, spec.steps)
                if not configuration.silent:
                    replica.hash()
                # a plan is chosen once
                configurations[index] = configuration.settled(replica.plan)
            log(TimedSteps(configuration.text, repeat, step_ms, totals).to_line())


def _time(replica: MeasuredModel, task: Task, batch: Any, steps: int) -> tuple[list[float], Totals]:
    optimizer = replica.optimizer(SGD(replica.wrapped.parameters(), lr=1e-3))
    # whole rounds of local steps
    warm_up, steps = (ceil(count / replica.every) * replica.every for count in (WARM_UP_STEPS, steps))
    step_ms: list[float] = []
    # the steps in which a plan is chosen, if one is; then warm-up
    while replica.choosing:
        _step(replica, task, batch, optimizer)
    before = replica.totals(0)
    for number in range(-warm_up, steps):
        # all ranks begin to time together
        if number == 0:
            replica.peers.synchronize()
            dist.barrier()
            before = replica.totals(warm_up)
        start = time.perf_counter()
        _step(replica, task, batch, optimizer)
        step_ms.append(1e3 * (time.perf_counter() - start))
    totals = replica.peers.mean_of(replica.totals(warm_up + steps) - before)
    return over_rounds(step_ms[warm_up:], replica.every), totals


def _step(replica: MeasuredModel, task: Task, batch: Any, optimizer: Optimizer) -> None:
    replica.backward(task, batch)
    optimizer.step()
    optimizer.zero_grad()
    replica.peers.synchronize()


if __name__ == "__main__":
    run_rank(bench, BenchSpec)
