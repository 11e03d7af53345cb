"""CAT: each step sends the factor with the greatest predicted gain per second."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from math import inf, isfinite, isnan, log, nan
from statistics import fmean, linear_regression
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors import MultiLevel
from gradwire.controllers.controller import Controller, Decision, Observation, StepView
from gradwire.controllers.factor_search import check_factors, spaced
from gradwire.controllers.gain import Gain, Reading
from gradwire.controllers.two_levels import check_levels, levels_of, with_levels
from gradwire.plans import Plan

SETTLE_STEPS = 4
"""Steps that a factor stays: as long as its own norms and time need to show."""
REVISIT_STEPS = 300
"""Steps after which a measurement is too old, and both ends of the range are measured again."""
SMOOTHING = 0.1
"""The weight of a step's seconds in their moving average."""
TOLERANCE = 0.05
"""Another factor must promise more by so much: less is noise."""
TIME_DRIFT, DRIFT_STEPS = 1.3, 5
"""So many steps in a row that take so many times as long as before end all that was measured."""


def share_at(factor: float, known: Mapping[float, float]) -> float:
    """The share of gradient and residual that is sent at `factor`, interpolated from the shares `known` at two factors
    or more, among them 1 at factor 1: a power law between neighbours, and beyond the last."""
    # the two neighbours
    points = sorted(known.items())
    at = min(max(1, bisect_left(points, (factor,))), len(points) - 1)
    (left, above), (right, below) = points[at - 1 : at + 1]
    return min(1.0, above * (factor / left) ** (log(below / above) / log(right / left)))


@dataclass(frozen=True)
class Costs:
    """The alpha-beta model of a step's time."""

    alpha: float
    """Seconds beside the bytes'."""
    beta: float
    """Seconds per byte."""
    dense_bytes: float
    """Bytes at factor 1, in the sparse format, of which a factor sends so many times fewer."""
    fixed_bytes: float = 0.0
    """Bytes at any factor, such as scales'."""

    def seconds(self, factor: float) -> float:
        """Predicted seconds of a step with this factor."""
        return max(self.alpha + self.beta * (self.fixed_bytes + self.dense_bytes / factor), 1e-9)


