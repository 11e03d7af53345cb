"""Comparisons: training runs that differ in their configuration alone."""

import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from math import ceil, lcm
from pathlib import Path
from typing import Any, Self

import torch

from gradwire.frontends.updates import sends_momentum
from gradwire.lab.configuration import Configuration, check_autocast, check_hooks, check_plans, parse_all
from gradwire.lab.experiments.recipe import Course, Recipe
from gradwire.lab.jobs.train_job import TrainSpec
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.names import NOCOMM
from gradwire.lab.workloads import Task
from gradwire.lab.workloads.make_task import make_task
from gradwire.process_limits import cores


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`configurations` on one task with the same recipe and seed, with a checkpoint after every `checkpoint_every`
    steps or epochs. `metric` is the held-out figure to look at, by default the task's; `published` says what was
    reached elsewhere.

    Raises ValueError for what would fail on `ranks` ranks: a task that cannot be made or has too little data, an
    optimizer that does not have what the recipe says, or would count momentum twice, local steps whose last round does
    not end, `nocomm`, which does not train, and torch's hooks with shards, or with checkpoints that would lack their
    state.
    """

    configurations: list[Configuration]
    """The ways to reduce gradients that are compared."""
    task: str
    """A task's name."""
    options: list[str]
    """Its options, name=value."""
    ranks: int
    """All ranks."""
    recipe: Recipe
    seed: int = 0
    shard: int = 1
    """Ranks that hold one model together."""
    checkpoint_every: int | None = None
    metric: str | None = None
    published: str | None = None

    def __post_init__(self) -> None:
        # what cannot be compared
        if any(configuration.silent for configuration in self.configurations):
            raise ValueError(f"{NOCOMM} measures step times and trains nothing: it is for `gradwire bench`")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise ValueError(
                f"checkpoint_every={self.checkpoint_every} is no number of steps or epochs: give 1 or more"
            )
        if self.checkpoint_every and self.shard > 1:
            raise ValueError("the lab keeps no checkpoints of sharded models: leave --checkpoint-every or --shard out")
        check_hooks(self.configurations, self.shard)
        check_autocast(self.configurations, self.recipe.autocast)
        stateful = [each.text for each in self.configurations if each.hook and each.hook.keeps_state]
        if self.checkpoint_every and stateful:
            raise ValueError(
                f"{stateful[0]} has state that no checkpoint of the lab holds: leave it or --checkpoint-every out"
            )
        # what would fail on the ranks: a task without data or held-out batches, a length without steps, a plan of
        # another model
        task = self.make_task()
        next(task.batches(0, self.ranks, self.seed))
        task.held_out_size  # noqa: B018
        task.parameters()
        _check_rounds(self.configurations, self.course.steps)
        _check_momentum(self.configurations, *self.recipe.optimizer_of(task))
        check_plans(self.configurations, lambda: task.build_model(self.seed))

    def make_task(self) -> Task:
        return make_task(self.task, self.options)

    @property
    def course(self) -> Course:
        return self.recipe.course(self.make_task(), self.ranks)

    @property
    def looked_at(self) -> str:
        """The held-out figure that the report shows."""
        return self.metric or self.make_task().looked_at

    def specs(self, folder: Path) -> Iterator[tuple[Configuration, TrainSpec]]:
        """Each configuration with its ranks' job, which has a folder of its own in `folder`, the same each time."""
        names = ("task", "options", "recipe", "seed", "shard", "checkpoint_every")
        shared = {name: getattr(self, name) for name in names}
        slugs = [configuration.slug for configuration in self.configurations]
        for place, (configuration, slug) in enumerate(zip(self.configurations, slugs, strict=True), 1):
            # patterns may differ in characters that no folder's name has
            name = f"{place}-{slug}" if slugs.count(slug) > 1 else slug
            home = str((folder / name).absolute())
            yield configuration, TrainSpec(configuration=configuration.text, home=home, **shared)

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        texts = [configuration.text for configuration in self.configurations]
        return values | {"configurations": texts, "recipe": asdict(self.recipe)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        parsed = {"configurations": parse_all(plain["configurations"]), "recipe": Recipe(**plain["recipe"])}
        return cls(**plain | parsed)

    def facts(self) -> dict[str, object]:
        """Facts about the runs, for reports."""
        task = self.make_task()
        optimizer, options = self.recipe.optimizer_of(task)
        # what the recipe says beside the optimizer
        given = {
            name: value
            for name, value in asdict(self.recipe).items()
            if name in ("epochs", "warm_up", "clip", "autocast")
        }
        return {
            "task": self.task,
            "options": {field.name: str(getattr(task, field.name)) for field in fields(task)},
            "parameters": task.parameters(),
            "steps": self.course.steps,
            "optimizer": optimizer,
            "optimizer_options": options,
            "schedule": self.recipe.schedule,
            **given,
            "seed": self.seed,
            "published": self.published,
        }


def circumstances(*clusters: LabCluster) -> dict[str, object]:
    """Circumstances of a measurement: cluster, or what several have in common, date and command."""
    first, *others = [
        {
            "place": str(cluster),
            "hosts": cluster.hosts,
            "ranks": cluster.ranks,
            "link": str(cluster.link) if cluster.link else None,
            "device": cluster.device,
        }
        for cluster in dict.fromkeys(clusters)
    ]
    return {
        **{name: fact for name, fact in first.items() if all(other[name] == fact for other in others)},
        "machine": f"{cores():g} cores, {platform.platform()}",
        "software": f"Python {platform.python_version()}, torch {torch.__version__}",
        "date": f"{datetime.now():%Y-%m-%d %H:%M}",
        "command": shlex.join(["gradwire", *sys.argv[1:]]),
    }


def _check_rounds(configurations: Sequence[Configuration], steps: int) -> None:
    """Raises ValueError for local steps whose last round would not end: the parameters that replicas share, which are
    evaluated, would lack what was trained since."""
    unended = next((each.text for each in configurations if steps % each.every), None)
    if unended is not None:
        period = lcm(*(each.every for each in configurations))
        right = ceil(steps / period) * period
        raise ValueError(f"after {steps} steps the last round of {unended} is not over: give --steps {right}")


def _check_momentum(configurations: Sequence[Configuration], optimizer: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError for a configuration that sends momentum, where the optimizer keeps its own."""
    if optimizer == "sgd" and not options["momentum"]:
        return
    for configuration in configurations:
        # what local steps send goes to the outer optimizer
        if not configuration.local and any(sends_momentum(*pair) for pair in configuration.pairs):
            raise ValueError(
                f"{configuration.text} sends momentum, which {optimizer}'s own would count twice: train it by itself, "
                "with --optimizer sgd --momentum 0"
            )
