"""GraVAC: the factor that trains fastest, found while training."""

import logging
from dataclasses import dataclass, field
from math import inf, isnan, nan
from statistics import fmean
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.compressors import MultiLevel
from gradwire.controllers.base import Controller, Decision, Step, rate_dropped
from gradwire.controllers.factors import Factors, Scaling
from gradwire.controllers.gain import LEAST_ENERGY, Gain, energy_of, gain_of
from gradwire.controllers.guard import Guard
from gradwire.controllers.levels import check_levels, with_levels
from gradwire.controllers.window import Observed, Summary, Window
from gradwire.plan import Plan

logger = logging.getLogger("gradwire")

TIME_DRIFT, GAIN_DRIFT = 1.3, 1.25


@dataclass
class Reference:
    """What was found when a factor was settled on; NaN where none is. `seconds` are at first those of when it was
    tried. `rate` is the largest learning rate since."""

    gain: float = nan
    seconds: float = nan
    rate: float = 0.0

    def drift(self, gain: float, seconds: float) -> str | None:
        """What has changed since, in words."""
        if seconds * TIME_DRIFT < self.seconds:
            return "steps take less long"
        if not 1 / GAIN_DRIFT <= gain / self.gain <= GAIN_DRIFT:
            return "the gain drifted"
        return None


