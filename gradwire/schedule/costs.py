"""Costs: seconds, or bytes, against a size. They never fall, and are vectorised."""

from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]


class Cost(Protocol):
    """Sizes in, seconds (or bytes) out, elementwise; never falls as the size grows."""

    def __call__(self, size: Array, /) -> Array: ...


@dataclass(frozen=True)
class Affine:
    """`fixed` + `per_unit` · size: the alpha-beta model of a link."""

    fixed: float = 0.0
    per_unit: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.fixed < inf and 0 <= self.per_unit < inf):
            raise ValueError(f"{self} is no cost: costs are finite, 0 or more, and never fall")

    def __call__(self, size: Array, /) -> Array:
        return self.fixed + self.per_unit * np.asarray(size, float)

    def plus(self, fixed: float) -> "Affine":
        """The cost with `fixed` added for any size."""
        return Affine(self.fixed + fixed, self.per_unit)

    def times(self, factor: float) -> "Affine":
        """The cost times `factor` for any size."""
        return Affine(factor * self.fixed, factor * self.per_unit)

    def to_data(self) -> dict[str, Any]:
        """As plain values for JSON; `from_data` reads it back."""
        return {"fixed": self.fixed, "per_unit": self.per_unit}


@dataclass(frozen=True)
class CostTable:
    """Measured points: flat before the first, linear between them. Beyond the last it rises with the slope of the last
    two points, or of the first and the last, whichever is steeper: one slow measurement in between would make the last
    slope too flat. With a single point it rises with the slope from the origin to it."""

    sizes: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.sizes or len(self.sizes) != len(self.values):
            raise ValueError(
                f"a cost table needs as many values as sizes, not {len(self.values)} for {len(self.sizes)}"
            )
        # interpolation and the search's bounds count on it
        finite = np.isfinite(self.sizes).all() and np.isfinite(self.values).all()
        rising = finite and (np.diff(self.sizes) > 0).all() and (np.diff(self.values) >= 0).all()
        if not (rising and self.values[0] >= 0):
            raise ValueError("a cost table needs ascending sizes and finite values that never fall; see CostTable.of()")

    @classmethod
    def of(cls, sizes: Array, values: Array) -> "CostTable":
        """The nearest table that never falls: of measured points in any order, the running maximum."""
        order = np.argsort(sizes)
        rising = np.maximum.accumulate(np.maximum(np.asarray(values, float)[order], 0))
        return cls(tuple(np.asarray(sizes, float)[order].tolist()), tuple(rising.tolist()))

    def __call__(self, size: Array, /) -> Array:
        inside = np.interp(size, self.sizes, self.values)
        return inside + self.last_slope * np.maximum(np.asarray(size, float) - self.sizes[-1], 0)

    def plus(self, fixed: float) -> "CostTable":
        return CostTable(self.sizes, tuple(value + fixed for value in self.values))

    def times(self, factor: float) -> "CostTable":
        return CostTable(self.sizes, tuple(factor * value for value in self.values))

    def to_data(self) -> dict[str, Any]:
        return {"sizes": list(self.sizes), "values": list(self.values)}

    @property
    def last_slope(self) -> float:
        """By how much it rises per unit beyond the last size."""
        if len(self.sizes) == 1:
            return self.values[-1] / max(1.0, self.sizes[-1])
        return max((self.values[-1] - self.values[i]) / (self.sizes[-1] - self.sizes[i]) for i in (0, -2))


@dataclass(frozen=True)
class SumCost:
    """The sum of costs, each of the size times its factor: for collectives one after another."""

    parts: tuple[tuple[Cost, float], ...]

    def __call__(self, size: Array, /) -> Array:
        return sum((cost(size * factor) for cost, factor in self.parts), np.zeros(np.shape(size)))


@dataclass(frozen=True)
class ComposedCost:
    """`outer` of what `inner` gives: seconds of the bytes of some elements."""

    outer: Cost
    inner: Cost

    def __call__(self, size: Array, /) -> Array:
        return self.outer(self.inner(size))


ZERO_COST = Affine()


def theil_sen(sizes: Array, values: Array) -> Affine:
    """The line whose slope is the median over all pairs of points, so that up to 29 % of them may be outliers
    (Theil 1950, Sen 1968). Raises ValueError for fewer than two different sizes."""
    x, y = np.asarray(sizes, float), np.asarray(values, float)
    # the slopes of all pairs
    first, second = np.triu_indices(len(x), 1)
    differ = x[first] != x[second]
    if not differ.any():
        raise ValueError("a line needs measurements of at least two different sizes")
    slopes = (y[second] - y[first])[differ] / (x[second] - x[first])[differ]
    slope = max(0.0, float(np.median(slopes)))
    # a cost is never negative: not by its slope, nor at size 0
    return Affine(max(0.0, float(np.median(y - slope * x))), slope)


def from_data(data: dict[str, Any]) -> Affine | CostTable:
    """A cost whose `to_data` this is. Raises KeyError, TypeError or ValueError for anything else."""
    if "fixed" in data:
        return Affine(float(data["fixed"]), float(data["per_unit"]))
    return CostTable(tuple(map(float, data["sizes"])), tuple(map(float, data["values"])))
