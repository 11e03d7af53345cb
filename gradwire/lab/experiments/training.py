"""Descriptions of trainings: a task, its recipe, and configurations."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradwire.lab.configuration import parse_all
from gradwire.lab.experiments.comparison import Comparison
from gradwire.lab.experiments.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Training:
    """One task, trained by one recipe in each configuration."""

    task: str
    """A task's name."""
    options: tuple[str, ...] = ()
    """Its options, name=value."""
    recipe: Recipe = field(default_factory=lambda: Recipe(steps=300))
    configurations: tuple[str, ...] = ()
    rate_per_rank: bool = False
    """Whether the learning rate is multiplied by the number of ranks."""
    metric: str | None = None
    """The held-out figure to report, by default the task's."""
    files: str = ""
    """The data set's files, of a published training."""
    published: str = ""
    """Results of the publication."""
    assumed: str = ""
    """Parts that the publication does not state."""
    from_weights: bool = False
    """Whether the publication began with trained weights, which `--pretrained` names here."""

    @property
    def summary(self) -> str:
        """Model, task, length, published results and whether it needs weights, in sentences."""
        length = f"{self.recipe.epochs} epochs" if self.recipe.epochs else f"{self.recipe.steps} steps"
        model = dict(option.split("=", 1) for option in self.options).get("model", "its model")
        results = f" Published: {self.published}." if self.published else ""
        weights = " Begins with trained weights: give --pretrained." if self.from_weights else ""
        return f"{model} on {self.task}, {length}.{results}{weights}"

    def on(self, data: Path) -> "Training":
        """This training on the files in `data`."""
        return self.altered(options=[f"folder={data}"])

    def altered(self, *, options: Sequence[str] = (), configurations: Sequence[str] = (), **recipe: Any) -> "Training":
        """This training with other options, configurations, and parts of the recipe, where they are not None; steps
        take the place of epochs, and epochs of steps, of which drops and warm-up then have the same share."""
        # an option that is given again replaces the first
        named = {option.partition("=")[0]: option for option in options}
        merged = {option.partition("=")[0]: option for option in self.options} | named
        # weights come with their tokenizer
        if "pretrained" in named and "tokenizer" not in named:
            merged.pop("tokenizer", None)
        given = {name: value for name, value in recipe.items() if value is not None}
        if len(units := given.keys() & {"steps", "epochs"}) == 1:
            (unit,) = units
            given = self.recipe.of_length(unit, given[unit]) | given
        # a learning rate of one's own does not grow with the ranks
        return replace(
            self,
            options=tuple(merged.values()),
            configurations=tuple(configurations) or self.configurations,
            recipe=replace(self.recipe, **given),
            rate_per_rank=self.rate_per_rank and "lr" not in given,
        )

    def comparison(self, ranks: int, seed: int = 0, checkpoint_every: int | None = None, shard: int = 1) -> Comparison:
        """The comparison on `ranks` ranks. Raises ValueError for data that is not there."""
        # a rate that grows with the ranks
        rate = self.recipe.lr * ranks if self.rate_per_rank and self.recipe.lr else self.recipe.lr
        notes = [self.published, f"assumed: {self.assumed}" if self.assumed else ""]
        if self.from_weights and not any(option.startswith("pretrained=") for option in self.options):
            notes.append("published from trained weights, here from random ones: give --pretrained")
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
            published="; ".join(filter(None, notes)) or None,
        )
