"""A training that is described once: a task, how it is trained, and in which configurations."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradwire.lab.configuration import parse_all
from gradwire.lab.experiments.comparison import Comparison
from gradwire.lab.experiments.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Training:
    """One task, trained by one recipe in each configuration.

    Where `rate_per_rank`, the recipe's learning rate is for one rank, and as many times as large as there are ranks.
    `metric` is the held-out figure to look at, by default the task's. Of what was published, `files` says which data it
    takes, `published` what it reached, and `assumed` what had to be chosen because it was not stated.
    """

    task: str
    options: tuple[str, ...] = ()
    recipe: Recipe = field(default_factory=lambda: Recipe(steps=300))
    configurations: tuple[str, ...] = ()
    rate_per_rank: bool = False
    metric: str | None = None
    files: str = ""
    published: str = ""
    assumed: str = ""

    @property
    def summary(self) -> str:
        """What is trained, for how long, and what was reached."""
        length = f"{self.recipe.epochs} epochs" if self.recipe.epochs else f"{self.recipe.steps} steps"
        model = dict(option.split("=", 1) for option in self.options).get("model", "its model")
        told = f" Published: {self.published}." if self.published else ""
        return f"{model} on {self.task}, {length}.{told}"

    def on(self, data: Path) -> "Training":
        """With the files in `data`."""
        return self.altered(options=[f"folder={data}"])

    def altered(self, *, options: Sequence[str] = (), configurations: Sequence[str] = (), **recipe: Any) -> "Training":
        """With other options, configurations, and parts of the recipe, where they are not None; steps take the place
        of epochs, and epochs of steps."""
        merged = {option.partition("=")[0]: option for option in (*self.options, *options)}
        given = {name: value for name, value in recipe.items() if value is not None}
        if len(given.keys() & {"steps", "epochs"}) == 1:
            given = {"steps": None, "epochs": None} | given
        return replace(
            self,
            options=tuple(merged.values()),
            configurations=tuple(configurations) or self.configurations,
            recipe=replace(self.recipe, **given),
            rate_per_rank=self.rate_per_rank and "lr" not in given,
        )

    def comparison(self, ranks: int, seed: int = 0, checkpoint_every: int | None = None, shard: int = 1) -> Comparison:
        """To run on `ranks` ranks. Raises ValueError for data that is not there."""
        rate = self.recipe.lr * ranks if self.rate_per_rank and self.recipe.lr else self.recipe.lr
        told = [self.published, f"assumed: {self.assumed}" if self.assumed else ""]
        return Comparison(
            configurations=parse_all(self.configurations),
            task=self.task,
            options=list(self.options),
            ranks=ranks,
            recipe=replace(self.recipe, lr=rate),
            seed=seed,
            shard=shard,
            checkpoint_every=checkpoint_every,
            metric=self.metric,
            published="; ".join(filter(None, told)) or None,
        )
