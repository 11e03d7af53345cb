"""Measurements of ranks as JSON lines, which rank 0 writes while they run."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, field
from operator import add, sub
from pathlib import Path
from statistics import quantiles
from typing import Any, Self

from gradwire.runtime.stats import Stats


@dataclass(frozen=True)
class Totals:
    """Bytes sent and seconds spent, per rank (the mean over the ranks), since the first step.

    The seconds are those of `gradwire.Stats`, 0 without Gradwire.
    """

    wire_bytes: float
    """Counted at the transport; for plain DDP those of its ring all-reduce."""
    dense_bytes: float
    """Of plain DDP in as many steps."""
    interface_bytes: float | None
    """With headers; known on the emulated network alone."""
    encode_s: float
    wire_s: float
    decode_s: float
    wait_s: float

    @property
    def ratio(self) -> float:
        """Bytes of plain DDP over bytes sent."""
        return self.dense_bytes / self.wire_bytes if self.wire_bytes else float("inf")

    @classmethod
    def of(cls, stats: Stats, interface_bytes: int | None) -> Self:
        seconds = {name: getattr(stats, name) for name in ("encode_s", "wire_s", "decode_s", "wait_s")}
        return cls(stats.wire_bytes, stats.dense_bytes, interface_bytes, **seconds)

    def __add__(self, other: "Totals") -> "Totals":
        return self._combined(add, other)

    def __sub__(self, other: "Totals") -> "Totals":
        return self._combined(sub, other)

    def _combined(self, operation: Callable[[float, float], float], other: "Totals") -> "Totals":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Totals(*(None if a is None else operation(a, b) for a, b in pairs))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Record:
    """State of a training run after `step`."""

    step: int
    """Steps made so far."""
    wall_s: float
    """Rank 0's time in steps: evaluating and recording stop the clock."""
    loss: float
    """Mean training loss over ranks and steps since the last record."""
    totals: Totals
    step_ms: list[float] = field(default_factory=list)
    """Of the steps since the last record, or mean ones of the rounds that ended."""
    held_out: dict[str, float] | None = None
    """Loss, accuracy and other figures, where they were evaluated."""
    replicas: str | None = None
    """Hash of the parameters, the same on all ranks, in the last record."""
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """A controller's, since the last record."""

    def to_line(self) -> dict[str, Any]:
        flat = asdict(self)
        return flat | flat.pop("totals")

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> Self:
        rest = dict(line)
        totals = Totals(**{name: rest.pop(name) for name in Totals.__dataclass_fields__})
        return cls(**rest, totals=totals)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    """Of the samples."""
    low: float
    """The first quartile."""
    high: float
    """The third quartile."""

    @classmethod
    def of(cls, samples: list[float]) -> Self:
        # one sample is its own quartile
        low, median, high = quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
        return cls(median, low, high)


TRAINING_LOSS = "training loss"
"""The figure that stands for a held-out one where nothing is held out."""

LARGER_IS_BETTER = ("accuracy", "top5", "exact_match", "f1")
"""The figures of which more is better; of all others it is less."""


def shown(metric: str) -> str:
    """A figure's name in reports."""
    return metric if metric == TRAINING_LOSS else f"held-out {metric.replace('_', ' ')}"


@dataclass
class Run:
    """One configuration's training run so far."""

    configuration: str
    """As text."""
    records: list[Record] = field(default_factory=list)

    @property
    def last(self) -> Record:
        return self.records[-1]

    @property
    def evaluated(self) -> list[Record]:
        return [record for record in self.records if record.held_out]

    @property
    def decisions(self) -> list[dict[str, Any]]:
        return [decision for record in self.records for decision in record.decisions]

    def step_ms(self) -> Spread:
        """Spread of all steps but the first tenth, where buffers are made and plans settle."""
        samples = [duration for record in self.records for duration in record.step_ms]
        return Spread.of(samples[len(samples) // 10 :])


def append(path: Path, line: dict[str, Any]) -> None:
    """Adds one JSON object to a file of them."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """The complete JSON lines after byte `offset`, each with the offset that follows it."""
    if not path.exists():
        return
    # whole lines only: rank 0 may be writing the last one
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                # it is being written: what comes next is not a line of its own
                return
            offset += len(line)
            yield json.loads(line), offset
