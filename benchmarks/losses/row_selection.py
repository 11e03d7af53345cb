"""Selection by workers: the largest elements of each row, cut in several ways, or top-k of as many bytes."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from gradwire.ops.entries import Entries

VALUE_AND_PLACE = 6
"""Bytes of an element of a row."""


@dataclass(frozen=True)
class Run:
    """How matrices are sent."""

    rows: bool = True
    """The largest elements of each row; else the largest of all, in as many bytes."""
    cut: str = "longer"
    """The way in which `rows_of` cuts a weight into rows."""
    ratio: float = 0.01
    memory: str = "residual"
    """Or `dgc`."""
    turns: str = ""
    """Every other step the largest of all: `exact`, or by a threshold that is `reused`."""

    @property
    def beside(self) -> "Run":
        """Top-k of as many bytes."""
        return replace(self, rows=False, turns="")


def rows_of(shape: torch.Size, cut: str) -> Tensor:
    """The places of a weight's elements, (rows, length). Rows of (outputs, all else) run along the `longer` axis, as
    the package has it, or the `shorter`; in ADTopk's `code` along the second axis of the weight as it is."""
    at = torch.arange(shape.numel()).view(shape)
    if cut == "tensor":
        return at.view(1, -1)
    if cut == "code":
        return at.movedim(1, -1).flatten(0, -2)
    matrix = at.flatten(1)
    return matrix if (matrix.shape[1] >= matrix.shape[0]) == (cut == "longer") else matrix.T


def count(run: Run, length: int) -> int:
    """How many elements of a row are sent."""
    rounded = round if run.cut in ("longer", "shorter") else int
    return max(1, rounded(run.ratio * length))


class Selection:
    """Which elements of a vector (n,), the matrices one after another, a worker sends."""

    def __init__(self, run: Run, shapes: list[torch.Size]) -> None:
        *starts, self.n = accumulate((shape.numel() for shape in shapes), initial=0)
        self.run, self.threshold, self.turn = run, 0.0, 0
        self.rows = [start + rows_of(shape, run.cut) for start, shape in zip(starts, shapes, strict=True)]
        self.sent = sum(len(rows) * count(run, rows.shape[1]) for rows in self.rows)
        """How many elements rows send."""

    def __call__(self, x: Tensor, step: int) -> Tensor:
        """The places of the elements to send at a step."""
        if self.run.ratio == 1:
            return torch.arange(self.n)
        magnitude, run = x.abs(), self.run
        if run.rows and not (run.turns and step % 2):
            largest = [magnitude[rows].topk(count(run, rows.shape[1]), 1).indices for rows in self.rows]
            return torch.cat([rows.gather(1, at).flatten() for rows, at in zip(self.rows, largest, strict=True)])
        return self._largest(magnitude)

    def _largest(self, magnitude: Tensor) -> Tensor:
        # as many as fit into the bytes of rows
        size = VALUE_AND_PLACE * self.sent
        k = bisect_right(range(1, self.n + 1), size, key=lambda k: Entries(self.n, k, 32).nbytes)
        # a threshold serves five turns, while about k elements pass it
        self.turn += 1
        if self.run.turns == "reused" and self.turn % 5 != 1:
            passing = (magnitude > self.threshold).nonzero().flatten()
            if 0.7 * k <= len(passing) <= 2 * k:
                return passing[magnitude[passing].topk(min(k, len(passing))).indices]
        values, at = magnitude.topk(k)
        self.threshold = float(values[-1])
        return at


class Worker:
    """A worker's memory: what is `left` (n,), and DGC's velocity; and what it `sent` last (n,)."""

    def __init__(self, select: Selection) -> None:
        self.select = select
        self.left, self.velocity, self.sent = torch.zeros(3, select.n).unbind()

    def send(self, gradient: Tensor, step: int) -> Tensor:
        """Adds a gradient (n,) to the memory, and takes out the elements to send: a vector (n,), zero elsewhere."""
        dgc = self.select.run.memory == "dgc"
        self.left += self.velocity.mul_(0.9).add_(gradient) if dgc else gradient
        at = self.select(self.left, step)
        self.sent = torch.zeros_like(self.left)
        self.sent[at] = self.left[at]
        self.left[at] = self.velocity[at] = 0.0
        return self.sent
