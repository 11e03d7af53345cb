"""Options that belong together: a dataclass each, which a command has as one parameter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import typer

from gradwire.cli import arguments as a
from gradwire.lab.names import MOST


@dataclass(frozen=True)
class Compared:
    """The configurations that a command compares."""

    configurations: a.Configurations = None
    controller: a.ControllerName = None
    rules: a.RuleTexts = None
    plan: a.PlanFile = None


@dataclass(frozen=True)
class RecipeChanges:
    """What a training does otherwise than by itself."""

    steps: a.Steps = None
    epochs: a.Epochs = None
    optimizer: a.Optimizer = None
    lr: a.LearningRate = None
    momentum: a.Momentum = None
    weight_decay: a.WeightDecay = None
    schedule: a.Schedule = None
    warm_up: a.WarmUp = None
    clip: a.Clip = None
    autocast: a.Autocast = None


@dataclass(frozen=True)
class ProfiledJob:
    """The job to profile, or the one that a profile was measured on."""

    task: a.Task = None
    model: a.OwnModel = None
    options: a.TaskOptions = None
    folder: a.Folder = None


@dataclass(frozen=True)
class Play:
    """A cluster of which this machine plays one rank; the fields are the arguments of `PlaySpec.read`."""

    play: a.Play = None
    gpus_per_host: a.GpusPerHost = 1
    inside: a.Inside = None
    latency_us: a.Latency = None
    different: a.Different = False
    jitter: a.Jitter = 0.0
    slow_rank: a.SlowRank = 1.0


@dataclass(frozen=True)
class PricedTraining:
    """The training whose hours or cost are asked for; the fields are the arguments of `TrainingCost.of`."""

    training_steps: a.TrainingSteps = None
    price: a.Price = None


@dataclass(frozen=True)
class Pictures:
    """Formats of pictures beside PNG; their callbacks do the rest."""

    pdf: a.Pdf = False
    svg: a.Svg = False


GROUPS = (Compared, RecipeChanges, ProfiledJob, Play, PricedTraining, Pictures)


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer: where `command` has a group of options as a parameter, this one has the options. Whole
    numbers beyond the steps and samples that anyone could wait for are mistakes."""
    own = signature(command)
    groups = {name: each.annotation for name, each in own.parameters.items() if each.annotation in GROUPS}

    @wraps(command)
    def call(**options: Any) -> None:
        for name, value in options.items():
            if isinstance(value, int) and value > MOST:
                raise typer.BadParameter(f"--{name.replace('_', '-')} {value} is too large: give {MOST:,} at most")
        given = {name: group(**{each: options.pop(each) for each in _options(group)}) for name, group in groups.items()}
        command(**options, **given)

    parts = [_options(groups[name]) if name in groups else {name: each} for name, each in own.parameters.items()]
    flat = [each.replace(kind=Parameter.KEYWORD_ONLY) for part in parts for each in part.values()]
    call.__signature__ = own.replace(parameters=flat)  # pyright: ignore[reportAttributeAccessIssue]
    call.__annotations__ = {each.name: each.annotation for each in flat}
    return call


def _options(group: type[Any]) -> Mapping[str, Parameter]:
    return signature(group).parameters
