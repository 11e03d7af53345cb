"""The ratio of two plans' times, from turns that they took side by side, with its interval."""

from collections.abc import Sequence
from itertools import accumulate
from math import exp, inf
from statistics import median
from typing import NamedTuple, Self

WRONG = 0.05
"""The probability, at most, that the true ratio is below an interval, and that it is above: 90 % are in it."""


class Ratio(NamedTuple):
    """How many times as long one plan takes as another, by pairs of turns."""

    middle: float
    """Estimated; Hodges and Lehmann's, of logarithms."""
    low: float
    high: float
    """Ends of the interval; 0 and infinity by fewer than five pairs."""
    pairs: int

    @classmethod
    def of(cls, logs: Sequence[float]) -> Self:
        """The ratio by its logarithm in each of one pair or more, with Wilcoxon's signed-rank interval."""
        # means of all two logarithms, and of each with itself
        means = sorted((one + other) / 2 for place, one in enumerate(logs) for other in logs[place:])
        beyond = _beyond(len(logs))
        low, high = (exp(means[beyond - 1]), exp(means[-beyond])) if beyond else (0.0, inf)
        return cls(exp(median(means)), low, high, len(logs))

    @property
    def interval(self) -> str:
        """The interval and the number of pairs, in words."""
        pairs = f"{self.pairs} pair{'s' if self.pairs > 1 else ''}"
        return f"{self.low:.2f} to {self.high:.2f}, {pairs}" if self.low else f"{pairs}, too few for an interval"


def _beyond(pairs: int) -> int:
    """The place among the means, from either side, of an end of the interval; 0 where there is none."""
    # the number of subsets of the ranks 1 to n by their sum: each rank's sign is that of a tossed coin
    subsets = [1]
    for rank in range(1, pairs + 1):
        longer = [*subsets, *[0] * rank]
        subsets = [count + (longer[total - rank] if total >= rank else 0) for total, count in enumerate(longer)]
    return sum(below <= WRONG * 2**pairs for below in accumulate(subsets))
