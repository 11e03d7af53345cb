"""Training runs to compare: several configurations, alike in all else."""

import os
import platform
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from math import inf

import torch

from gradwire.lab.catalogue import make_task
from gradwire.lab.configuration import NOCOMM, Configuration, check_plans
from gradwire.lab.runner import Place
from gradwire.lab.train import TrainSpec, optimizer_for
from gradwire.lab.workloads import Task


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`configurations` on one task with the same seed; without `lr`, the task's own; `weight_decay` and `drops` as in
    `TrainSpec`.

    Raises ValueError for what would fail on `ranks` ranks: a task that cannot be made or has too little data,
    no steps, a learning rate that is none, and `nocomm`, which does not train.
    """

    configurations: list[Configuration]
    task: str
    options: list[str]
    ranks: int
    steps: int
    lr: float | None = None
    weight_decay: float | None = None
    drops: list[int] = field(default_factory=list)
    seed: int = 0

    def __post_init__(self) -> None:
        if any(configuration.silent for configuration in self.configurations):
            raise ValueError(f"{NOCOMM} measures step times and trains nothing: it is for `gradwire bench`")
        if self.steps < 1:
            raise ValueError(f"{self.steps} steps are no training: give 1 or more")
        if self.lr is not None and not 0 < self.lr < inf:
            raise ValueError(f"lr={self.lr} is no learning rate: it is positive and finite")
        task = self.make_task()
        next(task.batches(0, self.ranks, self.seed))
        check_plans(self.configurations, lambda: task.build_model(self.seed))

    def make_task(self) -> Task:
        """The task, its data read."""
        return make_task(self.task, self.options)

    def specs(self) -> Iterator[tuple[Configuration, TrainSpec]]:
        """What the ranks are told for each configuration."""
        names = ("task", "options", "steps", "lr", "weight_decay", "drops", "seed")
        alike = {name: getattr(self, name) for name in names}
        for configuration in self.configurations:
            yield configuration, TrainSpec(configuration=configuration.text, **alike)

    def facts(self) -> dict[str, object]:
        """What is trained, in words and numbers."""
        task = self.make_task()
        optimizer, options = optimizer_for(task, self.lr, self.weight_decay)
        return {
            "task": self.task,
            "options": {field.name: str(getattr(task, field.name)) for field in fields(task)},
            "parameters": sum(parameter.numel() for parameter in task.build_model(self.seed).parameters()),
            "steps": self.steps,
            "optimizer": optimizer.__name__,
            "optimizer_options": options,
            "seed": self.seed,
        }


def circumstances(place: Place) -> dict[str, object]:
    """Where, when and by what command something was measured."""
    return {
        "place": str(place),
        "hosts": place.ranks,
        "link": str(place.link) if place.link else None,
        "device": place.device,
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "software": f"Python {platform.python_version()}, torch {torch.__version__}",
        "date": f"{datetime.now():%Y-%m-%d %H:%M}",
        "command": shlex.join(["gradwire", *sys.argv[1:]]),
    }
