"""What published systems trained, as rows: a suite is data. Next to it the same shapes in small."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gradwire.lab.comparison import Comparison
from gradwire.lab.configuration import parse_all
from gradwire.lab.construct import unknown
from gradwire.lab.workloads import FashionMnist


@dataclass(frozen=True, kw_only=True)
class Training:
    """One task, trained in each configuration by SGD with momentum 0.9, or, without `weight_decay`, as the task is by
    itself. The learning rate falls to a tenth after the steps in `drops`."""

    task: str
    options: tuple[str, ...]
    steps: int
    configurations: tuple[str, ...]
    lr: float | None = None
    weight_decay: float | None = None
    drops: tuple[int, ...] = ()

    def comparison(self, ranks: int, steps: int | None, seed: int) -> Comparison:
        """To run on `ranks` ranks. Raises ValueError for data that is not there."""
        return Comparison(
            configurations=parse_all(self.configurations),
            task=self.task,
            options=list(self.options),
            ranks=ranks,
            steps=self.steps if steps is None else steps,
            lr=self.lr,
            weight_decay=self.weight_decay,
            drops=list(self.drops),
            seed=seed,
        )


def training_suite(name: str, data: Path | None, task: str | None = None) -> list[Training]:
    """The published rows of a suite on the sets below `data`; without it the small ones. `task` picks one task's.

    Raises ValueError for an unknown suite, and for a task that it does not have."""
    if name not in TRAINING_SUITES:
        raise unknown("suite to train", name, TRAINING_SUITES)
    rows = _published_gravac(data) if data else _small_gravac()
    chosen = [row for row in rows if task in (None, row.task)]
    if not chosen:
        raise unknown(f"task of {name} named", task or "", [row.task for row in rows])
    return chosen


TRAINING_SUITES = ("gravac",)


def _configurations(sparsifier: str, factors: Iterable[int], window: int, interval: int) -> tuple[str, ...]:
    """Dense, static factors in elements, and what adapts between 10 and 1000."""
    adaptive = [f"{sparsifier}:0.1+accordion:0.1,0.01,interval={interval}"]
    adaptive += [f"{sparsifier}:0.01+lgreco:interval={interval}", f"{sparsifier}:0.1+gravac:10,1000,window={window}"]
    return "dense", *(f"{sparsifier}:{1 / factor:g}" for factor in factors), *adaptive


def _published_gravac(data: Path) -> list[Training]:
    """Batches, learning rates, lengths and windows of the paper; models with its heads of 1000 classes. Its images were
    cropped and flipped at random, and its LSTM dropped 65 % out; ours are not."""
    configurations = _configurations("dgc", (10, 100, 1000), window=500, interval=500)

    def images(task: str, model: str, steps: int, weight_decay: float, drops: tuple[int, ...] = ()) -> Training:
        options = (f"model=published-{model}", "batch=32", f"folder={data / task}")
        return Training(
            task=task, options=options, steps=steps, configurations=configurations, lr=0.1,
            weight_decay=weight_decay, drops=drops,
        )  # fmt: skip

    lstm = ("model=lstm", "width=1500", "depth=2", "context=35", "batch=20", f"folder={data / 'ptb'}")
    return [
        images("cifar10", "resnet101", 42_000, 1e-4, (9_000, 14_000)),
        images("cifar100", "vgg16", 9_000, 5e-4),
        Training(
            task="ptb", options=lstm, steps=20_000, configurations=configurations, lr=0.1, weight_decay=1e-4
        ),
    ]  # fmt: skip


def _small_gravac() -> list[Training]:
    """A narrow ResNet, VGG and LSTM on what every machine has; Fashion-MNIST where it is installed."""
    configurations = _configurations("topk", (10, 100, 1000), window=8, interval=20)
    fashion = FashionMnist.folder.is_dir()
    resnet, vgg = ("model=resnet18", "width=8", "batch=16"), ("model=vgg16", "width=8", "batch=16")
    lstm = ("model=lstm", "width=128", "depth=2", "context=35", "batch=16")
    return [
        Training(task="digits", options=resnet, steps=300, configurations=configurations, drops=(200,)),
        Training(task="fashion-mnist" if fashion else "digits", options=vgg, steps=300, configurations=configurations),
        Training(task="lm", options=lstm, steps=300, configurations=configurations),
    ]
