"""The search for a factor: which is in force, and what those that were tried have shown."""

from dataclasses import dataclass, field
from math import isnan, nan
from typing import Literal, Self

Scaling = Literal["exponential", "geometric"]
PAST_PEAK = 0.75


@dataclass
class Factors:
    """Goes up through `factors`, from `index` on, until one is found; then it is `frozen`. `smaller` is what a step
    falls back to. `throughputs`, and `seconds` a step, are NaN where nothing was tried."""

    factors: tuple[float, ...]
    tolerance: float
    index: int = 0
    least: int = 0
    frozen: bool = False
    throughputs: list[float] = field(init=False)
    seconds: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.explore(0)

    @classmethod
    def between(cls, smallest: float, largest: float, scaling: Scaling, tolerance: float) -> Self:
        """From the smallest, times 2, 4, 16, 256 of it or times 2 of the one before, to the largest."""
        factors = [smallest]
        while factors[-1] < largest:
            exponent = 2 ** (len(factors) - 1) if scaling == "exponential" else len(factors)
            factors.append(min(largest, smallest * 2.0**exponent))
        return cls(tuple(factors), tolerance)

    @property
    def factor(self) -> float:
        return self.factors[self.index]

    @property
    def smaller(self) -> float:
        return self.factors[min(self.least, self.index)]

    def explore(self, index: int) -> None:
        """Begins anew at `index`."""
        self.index, self.least, self.frozen = index, 0, False
        self.throughputs = [nan] * len(self.factors)
        self.seconds = [nan] * len(self.factors)

    def step_back(self) -> None:
        """One factor down, and stays there."""
        self.index, self.frozen = max(0, self.index - 1), True

    def judge(self, gains: tuple[float, float], throughput: float, least_gain: float) -> str:
        """What follows from a window in which the factor had this throughput, and the smaller one and itself these
        gains; in words."""
        smaller, larger = gains
        if larger < least_gain:
            return self._freeze(f"the gain at {self.factor:g}x is too small")
        self.throughputs[self.index] = throughput
        if smaller - larger <= self.tolerance * smaller:
            self.least = self.index
        best, *others = sorted((t for t in self.throughputs if not isnan(t)), reverse=True)
        if others and best - others[0] <= self.tolerance * others[0]:
            return self._freeze("saturated")
        if throughput < PAST_PEAK * best:
            return self._freeze("past the peak")
        if self.index == len(self.factors) - 1:
            return self._freeze("all were tried")
        self.index += 1
        return f"scale up to {self.factor:g}x"

    def reconsider(self, gain: float) -> bool:
        """Whether a smaller factor is the better one, now that the one in force gains so much; then that one is in
        force. A residual may take longer than a window to fill, and the gain is less once it is full."""
        before = self.index
        self.throughputs[before] = gain / self.seconds[before]
        if any(self.throughputs[before] < t * (1 - self.tolerance) for t in self.throughputs[:before]):
            self._stay(before)
        return self.index < before

    def _freeze(self, reason: str) -> str:
        self._stay(len(self.factors) - 1)
        return f"{reason}: stay at {self.factor:g}x"

    def _stay(self, largest: int) -> None:
        """Settles on the best up to the index `largest`; of those within the tolerance on the smallest."""
        tried = [index for index in range(largest + 1) if not isnan(self.throughputs[index])]
        best = max((self.throughputs[index] for index in tried), default=0.0)
        near = [index for index in tried if self.throughputs[index] >= best * (1 - self.tolerance)]
        self.index, self.frozen = min(near, default=0), True
