"""GraVAC's search for a compression factor."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan, log, nan, sqrt
from statistics import fmean, linear_regression
from typing import Literal

from gradwire.controllers.gain import Reading, delay_of, share_of

Scaling = Literal["fine", "geometric", "exponential"]
PER_DECADE = 10
"""Factors from one to ten times as much, where scaling is "fine"."""
DELAY_PER_FACTOR = 0.25
"""Steps that an element waits for each time that a factor sends less: 0.21 to 0.32 on three tasks, from 40x to 1000x
(benchmarks/results/delays.json)."""


def spaced(smallest: float, largest: float, scaling: Scaling) -> tuple[float, ...]:
    """Factors from the smallest to the largest: ten for each power of ten, or each twice the one before, or 2, 4, 16,
    256 times the smallest."""
    factors = [smallest]
    while factors[-1] < largest:
        following = smallest * _scale(len(factors), scaling)
        # a factor within 10 % of the largest is left out
        factors.append(following if following < 0.9 * largest else largest)
    return tuple(factors)


def check_factors(saved: Sequence[float], own: Sequence[float], settings: str) -> None:
    """Raises ValueError for a state that was `saved` with other factors, which follow from these `settings`."""
    if list(saved) != list(own):
        raise ValueError(
            f"it was saved with the factors {_listed(saved)}, these are {_listed(own)}: pass the same {settings}"
        )


def _listed(factors: Sequence[float]) -> str:
    """The first few of the factors, and the last."""
    first = ", ".join(f"{factor:g}x" for factor in factors[:3])
    return f"{first} to {factors[-1]:g}x" if len(factors) > 3 else first


def _scale(number: int, scaling: Scaling) -> float:
    """The factor of this number, from 1 on, over the smallest."""
    match scaling:
        case "fine":
            return round(10 ** (number / PER_DECADE), 2)
        case "geometric":
            return 2.0**number
        case "exponential":
            return 2.0**2 ** (number - 1)


@dataclass
class FactorSearch:
    """Search for the factor of the greatest gain per second. It tries the factor that promises most by what was tried
    before, and ends where that was tried already.

    Of a factor that was not tried it expects that a step takes the seconds that any step takes, and more in proportion
    to the elements sent; and that an element waits longer than with the nearest factor tried, as fewer are sent.
    """

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
    compute_s: float = nan
    """Seconds that a step takes whatever the factor; NaN before two factors were tried, in this search or before."""
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
        return self.factors[self._half()]

    @property
    def tried(self) -> list[int]:
        """Indices of the factors that were tried."""
        return [index for index, share in enumerate(self.shares) if not isnan(share)]

    def explore(self) -> None:
        """Begins anew at the factor in force."""
        self.frozen = False
        self.shares = [nan] * len(self.factors)
        self.seconds = [nan] * len(self.factors)

    def step_back(self) -> None:
        """To half the factor or less, and stays there."""
        self.index, self.frozen = self._half(), True

    def judge(self, share: float, seconds: float) -> str:
        """Moves on after steps in which the factor in force had this share and that took `seconds`; returns the
        reason."""
        before = self.index
        self.shares[before], self.seconds[before] = share, seconds
        self._fit()
        reason = "" if self.gains[before] >= self.least_gain else f"{self.factor:g}x gains too little: "
        # the factor that promises most, or where nothing says how seconds grow with the elements, half of it
        best = self._best(len(self.factors) - 1)
        self.index = self._half() if best == before and isnan(self.compute_s) else best
        self.frozen = self.index in self.tried
        return f"{reason}{'stay at' if self.frozen else 'try'} {self.factor:g}x"

    def reconsider(self, share: float, seconds: float) -> bool:
        """Steps back to a smaller factor where that promises more, now that `share` is sent; returns whether. A
        residual may take longer than a window to fill, and the gain is less once it is full."""
        before = self.index
        # after a step back its steps may not have been timed
        if isnan(self.seconds[before]):
            self.seconds[before] = seconds
        self.shares[before] = share
        self.index = self._best(before)
        self.frozen = self.index in self.tried
        return self.index < before

    @property
    def throughputs(self) -> list[float]:
        """Gain per second of each factor, measured or expected; 0 where it gains too little."""
        pairs = zip(self.gains, self._expected_s(), strict=True)
        return [0.0 if gain < self.least_gain else gain / seconds for gain, seconds in pairs]

    @property
    def gains(self) -> list[float]:
        """Of each factor, measured or expected.

        With fewer elements a step, elements wait longer in the residual, at least in proportion. A window is too short
        to show that, so no factor is credited with more than the next smaller one that was tried allows."""
        delays = list[float]()
        for index, (factor, share) in enumerate(zip(self.factors, self.shares, strict=True)):
            below = [i for i in self.tried if i < index]
            above = [i for i in self.tried if i > index]
            # in proportion to the next smaller factor, or else to the next larger one
            least = delays[below[-1]] * factor / self.factors[below[-1]] if below else 0.0
            if not isnan(share):
                delays.append(max(delay_of(share), least))
            elif below:
                delays.append(least)
            else:
                delays.append(delay_of(self.shares[above[0]]) * factor / self.factors[above[0]])
        return [self.reading.of(share_of(delay)) for delay in delays]

    def _expected_s(self) -> list[float]:
        """Seconds of a step with each factor, measured or expected: `compute_s`, and those of its elements."""
        fewest = self.tried[-1]
        compute_s = 0.0 if isnan(self.compute_s) else min(self.compute_s, self.seconds[fewest])
        wire_s = (self.seconds[fewest] - compute_s) * self.factors[fewest]
        expected = [compute_s + wire_s / factor for factor in self.factors]
        return [each if isnan(own) else own for own, each in zip(self.seconds, expected, strict=True)]

    def _fit(self) -> None:
        """Sets `compute_s` by least squares through the seconds of factors that were tried, against 1 / factor."""
        if len(self.tried) > 1:
            seconds = [self.seconds[index] for index in self.tried]
            line = linear_regression([1 / self.factors[index] for index in self.tried], seconds)
            self.compute_s = max(0.0, line.intercept) if line.slope > 0 else fmean(seconds)

    def _best(self, largest: int) -> int:
        """The factor that promises the greatest gain per second, up to the index `largest`; of those within the
        tolerance the smallest."""
        promised = self.throughputs[: largest + 1]
        return next(i for i, throughput in enumerate(promised) if throughput >= max(promised) * (1 - self.tolerance))

    def _half(self) -> int:
        """The factor that is about half the one in force, or less; or else the smallest."""
        return max((index for index, factor in enumerate(self.factors) if factor < 0.55 * self.factor), default=0)

    def _middle(self) -> int:
        """The factor to begin with: nearest to the geometric mean of the smallest one and the largest whose gain is
        likely to be enough."""
        likely = [f for f in self.factors if self.reading.of(share_of(DELAY_PER_FACTOR * f)) >= self.least_gain]
        middle = sqrt(self.factors[0] * max(likely, default=self.factors[0]))
        return min(range(len(self.factors)), key=lambda index: abs(log(self.factors[index] / middle)))
