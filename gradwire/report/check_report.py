"""Predicted steps beside those that were played."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.report.text_table import Columns, TextTable, figure, times
from gradwire.report.training_cost import TrainingCost


@dataclass(frozen=True)
class Checked:
    """A step of one way to send gradients."""

    way: str
    predicted_ms: float
    played_ms: float
    """The median."""

    @property
    def ratio(self) -> float:
        """Of the played step to the predicted one."""
        return self.played_ms / self.predicted_ms


def table(rows: Sequence[Checked], gpus: int, cost: TrainingCost | None = None) -> TextTable:
    """A row for each way and, where it is asked for, what a training on so many GPUs costs, as played."""
    columns: Columns[Checked] = {
        "sent by": lambda row: row.way,
        "predicted, ms": lambda row: figure(row.predicted_ms),
        "played, ms": lambda row: figure(row.played_ms),
        "played over predicted": lambda row: times(row.ratio),
        **({cost.heading: lambda row: cost.at(row.played_ms, gpus)} if cost else {}),
    }
    return TextTable.of("One step", rows, columns)


def verdict(rows: Sequence[Checked]) -> str:
    """How far the two are apart, in a sentence."""
    ratios = [row.ratio for row in rows]
    return f"Played steps take {times(min(ratios))} to {times(max(ratios))} of the predicted time."
