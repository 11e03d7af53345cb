"""Statistics of |x| for threshold estimates, tile by tile on a CPU."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.tiles import TILE, tile_bounds
from gradwire.ops.workspace import Workspace

Number = TypeVar("Number", float, Tensor)
LARGEST = float(np.finfo(np.float32).max)
LEAST, MOST = 0.7, 2.0
"""A good estimate of the k-th largest magnitude is passed by between LEAST·k and MOST·k elements."""


@dataclass(frozen=True)
class Tail(Generic[Number]):
    """Statistics of the excess of |x| over a threshold; on a GPU tensors."""

    count: Number
    """Elements that exceed it."""
    mean: Number
    variance: Number
    log: Number
    """The mean logarithm."""


def count(x: Tensor, threshold: float, scratch: Workspace) -> int:
    """The number of elements of x (n,) with |x| ≥ threshold."""
    limit = np.float32(min(threshold, LARGEST))
    return sum(int(np.count_nonzero(np.greater_equal(part, limit))) for part in _tiles(x, scratch))


@np.errstate(over="ignore")
def magnitude_sum(x: Tensor, scratch: Workspace) -> Tensor:
    """The sum of |x|, () on the device of x."""
    if x.device.type != "cpu":
        return torch.linalg.vector_norm(x, 1)  # on a CPU slower than tile by tile
    return torch.tensor(sum(float(part.sum()) for part in _tiles(x, scratch)), dtype=torch.float32, device="cpu")


@np.errstate(over="ignore")
def mean_and_peak(x: Tensor, scratch: Workspace) -> tuple[float, float]:
    """The mean and the largest |x|."""
    total = peak = 0.0
    for part in _tiles(x, scratch):
        total += float(part.sum())
        peak = max(peak, float(part.max()))
    return total / len(x), peak


@np.errstate(over="ignore", invalid="ignore")
def tail(x: Tensor, threshold: float, scratch: Workspace, *, logs: bool = False) -> Tail[float]:
    """Statistics of how x (n,) exceeds the threshold; the mean logarithm only where `logs`, for it costs most."""
    number = 0
    total = 0.0
    squares = 0.0
    log = 0.0
    # sums over all tiles
    for excess in _tiles(x, scratch):
        np.maximum(np.subtract(excess, np.float32(threshold), out=excess), 0, out=excess)
        number += int(np.count_nonzero(excess))
        total += float(excess.sum())
        squares += float(np.dot(excess, excess))
        if logs:
            excess[excess == 0] = 1  # counts for nothing
            log += float(np.log(excess, out=excess).sum())
    # moments
    if not number:
        return Tail(0, 0.0, 0.0, 0.0)
    mean = total / number
    return Tail(number, mean, squares / number - mean * mean, log / number)


def _tiles(x: Tensor, scratch: Workspace) -> Iterator[np.ndarray]:
    """|x|, a tile at a time in the same buffer."""
    values, magnitude = x.numpy(), scratch.tensor("magnitude", (TILE,)).numpy()
    for start, end in tile_bounds(x):
        yield np.abs(values[start:end], out=magnitude[: end - start])
