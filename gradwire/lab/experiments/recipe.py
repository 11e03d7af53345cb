"""Recipes: the length, optimizer and learning rate of a training."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import cos, inf, nan, pi
from typing import Any, Literal

from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from gradwire.lab.workloads import Task
from gradwire.unknown import unknown

RECORDS = 50
"""Records of a training, about."""
WARM_UP_STEPS = 20
"""Steps in which the rate rises, where the recipe says nothing."""
SCHEDULES = ("constant", "cosine", "linear", "drop:...")
_DROP = "drop:"
_TOO_LARGE = 1e38
"""For float32."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training's length and optimizer, the same for all configurations.

    The length is in `steps` or in `epochs`, and so is all that has to do with time. `schedule` is constant; cosine or
    linear, which fall to 0 at the end; or drop:30,60, which falls to a tenth after 30 and again after 60. The rate
    rises during `warm_up`, by default 20 steps. Without `optimizer` it is the task's: sgd at 0.01 with momentum 0.9, or
    adamw at 0.001. `clip` is the largest norm of all gradients.
    With `autocast` the forward passes of training are in half precision, and float16's losses are scaled.

    Raises ValueError for what cannot be.
    """

    steps: int | None = None
    epochs: int | None = None
    optimizer: Literal["sgd", "adamw"] | None = None
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    schedule: str = "constant"
    warm_up: float | None = None
    clip: float | None = None
    autocast: Literal["bf16", "fp16"] | None = None

    def __post_init__(self) -> None:
        # one length, of one unit or more
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"{self.steps} steps and {self.epochs} epochs are two lengths: give one of them")
        for unit, length in {"steps": self.steps, "epochs": self.epochs}.items():
            if length is not None and length < 1:
                raise ValueError(f"{length} {unit} are no training: give 1 or more")
        # numbers of an optimizer that can be
        if self.optimizer not in (None, "sgd", "adamw"):
            raise unknown("optimizer", self.optimizer, ("sgd", "adamw"))
        if self.lr is not None and not 0 < self.lr < _TOO_LARGE:
            raise ValueError(f"lr={self.lr} is no learning rate: it is above 0 and below {_TOO_LARGE:g}")
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} is not from 0 to below 1")
        if self.clip is not None and not 0 < self.clip < _TOO_LARGE:
            raise ValueError(f"clip={self.clip} is no norm: it is above 0 and below {_TOO_LARGE:g}")
        for name in ("weight_decay", "warm_up"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < _TOO_LARGE:
                raise ValueError(f"{name}={value} is not from 0 to below {_TOO_LARGE:g}")
        # raises for a schedule that cannot be read
        self.drops  # noqa: B018

    @property
    def drops(self) -> list[float]:
        """After how many steps or epochs the rate falls to a tenth. Raises ValueError for an unknown schedule, and for
        drops that never come."""
        if self.schedule in SCHEDULES[:-1]:
            return []
        if not self.schedule.startswith(_DROP):
            raise unknown("schedule", self.schedule, SCHEDULES)
        try:
            drops = [float(drop) for drop in self.schedule.removeprefix(_DROP).split(",")]
        except ValueError:
            drops = [nan]
        if not all(0 < drop < inf for drop in drops):
            raise ValueError(f"schedule {self.schedule} has no steps or epochs: give numbers above 0, as in drop:30,60")
        return drops

    def of_length(self, unit: str, length: int) -> dict[str, Any]:
        """The fields of the recipe that change with a `length` in a `unit`, steps or epochs. If the length was in the
        other unit before, drops and warm-up keep their share of it."""
        changed: dict[str, Any] = {"steps": None, "epochs": None, unit: length}
        if (before := self.epochs if unit == "steps" else self.steps) is None:
            return changed
        share = length / before
        if self.drops:
            changed["schedule"] = _DROP + ",".join(f"{share * drop:g}" for drop in self.drops)
        if self.warm_up:
            changed["warm_up"] = share * self.warm_up
        return changed

    def course(self, task: Task, world: int) -> "Course":
        """The steps of a training on `world` ranks. Raises ValueError for a task without epochs that needs them."""
        if self.epochs is None:
            return Course(self, self.steps or 0, None)
        # by epochs, of which the task has a number of steps
        epoch_steps = task.epoch_steps(world)
        return Course(self, self.epochs * epoch_steps, epoch_steps)

    def make_optimizer(self, task: Task, parameters: Iterable[Parameter]) -> Optimizer:
        """The optimizer of this task's parameters. Raises ValueError for a momentum of AdamW."""
        kind, options = self.optimizer_of(task)
        return {"sgd": SGD, "adamw": AdamW}[kind](parameters, **options)

    def optimizer_of(self, task: Task) -> tuple[str, dict[str, Any]]:
        """The optimizer's name and options. Raises ValueError for a momentum of AdamW."""
        kind = self.optimizer or task.optimizer
        decay = {} if self.weight_decay is None else {"weight_decay": self.weight_decay}
        # AdamW has betas in place of a momentum
        if kind == "sgd":
            momentum = 0.9 if self.momentum is None else self.momentum
            return kind, {"lr": self.lr or 0.01, "momentum": momentum} | decay
        if self.momentum is not None:
            raise ValueError(f"momentum={self.momentum} is for sgd: leave it out, or give optimizer sgd")
        return kind, {"lr": self.lr or 1e-3} | decay


@dataclass(frozen=True)
class Course:
    """The steps of a training by a recipe."""

    recipe: Recipe
    steps: int
    """In all."""
    epoch_steps: int | None
    """Steps of an epoch, where the length is in epochs."""

    @property
    def unit(self) -> int:
        """Steps in one of the recipe's units, a step or an epoch."""
        return self.epoch_steps or 1

    def share_of_rate(self, done: int) -> float:
        """The share of the learning rate that is in force after `done` steps."""
        recipe = self.recipe
        warm_up = WARM_UP_STEPS if recipe.warm_up is None else recipe.warm_up * self.unit
        # rising during the warm-up, by a factor up to 1
        rising = min(1, (done + 1) / warm_up) if warm_up else 1
        if recipe.schedule == "cosine":
            return rising * (1 + cos(pi * done / self.steps)) / 2
        if recipe.schedule == "linear":
            return rising * (1 - done / self.steps)
        return rising * 0.1 ** sum(done >= drop * self.unit for drop in recipe.drops)

    def recorded(self, number: int) -> bool:
        """Whether step `number` has one of about 50 records; the last has, and so has each that is evaluated."""
        return number % max(1, self.steps // RECORDS) == 0 or self.evaluated(number)

    def evaluated(self, number: int) -> bool:
        """Whether the model is evaluated after step `number`: after each epoch, or about 25 times; with local steps at
        the end of the round that has this step."""
        every = self.epoch_steps or 2 * max(1, self.steps // RECORDS)
        return number == self.steps or number % every == 0

    def kept(self, number: int, every: int | None) -> bool:
        """Whether a checkpoint is made after step `number`: every so many steps or epochs, and at the end."""
        return every is not None and (number == self.steps or number % (every * self.unit) == 0)
