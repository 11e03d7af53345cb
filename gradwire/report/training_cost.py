"""The hours that a training takes or, where a GPU-hour has a price, its cost."""

from dataclasses import dataclass
from typing import Self

from gradwire.report.text_table import figure


@dataclass(frozen=True)
class TrainingCost:
    """Of so many steps. Raises ValueError for numbers that cannot be."""

    steps: int
    price: float | None = None
    """Of an hour of one GPU, in any currency."""

    @classmethod
    def of(cls, training_steps: int | None, price: float | None, device: str) -> Self | None:
        """That of these options, None without steps. Raises ValueError for a price without steps, and for that of a GPU
        where the device that computes is a CPU."""
        if price is not None and training_steps is None:
            raise ValueError("--price is for the steps of a training: give --training-steps as well")
        if training_steps is None:
            return None
        cost = cls(training_steps, price)
        if price is not None and device == "cpu":
            raise ValueError("--price is of an hour of a GPU, but a CPU computes: give --device cuda, or no --price")
        return cost

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a training of {self.steps} steps costs nothing: give 1 or more --training-steps")
        if self.price is not None and not 0 <= self.price < float("inf"):
            raise ValueError(f"{self.price} is no price of a GPU-hour: give 0 or more, such as --price 2.5")

    @property
    def heading(self) -> str:
        return f"{self._what} of {self.steps:,} steps"

    @property
    def progress_heading(self) -> str:
        """The heading where there are as many steps as make the progress of `steps` dense ones."""
        return f"{self._what} of {self.steps:,} dense steps' progress"

    @property
    def _what(self) -> str:
        return "hours" if self.price is None else "cost"

    def at(self, step_ms: float, gpus: int, efficiency: float = 1.0) -> str:
        """With steps of so many milliseconds on so many GPUs. `efficiency` is a step's progress in dense steps, so that
        more steps are needed where it is below 1; "never" where they make none."""
        if not efficiency:
            return "never"
        hours = self.steps * step_ms / efficiency / 3.6e6
        return figure(hours if self.price is None else hours * gpus * self.price)
