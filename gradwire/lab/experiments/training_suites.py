"""Suites of trainings: those of a published system, or small ones of GraVAC's shapes."""

from pathlib import Path

from gradwire.lab.experiments.presets import SYSTEMS, adaptive
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.experiments.training import Training
from gradwire.lab.workloads import FashionMnist
from gradwire.unknown import unknown


def training_suite(
    name: str, data: Path | None, task: str | None = None, weights: Path | None = None
) -> list[Training]:
    """The published rows of a suite on the sets below `data`, each in the folder of its task; without it GraVAC's small
    ones. `task` picks one task's. Those that were published from trained weights begin with the ones below `weights`,
    again by task.

    Raises ValueError for an unknown suite, for one that needs data, for a task that it does not have, and for weights
    where none were published."""
    if name not in SYSTEMS:
        raise unknown("suite to train", name, SYSTEMS)
    if not data and name != "gravac":
        raise ValueError(f"suite {name} trains on data that you have: give --data with a folder for each task")
    rows = [row.on(_folder(data, each, row)) for each, row in SYSTEMS[name].items()] if data else _small_gravac()
    chosen = [row for row in rows if task in (None, row.task)]
    if not chosen:
        raise unknown(f"task of {name} named", task or "", [row.task for row in rows])
    if weights and not any(row.from_weights for row in chosen):
        raise ValueError(f"none of these trainings of {name} begins with trained weights: leave --pretrained out")
    return [
        row.altered(options=[f"pretrained={weights / row.task}"]) if weights and row.from_weights else row
        for row in chosen
    ]


def _folder(data: Path, name: str, row: Training) -> Path:
    """The data of a row: in a folder of its own name, for two rows on other sets of one task, or of its task's."""
    return own if (own := data / name).is_dir() else data / row.task


def _small_gravac() -> list[Training]:
    """A narrow ResNet, VGG and LSTM on what every machine has; Fashion-MNIST where it is installed."""
    # short windows and intervals, for short runs
    configurations = adaptive(("topk",), window=8, interval=20)
    fashion = FashionMnist.folder.is_dir()
    resnet, vgg = ("model=resnet18", "width=8", "batch=16"), ("model=vgg16", "width=8", "batch=16")
    lstm = ("model=lstm", "width=128", "layers=2", "context=35", "batch=16", "carry=true")
    dropping = Recipe(steps=300, schedule="drop:200")
    return [
        Training(task="digits", options=resnet, recipe=dropping, configurations=configurations),
        Training(task="fashion-mnist" if fashion else "digits", options=vgg, configurations=configurations),
        Training(task="lm", options=lstm, configurations=configurations),
    ]
