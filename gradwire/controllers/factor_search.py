"""GraVAC's search for a compression factor."""

from dataclasses import dataclass, field
from math import isnan, log, nan, sqrt
from typing import Literal

from gradwire.controllers.gain import Reading, delay_of, share_of

Scaling = Literal["exponential", "geometric"]
DELAY_PER_FACTOR = 0.25
"""Steps that an element waits for each time that a factor sends less: 0.21 to 0.32 on three tasks, from 40x to 1000x
(benchmarks/results/delays.json)."""


def spaced(smallest: float, largest: float, scaling: Scaling) -> tuple[float, ...]:
    """Factors from the smallest to the largest: 2, 4, 16, 256 times the smallest, or each twice the one before."""
    factors = [smallest]
    while factors[-1] < largest:
        exponent = 2 ** (len(factors) - 1) if scaling == "exponential" else len(factors)
        factors.append(min(largest, smallest * 2.0**exponent))
    return tuple(factors)


@dataclass
class FactorSearch:
    """Hill climbing over factors for the greatest gain per second: tries the neighbours of the best factor, the larger
    one first, until both were tried."""

    factors: tuple[float, ...]
    """Ascending."""
    tolerance: float
    """Factors whose gain per second differs by so much count as equal."""
    reading: Reading
    least_gain: float
    """Factors with less gain are not used."""
    index: int = 0
    """Of the factor in force."""
    frozen: bool = False
    """The search has ended."""
    shares: list[float] = field(init=False)
    """The part of gradient and residual that each factor sends; NaN before it was tried."""
    seconds: list[float] = field(init=False)
    """Of a step with each factor; NaN before it was tried."""

    def __post_init__(self) -> None:
        self.index = self._middle()
        self.explore()

    @property
    def factor(self) -> float:
        """The factor in force."""
        return self.factors[self.index]

    @property
    def smaller(self) -> float:
        """The factor of groups whose gain is too small."""
        return self.factors[max(0, self.index - 1)]

    @property
    def throughputs(self) -> list[float]:
        """Gain per second of each factor, 0 where it gains too little, NaN where it was not tried."""
        gains = [self.reading.of(share) for share in self.shares]
        return [
            0.0 if gain < self.least_gain else gain / seconds for gain, seconds in zip(gains, self.seconds, strict=True)
        ]

    def explore(self) -> None:
        """Begins anew at the factor in force."""
        self.frozen = False
        self.shares = [nan] * len(self.factors)
        self.seconds = [nan] * len(self.factors)

    def step_back(self) -> None:
        """One factor down, and stays there."""
        self.index, self.frozen = max(0, self.index - 1), True

    def judge(self, share: float, seconds: float) -> str:
        """Moves on after a window in which the factor in force had this share and steps took `seconds`; returns the
        reason."""
        # gain per second of this factor
        self.shares[self.index], self.seconds[self.index] = min(share, self.most(self.index)), seconds
        reason = "" if self.throughputs[self.index] else f"{self.factor:g}x gains too little: "
        # the larger neighbour of the best factor, then the smaller one, until both were tried
        best = self._best(len(self.factors) - 1)
        promising = [index for index in (best + 1, best - 1) if self._promises(index)]
        self.frozen, self.index = not promising, promising[0] if promising else best
        return f"{reason}{'stay at' if self.frozen else 'try'} {self.factor:g}x"

    def reconsider(self, share: float) -> bool:
        """Steps back to a smaller factor where that is the better one, now that `share` is sent; returns whether. A
        residual may take longer than a window to fill, and the gain is less once it is full."""
        before = self.index
        self.shares[before] = min(share, self.most(before))
        self.index = self._best(before)
        # it gains too little, and no smaller one was tried: search on below
        if self.index == before > 0 and not self.throughputs[before]:
            self.index, self.frozen = before - 1, False
        return self.index < before

    def most(self, index: int) -> float:
        """An upper bound on the share of gradient and residual that a factor will send once residuals are full.

        With fewer elements a step, elements wait longer in the residual, at least in proportion. A window is too short
        to show that, so the bound follows from the next smaller factor that was tried."""
        tried = [i for i in range(index) if not isnan(self.shares[i])]
        if not tried:
            return 1.0
        # the delay grows in proportion to the factor
        return share_of(delay_of(self.shares[tried[-1]]) * self.factors[index] / self.factors[tried[-1]])

    def _promises(self, index: int) -> bool:
        """Whether there is such a factor that was not tried, and may gain enough."""
        untried = 0 <= index < len(self.factors) and isnan(self.shares[index])
        return untried and self.reading.of(self.most(index)) >= self.least_gain

    def _best(self, largest: int) -> int:
        """The factor of the greatest gain per second of those tried up to the index `largest`; of those within the
        tolerance the smallest."""
        tried = {index: t for index, t in enumerate(self.throughputs[: largest + 1]) if not isnan(t)}
        best = max(tried.values())
        return min(index for index, throughput in tried.items() if throughput >= best * (1 - self.tolerance))

    def _middle(self) -> int:
        """The factor to begin with: nearest to the geometric mean of the smallest one and the largest whose gain is
        likely to be enough."""
        likely = [f for f in self.factors if self.reading.of(share_of(DELAY_PER_FACTOR * f)) >= self.least_gain]
        middle = sqrt(self.factors[0] * max(likely, default=self.factors[0]))
        return min(range(len(self.factors)), key=lambda index: abs(log(self.factors[index] / middle)))
