"""Windows of steps with the same compression, summed over steps and ranks."""

from dataclasses import dataclass, field
from math import isfinite, nan, sqrt
from statistics import fmean, median, pstdev
from typing import NamedTuple

import torch
from torch import Tensor


class Observed(NamedTuple):
    """One step's numbers, as means over the ranks, so that a resume on another number of ranks can use them."""

    whole: float
    """The norm of gradient and residual."""
    held: float
    """The norm of the elements that the factor selects."""
    sent: float
    """The norm of the elements that are sent."""
    sent_elements: float
    """How many elements are sent."""
    elements: float
    """How many there are."""
    seconds: float
    """Since the last step."""
    learning_rate: float
    loss: float
    losses: float
    """The share of ranks that reported a loss."""


class Summary(NamedTuple):
    """A window's averages."""

    held: float
    """As a share of `whole`."""
    sent: float
    """As a share of `whole`."""
    factor: float
    """All elements over elements sent."""
    seconds: float
    """Of the median step."""
    loss: float
    """The mean, NaN where none was reported."""
    loss_error: float
    """Standard error of the mean."""


@dataclass
class Window:
    """The steps since a change. The first quarter is left out of averages, in which residuals and buffers settle."""

    steps: int
    """Of a full window."""
    rows: list[Observed] = field(default_factory=list)
    """A row for each step so far."""

    def add(self, row: Observed) -> None:
        """Adds a step, unless all ranks skip it."""
        if all(isfinite(number) for number in row):
            self.rows.append(row)

    @property
    def full(self) -> bool:
        """Whether it has all its steps."""
        return len(self.rows) >= self.steps

    def latest_seconds(self, steps: int) -> float:
        """The median of the last `steps`, NaN before there are so many."""
        return median(row.seconds for row in self.rows[-steps:]) if len(self.rows) >= steps else nan

    def latest_factor(self, steps: int) -> float:
        """How many times fewer elements the last `steps` sent than there are."""
        sent, elements = (sum(each) for each in zip(*(row[3:5] for row in self.rows[-steps:]), strict=True))
        return elements / sent if sent else 1.0

    def summarize(self) -> Summary:
        """The window's averages: sums over steps before any division, so that steps count by their norms."""
        # leave out steps that settle, then sum
        rows = self.rows[self.steps // 4 :]
        whole, held, sent, sent_elements, elements, *_ = map(sum, zip(*rows, strict=True))
        seconds = [row.seconds for row in rows if row.seconds > 0]
        losses = [row.loss / row.losses for row in rows if row.losses]
        return Summary(
            *((part / whole if whole else 1.0) for part in (held, sent)),
            factor=elements / sent_elements if sent_elements else 1.0,
            seconds=median(seconds) if seconds else 1e-9,
            loss=fmean(losses) if losses else nan,
            loss_error=pstdev(losses) / sqrt(len(losses)) if losses else 0.0,
        )

    def to_tensor(self) -> Tensor:
        """(steps so far, numbers) float64."""
        return torch.tensor(self.rows, dtype=torch.float64, device="cpu").reshape(-1, len(Observed._fields))

    def load(self, rows: Tensor) -> None:
        """Loads what `to_tensor` returned."""
        self.rows = [Observed(*row) for row in rows.tolist()]
