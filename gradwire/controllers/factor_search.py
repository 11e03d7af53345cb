"""GraVAC's search for a compression factor."""

from dataclasses import dataclass, field
from math import isnan, nan
from typing import Literal

from gradwire.controllers.gain import Reading, delay_of, share_of

Scaling = Literal["exponential", "geometric"]
PAST_PEAK = 0.75
"""Gain per second below so much of the best is past the peak, not noise."""


def spaced(smallest: float, largest: float, scaling: Scaling) -> tuple[float, ...]:
    """Factors from the smallest to the largest: 2, 4, 16, 256 times the smallest, or each twice the one before."""
    factors = [smallest]
    while factors[-1] < largest:
        exponent = 2 ** (len(factors) - 1) if scaling == "exponential" else len(factors)
        factors.append(min(largest, smallest * 2.0**exponent))
    return tuple(factors)


@dataclass
class FactorSearch:
    """Search upwards through factors for the greatest gain per second."""

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
        """Gain per second of each factor, NaN where it was not tried."""
        return [self.reading.of(share) / seconds for share, seconds in zip(self.shares, self.seconds, strict=True)]

    def explore(self) -> None:
        """Begins anew at the smallest factor."""
        # nothing is known of any factor
        self.index, self.frozen = 0, False
        self.shares = [nan] * len(self.factors)
        self.seconds = [nan] * len(self.factors)

    def explore_larger(self) -> None:
        """Begins anew at the factor in force. Measurements of smaller ones stay."""
        self.frozen = False
        larger = len(self.factors) - self.index - 1
        self.shares[self.index :] = [nan] * (1 + larger)
        self.seconds[self.index + 1 :] = [nan] * larger

    def step_back(self) -> None:
        """One factor down, and stays there."""
        self.index, self.frozen = max(0, self.index - 1), True

    def judge(self, share: float, seconds: float) -> str:
        """Moves on after a window in which the factor in force had this share and steps took `seconds`; returns the
        reason."""
        # a gain that is too small ends the search
        share = min(share, self.most(self.index))
        if self.reading.of(share) < self.least_gain:
            return self._freeze(f"the gain at {self.factor:g}x is too small")
        # gain per second of this factor, beside those tried before
        self._time(seconds)
        self.shares[self.index] = share
        throughput = self.throughputs[self.index]
        best, *others = sorted((t for t in self.throughputs if not isnan(t)), reverse=True)
        # stop at the peak
        if others and best - others[0] <= self.tolerance * others[0]:
            return self._freeze("saturated")
        if throughput < PAST_PEAK * best:
            return self._freeze("past the peak")
        if self.index == len(self.factors) - 1:
            return self._freeze("all were tried")
        if self.reading.of(self.most(self.index + 1)) < self.least_gain:
            return self._freeze(f"{self.factors[self.index + 1]:g}x would gain too little")
        # else scale up
        self.index += 1
        return f"scale up to {self.factor:g}x"

    def reconsider(self, share: float) -> bool:
        """Steps back to a smaller factor where that is the better one, now that `share` is sent; returns whether. A
        residual may take longer than a window to fill, and the gain is less once it is full."""
        # gain per second of this factor, now, and of smaller ones, as measured
        before = self.index
        self.shares[before] = min(share, self.most(before))
        now, *smaller = self.throughputs[before::-1]
        too_small = self.reading.of(share) < self.least_gain
        # settle again where one of them is better
        if any(too_small or now < t * (1 - self.tolerance) for t in smaller if not isnan(t)):
            self._stay(before - 1 if too_small else before)
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

    def _time(self, seconds: float) -> None:
        """Notes the seconds of a step with the factor in force; where they have grown since it was last tried, those of
        smaller factors grow in proportion."""
        slowdown = seconds / self.seconds[self.index]
        if not isnan(slowdown):
            self.seconds[: self.index] = [known * slowdown for known in self.seconds[: self.index]]
        self.seconds[self.index] = seconds

    def _freeze(self, reason: str) -> str:
        self._stay(len(self.factors) - 1)
        return f"{reason}: stay at {self.factor:g}x"

    def _stay(self, largest: int) -> None:
        """Settles on the best factor up to the index `largest`; within the tolerance on the smallest."""
        tried = {index: t for index, t in enumerate(self.throughputs[: largest + 1]) if not isnan(t)}
        best = max(tried.values(), default=0.0)
        # the smallest factor within the tolerance of the best
        near = [index for index, throughput in tried.items() if throughput >= best * (1 - self.tolerance)]
        self.index, self.frozen = min(near, default=0), True
