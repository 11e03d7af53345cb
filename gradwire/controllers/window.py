"""Steps of the same compression, summed up: what ranks observed of them together."""

from dataclasses import dataclass, field
from math import isfinite, nan, sqrt
from statistics import fmean, median, pstdev
from typing import NamedTuple

import torch
from torch import Tensor


class Observed(NamedTuple):
    """What ranks add up in a step: norms of gradient and residual (`whole`), of what the factor selects of them
    (`held`) and of what is sent; the elements sent; all elements; the seconds since the last step, the learning rate,
    the loss, and of how many ranks losses are."""

    whole: float
    held: float
    sent: float
    sent_elements: float
    elements: float
    seconds: float
    learning_rate: float
    loss: float
    losses: float


class Summary(NamedTuple):
    """A window's shares of `whole` that were held and sent, the factor achieved, the median step's seconds, and the
    mean loss, NaN where none was told, with its standard error."""

    held: float
    sent: float
    factor: float
    seconds: float
    loss: float
    loss_error: float


@dataclass
class Window:
    """The steps since a change. The first quarter of `steps` is left out: residuals and buffers settle."""

    steps: int
    rows: list[Observed] = field(default_factory=list)

    def add(self, row: Observed) -> None:
        """One more step, unless all ranks skip it."""
        if all(isfinite(number) for number in row):
            self.rows.append(row)

    @property
    def full(self) -> bool:
        return len(self.rows) >= self.steps

    def latest_seconds(self, ranks: int) -> float:
        """The median step of the last half window, NaN before that is over."""
        half = self.steps // 2
        return median(row.seconds / ranks for row in self.rows[-half:]) if len(self.rows) >= half else nan

    def summarize(self, ranks: int) -> Summary:
        """Sums over steps before any division: a step counts for what it holds."""
        rows = self.rows[self.steps // 4 :]
        whole, held, sent, sent_elements, elements, *_ = map(sum, zip(*rows, strict=True))
        seconds = [row.seconds / ranks for row in rows if row.seconds > 0]
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
        """Takes over what `to_tensor` returned."""
        self.rows = [Observed(*row) for row in rows.tolist()]