@dataclass
class GraVAC(Controller):
    """Tries compression factors from `min_factor` to `max_factor` (how many times fewer elements are sent), each for a
    `window` of steps, and stays with the one of the greatest gain per second (Tyagi and Swany, IEEE CLOUD 2023,
    https://arxiv.org/abs/2305.12201).

    Every group sends the factor in force where its gain was `min_gain` or more in the step before, else the smaller
    factor where that was, else everything. `scaling` is "exponential" (2, 4, 16, 256 times `min_factor`) or "geometric"
    (twice the last). `gain` says how gain is read, see `Gain`; `min_gain` follows from it. Factors within `tolerance`
    of each other count as equal, and the smaller wins. It searches anew when the learning rate of `scheduler` drops
    to half, steps take longer or less long, or the gain drifts. Without `scheduler` it does not see the learning rate.

    Tell it the loss with `report`, and it steps back where that rises suddenly.
    """

    min_factor: float = 10
    max_factor: float = 1000
    window: int = 100
    scaling: Scaling = "exponential"
    gain: Gain = "delay"
    min_gain: float | None = None
    tolerance: float = 0.01
    scheduler: Any = field(default=None, metadata={"code": True})
    numbers: ClassVar[int] = len(Observed._fields)

    def __post_init__(self) -> None:
        if not 1 <= self.min_factor <= self.max_factor < inf:
            raise ValueError(
                f"min_factor={self.min_factor}, max_factor={self.max_factor} do not ascend from 1 to a finite factor; "
                "use e.g. GraVAC(min_factor=10, max_factor=1000)"
            )
        if self.window < 4:
            raise ValueError(f"window={self.window} steps show nothing; use 4 or more, e.g. window=100")
        if self.min_gain is not None and not 0 <= self.min_gain <= 1:
            raise ValueError(f"min_gain={self.min_gain} is no share; it lies in [0, 1]")
        self._least = gain_of(LEAST_ENERGY, self.gain) if self.min_gain is None else self.min_gain
        self._factors = Factors.between(self.min_factor, self.max_factor, self.scaling, self.tolerance)
        self._window, self._guard = Window(self.window), Guard()
        self._reference = Reference()
        self._origin = Plan(())
        self._marked_s: float | None = None
        self._losses: list[float] = []

    def check(self, plan: Plan) -> None:
        check_levels(plan, "GraVAC")

    def begin(self, plan: Plan) -> Plan:
        self._origin = plan
        return self._plan()

    def report(self, loss: float | Tensor) -> None:
        """Tells this step's training loss, before its backward pass; on all ranks, or on some."""
        self._losses.append(float(loss))

    def observe(self, step: Step, numbers: Tensor) -> None:
        compressors = {group.slots[0]: group.compressor for group in step.plan.groups}
        for state in step.states:
            compressor = compressors[state.layout.slots[0].name]
            if isinstance(compressor, MultiLevel):
                numbers[:3] += compressor.observed(state)[0]
                numbers[3:5] += compressor.sent(state)
                numbers[5:6] += state.layout.numel + state.flag  # NaN where all ranks skip the step
        now, before = perf_counter(), self._marked_s
        self._marked_s = now
        numbers[6] = now - before if before else 0.0
        numbers[7] = self.scheduler.get_last_lr()[0] if self.scheduler else 0.0
        if self._losses:
            numbers[8], numbers[9] = fmean(self._losses), 1
            self._losses.clear()

    def decide(self, step: Step, sums: Tensor) -> Plan | None:
        row = Observed(*sums.tolist())
        self._window.add(row)
        rate = row.learning_rate / step.ranks
        if rate_dropped(rate, self._reference.rate):
            self._reference.rate = rate
            self._explore(step, "the learning rate dropped", 0)
        elif self._factors.frozen and self._window.latest_seconds(step.ranks) > TIME_DRIFT * self._reference.seconds:
            self._explore(step, "steps take longer", self._factors.index)  # slower links want larger factors
        elif self._window.full:
            self._close_window(step)
        self._reference.rate = max(rate, self._reference.rate)
        plan = self._plan()
        return None if plan == step.plan else plan

    def state_dict(self) -> dict[str, Tensor]:
        factors, reference, guard = self._factors, self._reference, self._guard
        numbers = [
            factors.index, factors.least, factors.frozen, reference.gain, reference.seconds, reference.rate,
            guard.loss, guard.residual, *factors.throughputs, *factors.seconds,
        ]  # fmt: skip
        return {"window": self._window.to_tensor(), "search": torch.tensor(numbers, dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._window.load(state["window"])
        index, least, frozen, gain, seconds, rate, loss, residual, *tried = state["search"].tolist()
        factors = self._factors
        factors.index, factors.least, factors.frozen = int(index), int(least), bool(frozen)
        factors.throughputs, factors.seconds = tried[: len(tried) // 2], tried[len(tried) // 2 :]
        self._reference, self._guard = Reference(gain, seconds, rate), Guard(loss, residual)

    def _plan(self) -> Plan:
        factors = self._factors
        return with_levels(self._origin, factors.smaller, factors.factor, energy_of(self._least, self.gain))

    def _explore(self, step: Step, reason: str, index: int) -> None:
        """Begins to search at `index`, in the middle of a window."""
        self._factors.explore(index)
        self.decisions.append(Decision(step.number + 1, f"{reason}: explore from {self._factors.factor:g}x"))
        self._window.rows.clear()
        self._begin_anew()

    def _close_window(self, step: Step) -> None:
        """Decides what follows from the window that is full."""
        summary, before = self._window.summarize(step.ranks), (self._factors.factor, self._factors.frozen)
        gain = gain_of(summary.sent, self.gain)
        throughput = gain / max(summary.seconds, 1e-9)
        text = self._judge(summary, gain, throughput)
        self.decisions.append(Decision(step.number + 1, text, summary.factor, gain, throughput))
        self._window.rows.clear()
        if (self._factors.factor, True) != before or not self._factors.frozen:
            self._begin_anew()

    def _judge(self, summary: Summary, gain: float, throughput: float) -> str:
        residual = 1 / summary.sent - 1 if summary.sent else 0.0
        if rise := self._guard.notice(summary.loss, summary.loss_error, residual):
            self._factors.step_back()
            text = f"{rise}: step back to {self._factors.factor:g}x"
            logger.warning("GraVAC: %s", text)
            return text
        if self._factors.frozen:
            return self._watch(gain, summary.seconds)
        self._factors.seconds[self._factors.index] = summary.seconds
        gains = gain_of(summary.first, self.gain), gain_of(summary.second, self.gain)
        return self._factors.judge(gains, throughput, self._least)

    def _watch(self, gain: float, seconds: float) -> str:
        """Goes on as it is, unless something changed since the factor was settled on, or its gain fell."""
        if self._factors.reconsider(gain):
            return f"the gain fell to {gain:.2f}: step back to {self._factors.factor:g}x"
        if isnan(self._reference.gain):
            self._reference = Reference(gain, seconds, self._reference.rate)
        drift = self._reference.drift(gain, seconds)
        if drift is None:
            return f"stay at {self._factors.factor:g}x"
        self._factors.explore(0)
        return f"{drift}: explore from {self._factors.factor:g}x"

    def _begin_anew(self) -> None:
        seconds = self._factors.seconds[self._factors.index] if self._factors.frozen else nan
        self._reference = Reference(seconds=seconds, rate=self._reference.rate)
        self._guard.changed()
