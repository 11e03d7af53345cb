"""The hours that a training takes or, where a GPU-hour has a price, its cost."""

from dataclasses import dataclass

from gradwire.report.text_table import figure


@dataclass(frozen=True)
class TrainingCost:
    """Of so many steps on so many GPUs. Raises ValueError for numbers that cannot be."""

    steps: int
    gpus: int
    price: float | None = None
    """Of an hour of one GPU, in any currency."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a training of {self.steps} steps costs nothing: give 1 or more --training-steps")
        if self.price is not None and not 0 <= self.price < float("inf"):
            raise ValueError(f"{self.price} is no price of a GPU-hour: give 0 or more, such as --price 2.5")

    @property
    def heading(self) -> str:
        return f"{'hours' if self.price is None else 'cost'} of {self.steps:,} steps"

    def at(self, step_ms: float) -> str:
        """With steps of so many milliseconds."""
        hours = self.steps * step_ms / 3.6e6
        return figure(hours if self.price is None else hours * self.gpus * self.price)
