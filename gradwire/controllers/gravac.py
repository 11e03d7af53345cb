"""GraVAC: a search while training for the compression factor that trains fastest."""

import logging
from dataclasses import dataclass, field
from math import inf, isnan, nan
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.controllers.controller import (
    Controller,
    Decision,
    Observation,
    Scheduler,
    StepView,
    check_scheduler,
    rate_dropped,
)
from gradwire.controllers.factor_search import FactorSearch, Scaling, check_factors, spaced
from gradwire.controllers.gain import Gain, Reading, delay_of
from gradwire.controllers.guard import Guard
from gradwire.controllers.two_levels import check_levels, levels_of, with_levels
from gradwire.controllers.window import Observed, Summary, Window
from gradwire.ops.host import number_in
from gradwire.ops.vectors import Scalar
from gradwire.plans import Plan

logger = logging.getLogger("gradwire")

TIME_DRIFT, GAIN_DRIFT, DELAY_DRIFT = 1.3, 1.25, 2.0
"""Steps, gains and delays that change by more than so many times start a new search."""
FELL_BACK = 0.75
"""Steps that send so many times the factor in force, or less, are those of groups that sent more for their gain."""
HORIZON_WINDOWS = 16
"""The horizon of "delay", in windows."""


@dataclass
class Reference:
    """Measurements of the window in which a factor was settled on; NaN before that."""

    share: float = nan
    """The part of gradient and residual that was sent."""
    seconds: float = nan
    """Of a step; at first those from when the factor was tried."""
    rate: float = 0.0
    """The largest learning rate since."""
    factor: float = nan
    """How many times fewer elements were sent."""