def fit(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """alpha in seconds and beta in seconds per byte, neither below 0, that fit the samples (bytes, seconds) best."""
    sizes, seconds = zip(*samples, strict=True)
    if len(set(sizes)) == 1:
        return fmean(seconds), 0.0
    line = linear_regression(sizes, seconds)
    # neither coefficient may be negative: then the other one alone fits best
    if line.slope <= 0:
        return fmean(seconds), 0.0
    if line.intercept < 0:
        return 0.0, linear_regression(sizes, seconds, proportional=True).slope
    return line.intercept, line.slope


def rates(factors: Sequence[float], known: Mapping[float, float], costs: Costs, reading: Reading) -> list[float]:
    """Gain per second of each factor by the shares `known`; 0 where the gain is too small."""

    def rate(factor: float) -> float:
        gain = reading.of(share_at(factor, known))
        return gain / costs.seconds(factor) if factor == factors[0] or gain >= reading.least else 0.0

    return [rate(factor) for factor in factors]


@dataclass
class FactorStats:
    """Statistics of the steps with one factor, NaN before the first."""

    share: float = nan
    """The part of gradient and residual that is sent."""
    seconds: float = nan
    """Of a step, smoothed."""
    wire_bytes: float = nan
    """Sent per rank."""
    step: float = -inf
    """The last one with this factor."""

    def slower(self, seconds: float, wire_bytes: float) -> bool:
        """Whether a step took longer than those before, and not for its bytes."""
        return seconds > TIME_DRIFT * self.seconds and wire_bytes <= TIME_DRIFT * self.wire_bytes

    def time(self, seconds: float, wire_bytes: float) -> None:
        """Adds the cost of one more step."""
        before = seconds if isnan(self.seconds) else self.seconds
        self.seconds = before + SMOOTHING * (seconds - before)
        self.wire_bytes = wire_bytes


@lru_cache(256)
def _sizes(compressor: MultiLevel, n: int, widest: float) -> tuple[int, int, int]:
    """Payload bytes of n elements: at the first level, at the second, and at a second that sends `widest` times fewer
    elements than the first."""
    last = replace(compressor, further=widest)
    return compressor.codec.payload_bytes(n), compressor.second.payload_bytes(n), last.second.payload_bytes(n)


@dataclass
class CAT(Controller):
    """The compression factor of each step, of `min_factor`, twice, four times that up to `max_factor`, is the one with
    the greatest predicted gain per second (like CAT's choice per step: Khirirat et al., 2020,
    https://arxiv.org/abs/2003.06377).

    The gain of a factor follows from the norms of the two levels that steps select, its seconds from alpha + beta *
    bytes, fitted to the steps so far. Both ends of the range are tried at first, every 300 steps, and where 5 steps in
    a row take 1.3 times as long as those before. A factor stays for 4 steps, and until another promises 5 % more.
    Factors whose gain is too small are never chosen.
    """

    min_factor: float = 10
    """The smallest factor: so many times fewer elements are sent."""
    max_factor: float = 1000
    """The largest factor."""
    gain: Gain = "energy"
    """How the gain is read from the share that is sent."""
    numbers: ClassVar[int] = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_factor < self.max_factor < inf:
            raise ValueError(
                f"min_factor={self.min_factor}, max_factor={self.max_factor} do not ascend from 1 to a finite factor; "
                "use e.g. CAT(min_factor=10, max_factor=1000)"
            )
        self._reading = Reading(self.gain)
        self._factors = spaced(self.min_factor, self.max_factor, "geometric")
        # measurements by factor, the factor in force, and for how many steps it is
        self._shown = [FactorStats() for _ in self._factors]
        self._origin = Plan(())
        self._index = 0
        self._stayed = 0
        self._slow = 0
        self._sent = 0.0
        self._marked_s: float | None = None

    @property
    def factor(self) -> float:
        """The factor in force."""
        return self._factors[self._index]

    def check(self, plan: Plan) -> None:
        check_levels(plan, "CAT", self._defaults, self._reading.share(self._reading.least))

    def begin(self, plan: Plan) -> Plan:
        self._origin = plan
        # shares and seconds were those of another plan
        self._shown = [FactorStats() for _ in self._factors]
        self._stayed = 0
        self._slow = 0
        return self._plan()

    def observe(self, seen: StepView, numbers: Tensor) -> None:
        """Writes nine numbers: the norms of everything and of both levels, seconds since the step before, bytes that
        were sent, bytes with the least and with the largest factor, elements in all, elements that were sent."""
        for compressor, view in levels_of(seen):
            context, n = view.context, view.context.layout.numel
            first, second, last = _sizes(compressor, n, self.max_factor / self.min_factor)
            numbers[:3] += compressor.observed(context)[0]
            numbers[4] += (4 * n, first, second)[compressor.level(context)]  # all go without indices
            numbers[5:6] += first + view.nonfinite  # NaN where all ranks skip the step
            numbers[6] += last
            numbers[7] += n
            numbers[8] += compressor.sent(context)[1]
        # seconds since the step before
        now, before = perf_counter(), self._marked_s
        self._marked_s = now
        numbers[3] = now - before if before else 0.0

    def decide(self, seen: Observation) -> Plan | None:
        # update the model with this step
        whole, first, second, seconds, sent, most, least, elements, chosen = seen.sums.tolist()
        timed, self._sent = self._sent, sent / seen.ranks  # the seconds are those of the step before
        self._stayed += 1
        if not (isfinite(whole + most) and whole > 0):
            return None
        if seconds > 0 and self._stayed > 2:  # the first are those of the factor before, of its new plan and norms
            self._time(seen.step, seconds / seen.ranks, timed)
        # shares of the least factor and of this one; the levels hold both
        shown = self._shown[self._index]
        self._shown[0].share, shown.share = max(first / whole, 1e-9), max(second / whole, 1e-9)
        if self._stayed < SETTLE_STEPS or isnan(shown.seconds):
            return None
        # choose the factor of the next steps
        index, text = self._next(seen.step, most / seen.ranks, least / seen.ranks)
        if index == self._index:
            return None
        gain = self._reading.of(shown.share)
        self._index, self._stayed = index, 0
        text = f"{text} {self.factor:g}x"
        self.decisions.append(Decision(seen.next_step, text, elements / max(chosen, 1), gain, gain / shown.seconds))
        return self._plan()

    def state_dict(self) -> dict[str, Tensor]:
        seen = [astuple(one) for one in self._shown]
        return {
            "factors": torch.tensor(self._factors, dtype=torch.float64, device="cpu"),
            "seen": torch.tensor(seen, dtype=torch.float64, device="cpu"),
            "choice": torch.tensor(
                [self._index, self._stayed, self._slow, self._sent], dtype=torch.float64, device="cpu"
            ),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        check_factors(state["factors"].tolist(), self._factors, "min_factor and max_factor")
        self._shown = [FactorStats(*row) for row in state["seen"].tolist()]
        *counts, self._sent = state["choice"].tolist()
        self._index, self._stayed, self._slow = map(int, counts)

    def _time(self, step: int, seconds: float, wire_bytes: float) -> None:
        """Adds one more step's cost; where steps have become slower, drops all measurements, to measure anew."""
        self._slow = self._slow + 1 if self._shown[self._index].slower(seconds, wire_bytes) else 0
        if self._slow == DRIFT_STEPS:
            self._slow, self._shown = 0, [FactorStats() for _ in self._factors]
        # a slow step does not count: it may be an outlier, or begin a drift
        if not self._slow:
            self._shown[self._index].time(seconds, wire_bytes)
            self._shown[self._index].step = step

    def _next(self, step: int, most: float, least: float) -> tuple[int, str]:
        """The index of the factor to send next, and why, where the range's ends send so many bytes."""
        # measure both ends of the range
        for end in (0, len(self._factors) - 1):
            if step - self._shown[end].step > REVISIT_STEPS:
                return end, "measure"
        # maximise gain per second
        costs, known = self._model(step, most, least)
        promised = rates(self._factors, known, costs, self._reading)
        best = max(range(len(promised)), key=promised.__getitem__)
        stays = promised[best] <= (1 + TOLERANCE) * promised[self._index]
        return self._index if stays else best, "most gain per second:"

    def _model(self, step: int, most: float, least: float) -> tuple[Costs, dict[float, float]]:
        """Costs and known shares, from measurements of the last REVISIT_STEPS steps, where the range's ends send so
        many bytes."""
        # recent measurements alone: norms and links change
        pairs = zip(self._factors, self._shown, strict=True)
        recent = [(factor, seen) for factor, seen in pairs if step - seen.step <= REVISIT_STEPS]
        # fit the costs, of bytes on a line between both ends; factor 1 sends everything
        alpha, beta = fit([(seen.wire_bytes, seen.seconds) for _, seen in recent])
        dense = (most - least) / (1 / self.min_factor - 1 / self.max_factor)
        costs = Costs(alpha, beta, dense, least - dense / self.max_factor)
        return costs, {1.0: 1.0} | {factor: seen.share for factor, seen in recent}

    def _plan(self) -> Plan:
        return with_levels(
            self._origin, self.min_factor, self.factor, self._reading, self._reading.least, self._defaults
        )
