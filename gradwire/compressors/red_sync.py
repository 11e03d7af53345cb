"""RedSync: a threshold between the mean and the largest magnitude, by bisection."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gradwire.compressors.context import GroupContext
from gradwire.compressors.estimated import EstimatedThreshold
from gradwire.ops.magnitudes import count, mean_and_peak

PRECISION = 1 / 16
"""The paper's is 0.2, which sends many more than k elements."""


@dataclass(frozen=True)
class RedSync(EstimatedThreshold, recordable=True):
    """The threshold mean|x| + t·(max|x| - mean|x|), t bisected in [0, 1] until between k and 2 k elements pass, or
    t is known to 1/16 (Fang et al., JPDC 2019, https://arxiv.org/abs/1808.04357)."""

    ratio: float = 0.01
    value_bits: Literal[32, 4] = 32

    def thresholds(self, x: Tensor, k: int, context: GroupContext) -> Iterator[float]:
        mean, peak = mean_and_peak(x, context.scratch)
        # bisect
        low, high = 0.0, 1.0
        while high - low > PRECISION:
            middle = (low + high) / 2
            # count what passes the middle, and go on in one half
            passing = count(x, mean + middle * (peak - mean), context.scratch)
            if passing < k:
                high = middle
            else:
                low = middle
                if passing <= 2 * k:
                    break
        # the highest threshold that lets enough pass
        if low:  # else even the lowest threshold tried was too high, and all above the mean are too many
            yield mean + low * (peak - mean)