@dataclass
class GraVAC(Controller):
    """Tries compression factors, each for a window of steps, a middle one first and then those that promise more by
    what was tried, and stays with the one of the greatest gain per second (Tyagi and Swany, IEEE CLOUD 2023,
    https://arxiv.org/abs/2305.12201). Train at least 40 x `window` steps.

    Every group sends the factor in force where its gain was `min_gain` or more in the step before, else about half that
    factor where its gain was, else everything. The search begins anew when the learning rate drops to half, steps take
    longer or less long, the gain falls, or delays fall to half.

    Give it the loss by `report`, and it steps back where that rises suddenly.

    Where the learning rate falls after a number of steps, pass `min_gain=0.95`: with less progress in as many steps a
    training never catches up at the lower rate.
    """

    min_factor: float = 10
    """The smallest factor: so many times fewer elements are sent."""
    max_factor: float = 1000
    """The largest factor."""
    window: int = 100
    """In steps."""
    scaling: Scaling = "fine"
    """Factors are ten for each power of ten ("fine"), or as in the paper 2, 4, 16, 256 times `min_factor`
    ("exponential"), or each twice the one before ("geometric")."""
    gain: Gain = "delay"
    """How the gain is read: "delay", with a horizon of 16 windows, is a step's progress over that of a dense one."""
    min_gain: float | None = None
    """The least gain, in [0, 1]; None for that of `gain`, 0.7 for "delay"."""
    tolerance: float = 0.01
    """Factors whose gains per second differ by so much count as equal, and the smaller wins."""
    smoothing: float = 1.0
    """The weight of a step in moving averages of gains, in (0, 1]; in the paper ranks / 100."""
    scheduler: Scheduler | None = field(default=None, metadata={"code": True})
    """The optimizer's learning rate scheduler; without it a drop of the learning rate is not seen."""
    numbers: ClassVar[int] = len(Observed._fields)
    _settings: ClassVar[str] = "min_factor, max_factor and scaling"
    """From which its factors follow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scheduler(self.scheduler)
        if not 1 <= self.min_factor <= self.max_factor < inf:
            raise ValueError(
                f"min_factor={self.min_factor}, max_factor={self.max_factor} do not ascend from 1 to a finite factor; "
                "use e.g. GraVAC(min_factor=10, max_factor=1000)"
            )
        if self.window < 4:
            raise ValueError(f"window={self.window} steps show nothing; use 4 or more, e.g. window=100")
        if self.min_gain is not None and not 0 <= self.min_gain <= 1:
            raise ValueError(f"min_gain={self.min_gain} is no share; it lies in [0, 1]")
        if not 0 < self.smoothing <= 1:
            raise ValueError(f"smoothing={self.smoothing} is no weight of a step; it lies in (0, 1], e.g. 0.32")
        # the gain and its least value
        self._reading = Reading(self.gain, HORIZON_WINDOWS * self.window)
        least = self._reading.least if self.min_gain is None else self.min_gain
        # the search, the window in progress, and the guard
        factors = spaced(self.min_factor, self.max_factor, self.scaling)
        self._factors = FactorSearch(factors, self.tolerance, self._reading, least)
        self._window, self._guard = Window(self.window), Guard()
        self._reference = Reference()
        self._origin = Plan(())
        self._marked_s: float | None = None
        # the sum of this step's losses, and their number; and the sum read in the step before, whose memory a GPU may
        # only now have read
        self._loss: Scalar = 0.0
        self._loss_read: Scalar = 0.0
        self._losses = 0

    def check(self, plan: Plan) -> None:
        least = self._reading.share(self._factors.least_gain)
        check_levels(plan, self.called, self._defaults, least)

    def begin(self, plan: Plan) -> Plan:
        self._origin = plan
        # gains and seconds were those of another plan
        self._factors.explore()
        self._window.rows.clear()
        self._loss, self._losses = 0.0, 0
        self._begin_anew()
        return self._plan()

    def report(self, loss: float | Tensor) -> None:
        """Notes this step's training loss, before its backward pass, without waiting for a GPU; on all ranks, or on
        some."""
        # a sum, which takes constant memory even where `observe` is never called; a new tensor, as losses may be reused
        self._loss = self._loss + (number_in(loss.detach()) if isinstance(loss, Tensor) else float(loss))
        self._losses += 1

    def observe(self, seen: StepView, numbers: Tensor) -> None:
        # norms and elements of all groups
        for compressor, view in levels_of(seen):
            numbers[:2] += compressor.observed(view.context)[0, ::2]
            numbers[2:4] += compressor.sent(view.context)
            numbers[4:5] += view.context.layout.numel + view.nonfinite  # NaN where all ranks skip the step
        # seconds since the step before
        now, before = perf_counter(), self._marked_s
        self._marked_s = now
        numbers[5] = now - before if before else 0.0
        # learning rate and loss
        numbers[6] = self.scheduler.get_last_lr()[0] if self.scheduler else 0.0
        if self._losses:
            numbers[7], numbers[8] = self._loss / self._losses, 1
        self._loss_read = self._loss
        self._loss = 0.0
        self._losses = 0

    def decide(self, seen: Observation) -> Plan | None:
        row = Observed(*(seen.sums.double() / seen.ranks).tolist())
        # all that it chooses factors for is frozen now
        if not row.elements:
            return None
        self._window.add(row)
        # explore anew where the training has changed, else when a window is full
        rate = row.learning_rate
        if rate_dropped(rate, self._reference.rate):
            self._reference.rate = rate
            self._factors.explore()
            self._begin_search(seen, f"the learning rate dropped: explore from {self._factors.factor:g}x")
        elif self._steps_take_longer():
            # half of these steps at least do: the last quarter of the window
            seconds = self._window.latest_seconds(self.window // 4)
            self._factors.explore()
            text = self._factors.judge(self._window.summarize().held, seconds)
            self._begin_search(seen, f"steps take longer: {text}")
        elif self._window.full:
            self._close_window(seen)
        self._reference.rate = max(rate, self._reference.rate)
        plan = self._plan()
        return None if plan == seen.plan else plan

    def state_dict(self) -> dict[str, Tensor]:
        factors = self._factors
        reference = self._reference
        guard = self._guard
        numbers = [
            factors.index, factors.frozen, factors.compute_s, reference.share, reference.seconds, reference.rate,
            reference.factor, guard.loss, guard.error, guard.residual,
            *factors.factors, *factors.shares, *factors.seconds,
        ]  # fmt: skip
        return {"steps": self._window.to_tensor(), "search": torch.tensor(numbers, dtype=torch.float64, device="cpu")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        index, frozen, compute_s, *numbers = state["search"].tolist()
        reference = numbers[:4]
        guard = numbers[4:7]
        factors = self._factors
        count = len(numbers[7:]) // 3
        saved, shares, seconds = (numbers[7 + count * part :][:count] for part in range(3))
        check_factors(saved, factors.factors, self._settings)
        self._window.load(state["steps"])
        factors.index = int(index)
        factors.frozen = bool(frozen)
        factors.compute_s = compute_s
        factors.shares, factors.seconds = shares, seconds
        self._reference, self._guard = Reference(*reference), Guard(*guard)

    def _plan(self) -> Plan:
        factors = self._factors
        reading, least = self._reading, factors.least_gain
        smaller, larger = factors.smaller, factors.factor
        return with_levels(self._origin, smaller, larger, reading, least, self._defaults, self.smoothing)

    def _steps_take_longer(self) -> bool:
        """Whether the steps of the last half window take longer, and not because many of them sent a smaller factor."""
        half, expected = self.window // 2, self._reference.factor
        if not self._window.latest_seconds(half) > TIME_DRIFT * self._reference.seconds:
            return False
        return self._window.latest_factor(half) > FELL_BACK * (self._factors.factor if isnan(expected) else expected)

    def _begin_search(self, seen: Observation, reason: str) -> None:
        """Starts a search in the middle of a window."""
        self.decisions.append(Decision(seen.next_step, reason))
        self._window.rows.clear()
        self._begin_anew()

    def _close_window(self, seen: Observation) -> None:
        """Moves on after a full window."""
        summary, before = self._window.summarize(), (self._factors.factor, self._factors.frozen)
        # gain per second in this window
        gain = self._reading.of(summary.sent)
        throughput = gain / summary.seconds
        text = self._judge(summary)
        self.decisions.append(Decision(seen.next_step, text, summary.factor, gain, throughput))
        self._window.rows.clear()
        # another factor, or a search that goes on: measurements begin anew
        if (self._factors.factor, True) != before or not self._factors.frozen:
            self._begin_anew()

    def _judge(self, summary: Summary) -> str:
        # accuracy first
        if rise := self._guard.notice(summary.loss, summary.loss_error, delay_of(summary.sent)):
            before = self._factors.factor
            self._factors.step_back()
            after = self._factors.factor
            text = f"{rise}: {'step back to' if after < before else 'stay at'} {after:g}x"
            logger.warning("Compression: %s", text)
            return text
        # then watch a factor that is settled on, or search further
        if self._factors.frozen:
            return self._watch(summary)
        return self._factors.judge(summary.held, summary.seconds)

    def _watch(self, summary: Summary) -> str:
        """Keeps the factor, unless its gain fell or something changed since it was settled on; returns the reason."""
        # what is gained now
        factors = self._factors
        before = self._reference
        gain = self._reading.of(summary.sent)
        # a smaller factor has become better
        if factors.reconsider(summary.held, summary.seconds):
            return f"the gain fell to {self._reading.of(summary.held):.2f}: step back to {factors.factor:g}x"
        # something has changed
        if summary.seconds * TIME_DRIFT < before.seconds:
            reason = "steps take less long"
        elif gain * GAIN_DRIFT < self._reading.of(before.share):
            reason = "the gain fell"
        elif delay_of(summary.sent) * DELAY_DRIFT < delay_of(before.share):
            reason = "the gain rose"
        else:
            if isnan(before.share):
                self._reference = Reference(summary.sent, summary.seconds, before.rate, summary.factor)
            return f"stay at {factors.factor:g}x"
        factors.explore()
        return f"{reason}: explore from {factors.factor:g}x"

    def _begin_anew(self) -> None:
        seconds = self._factors.seconds[self._factors.index] if self._factors.frozen else nan
        self._reference = Reference(seconds=seconds, rate=self._reference.rate)
        self._guard.changed()
