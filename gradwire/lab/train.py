"""One rank's training job: one configuration on one task."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gradwire.lab.catalogue import make_task
from gradwire.lab.configuration import parse
from gradwire.lab.job import Log, Peers, Replica, Spec, run_rank
from gradwire.lab.results import Record
from gradwire.lab.workloads import Task, TextTask

RECORDS = 50
WARM_UP_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class TrainSpec(Spec):
    """A training run; without `lr`, the task's own. The rate falls to a tenth after each number of steps in `drops`."""

    configuration: str
    steps: int
    lr: float | None = None
    weight_decay: float | None = None
    drops: list[int] = field(default_factory=list)


def optimizer_for(
    task: Task, lr: float | None, weight_decay: float | None = None
) -> tuple[type[Optimizer], dict[str, Any]]:
    """Alike for all configurations: AdamW at 1e-3 for text, SGD with momentum 0.9 at 0.01 for the rest; with a
    `weight_decay` SGD for all."""
    if isinstance(task, TextTask) and weight_decay is None:
        return AdamW, {"lr": lr or 1e-3}
    return SGD, {"lr": lr or 0.01, "momentum": 0.9, "weight_decay": weight_decay or 0.0}


def train(spec: TrainSpec, peers: Peers, log: Log) -> None:
    """Trains for `spec.steps` steps; `log` gets a `Record` about 50 times, about 25 of them evaluated.

    Raises RuntimeError where the replicas differ at the end."""
    task = make_task(spec.task, spec.options)
    with Replica(task.build_model(spec.seed), parse(spec.configuration), peers, spec.seed) as replica:
        optimizer_type, options = optimizer_for(task, spec.lr, spec.weight_decay)
        optimizer = optimizer_type(replica.ddp.parameters(), **options)
        replica.rate.optimizer = optimizer
        schedule = LambdaLR(optimizer, lambda done: _share_of_rate(done, spec.drops))
        meter = _Meter(replica)
        batches = task.batches(peers.rank, peers.world, spec.seed)
        for number, batch in enumerate(islice(batches, spec.steps), 1):
            with meter.step():
                meter.loss += replica.backward(task, batch)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if _due(number, spec.steps):
                record = meter.record(number, spec.steps)
                if peers.rank == 0:
                    held_out = task.evaluate(replica.module) if _due(number, spec.steps, every=2) else None
                    log(replace(record, held_out=held_out).to_line())
                dist.barrier()


def _share_of_rate(done: int, drops: list[int]) -> float:
    """Of the learning rate, after `done` steps."""
    return min(1, (done + 1) / WARM_UP_STEPS) * 0.1 ** sum(done >= drop for drop in drops)


def _due(number: int, steps: int, every: int = 1) -> bool:
    """Whether step `number` of `steps` has one of about 50 records, or `every` so many-th of them; the last has."""
    return number == steps or number % (every * max(1, steps // RECORDS)) == 0


class _Meter:
    """Clock and sums of one rank's run."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._wall_s = 0.0
        self._step_ms: list[float] = []
        self.loss = torch.zeros((), device=replica.peers.device)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Times one step."""
        start = time.perf_counter()
        yield
        self._replica.peers.synchronize()
        seconds = time.perf_counter() - start
        self._wall_s += seconds
        self._step_ms.append(1e3 * seconds)

    def record(self, number: int, steps: int) -> Record:
        """What happened since the last record; all ranks call it after the same step."""
        peers, totals = self._replica.peers, self._replica.totals(number)
        (loss,) = peers.mean([float(self.loss) / len(self._step_ms)])
        step_ms, self._step_ms = self._step_ms, []
        self.loss.zero_()
        replicas = self._replica.hash() if number == steps else None
        decisions = [asdict(decision) for decision in self._replica.decisions()]
        return Record(
            number, self._wall_s, loss, peers.mean_of(totals), step_ms, replicas=replicas, decisions=decisions
        )


if __name__ == "__main__":
    run_rank(train, TrainSpec)
