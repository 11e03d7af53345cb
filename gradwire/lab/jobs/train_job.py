"""A rank's training job: one configuration on one task."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR

from gradwire.lab.configuration import parse
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.jobs import checkpoints
from gradwire.lab.jobs.measured_model import MeasuredModel
from gradwire.lab.jobs.meter import Meter
from gradwire.lab.launch.rank_job import Log, Peers, Spec, run_rank
from gradwire.lab.models import lstm
from gradwire.lab.results import TRAINING_LOSS
from gradwire.lab.workloads import Task
from gradwire.lab.workloads.make_task import make_task
from gradwire.lab.workloads.to_device import copied


@dataclass(frozen=True, kw_only=True)
class TrainSpec(Spec):
    """A training run. It goes on from the newest checkpoint in `home`, and makes one after every `checkpoint_every`
    steps or epochs, whatever the recipe counts in, and at the end."""

    configuration: str
    """As text."""
    recipe: Recipe
    home: str = ""
    """The folder of its checkpoints."""
    checkpoint_every: int | None = None

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        recipe: dict[str, Any] = {"recipe": Recipe(**plain["recipe"])}
        return cls(**plain | recipe)


def train(spec: TrainSpec, peers: Peers, log: Log) -> None:
    """Trains as the recipe says; `log` gets a `Record` about 50 times, about 25 of them evaluated, or after each epoch.

    Raises RuntimeError where the replicas differ at the end."""
    # the task reads its data; the model reduces by the configuration
    task = make_task(spec.task, spec.options)
    model, options = task.build_model(spec.seed), (spec.seed, spec.shard, spec.recipe.autocast)
    with MeasuredModel(model, parse(spec.configuration), peers, *options) as replica:
        _Training(spec, task, replica).run(log)


class _Training:
    """State of one rank's training."""

    def __init__(self, spec: TrainSpec, task: Task, replica: MeasuredModel) -> None:
        self.spec = spec
        self.task = task
        self.replica = replica
        self.configuration = parse(spec.configuration)
        self.peers = replica.peers
        self.course = spec.recipe.course(task, self.peers.world)
        self.optimizer = replica.optimizer(spec.recipe.make_optimizer(task, replica.wrapped.parameters()))
        self.schedule = LambdaLR(self.optimizer, self.course.share_of_rate)
        self.meter = Meter(replica)

    def run(self, log: Log) -> None:
        """Trains to the end, from the newest checkpoint if there is one."""
        # for dropout
        torch.manual_seed(self.spec.seed * self.peers.world + self.peers.rank)
        # from the newest checkpoint on, with the batches that come after it
        start = self._newest() if self.spec.checkpoint_every else 0
        batches = self.task.batches(self.peers.rank, self.peers.world, self.spec.seed, start)
        batches = self._resume(start, batches) if start else batches
        for number, batch in enumerate(islice(batches, self.course.steps - start), start + 1):
            last = number == self.course.steps
            self._step(batch, last)
            # about 50 records, about half of them with held-out figures
            evaluated = self._evaluated(number)
            if evaluated or self.course.recorded(number):
                record = self.meter.record(number, last=last)
                held_out = self._evaluate(record.loss) if evaluated else None
                log(replace(record, held_out=held_out).to_line())
            if self.course.kept(number, self.spec.checkpoint_every):
                self._keep(number)

    def _step(self, batch: Any, last: bool) -> None:
        with self.meter.step():
            self.meter.loss += self.replica.backward(self.task, batch)
            self.replica.step(self.optimizer, self.spec.recipe.clip)
            self.schedule.step()
            self.optimizer.zero_grad()
            if last:
                self.replica.take_last_mean()

    def _evaluated(self, number: int) -> bool:
        """Whether the model is evaluated after step `number`: with local steps only where a round's mean has come, and
        after the last step; in between, the shared parameters are those of the round before."""
        if number == self.course.steps:
            return True
        round_ = range(number - self.configuration.every + 1, number + 1)
        return self.configuration.has_mean(number) and any(map(self.course.evaluated, round_))

    def _evaluate(self, training_loss: float) -> dict[str, float]:
        """Held-out figures, of which every rank computes a part, after epochs on the whole held-out set; the training
        loss where there is none."""
        whole = self.course.epoch_steps is not None
        with self.replica.shared():
            module = self.replica.module
            for buffer in module.buffers():
                # as DDP does before it trains on: BatchNorm's are those of the last step
                dist.broadcast(buffer, 0)
            sums = self.task.sums(module, self.peers.rank, self.peers.world, whole)
        return self.task.figures(self.peers.sum(sums)) or {TRAINING_LOSS: training_loss}

    def _keep(self, number: int) -> None:
        home, handle = Path(self.spec.home), self.replica.handle
        own = {"random": _random_state(self.peers.device), "meter": self.meter.state_dict(number)}
        own["carried"] = lstm.carried(self.replica.wrapped)
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        # then replicas differ, and their optimizer has what the handle has
        local = self.replica.local
        own |= parts if local else {"gradwire": handle.state_dict() if handle else {}}
        # every rank's own file, then the shared one, then older checkpoints go
        checkpoints.write(home, number, f"rank-{self.peers.rank}", own)
        dist.barrier()
        if self.peers.rank == 0:
            checkpoints.write(home, number, checkpoints.SHARED, {} if local else parts)
        dist.barrier()
        checkpoints.remove_before(home, number)

    def _newest(self) -> int:
        """The step of the newest checkpoint that rank 0 sees, 0 where there is none."""
        newest = torch.tensor(checkpoints.newest(Path(self.spec.home)), device=self.peers.device)
        dist.broadcast(newest, 0)
        return int(newest)

    def _resume(self, step: int, batches: Iterator[Any]) -> Iterator[Any]:
        """Takes over the checkpoint of `step`; returns the batches from there on, all of them."""
        # the next step's batch is the discarded one's too, so that none is drawn for that
        first = next(batches)
        self._lay_out(copied(first))
        # the shared file and this rank's own
        home, handle = Path(self.spec.home), self.replica.handle
        shared, own = (checkpoints.read(home, step, part) for part in (checkpoints.SHARED, f"rank-{self.peers.rank}"))
        # model, optimizer and schedule; then memories, clock and random generators
        for name, part in self._parts().items():
            part.load_state_dict((shared | own)[name])
        if handle and not self.replica.local:
            handle.load_state_dict(own["gradwire"])
        lstm.carry_on(self.replica.wrapped, own["carried"])
        self.meter.load_state_dict(own["meter"])
        _set_random_state(own["random"], self.peers.device)
        return chain([first], batches)

    def _lay_out(self, batch: Any) -> None:
        """One discarded step, after which DDP's buckets and Gradwire's groups have their final order: sums in another
        order round differently."""
        self.replica.backward(self.task, batch)
        self.optimizer.zero_grad()

    def _parts(self) -> dict[str, Any]:
        scaler = self.replica.precision.scaler
        parts = {"model": self.replica.module, "optimizer": self.optimizer, "schedule": self.schedule}
        return parts | ({"scaler": scaler} if scaler else {})


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """States of torch's own generators, from which dropout draws."""
    return {"cpu": torch.get_rng_state()} | (
        {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    )


def _set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


if __name__ == "__main__":
    run_rank(train, TrainSpec)
