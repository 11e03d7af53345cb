"""Accordion: low compression in critical regimes, high compression in between."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors import Compressor
from gradwire.compressors.context import SHARED
from gradwire.controllers.controller import (
    Controller,
    Decision,
    Observation,
    Scheduler,
    StepView,
    check_scheduler,
    rate_dropped,
)
from gradwire.controllers.recompress import Defaults, recompress, setting_of, update_in, with_options
from gradwire.ops.gradients import Scalar, add_unless
from gradwire.plans import Group, Plan


@dataclass
class Accordion(Controller):
    """Low compression for each layer in a critical regime, where the norm of its gradient, summed over an interval, has
    changed much since the interval before; else high compression. All layers start with low compression, and return to
    it when the learning rate drops to half or less (Agarwal et al., MLSys 2021, https://arxiv.org/abs/2010.16248).

    It sums the reduced gradients, which all ranks have and into which residuals go sooner or later (intervals are to be
    longer than that takes), in one more buffer of gradient size, which is part of its state.
    """

    low: float
    """The ratio of sparsifiers, or the rank of low-rank compressors, for low compression, such as 0.1 or 4; ranks below
    1 are shares of the full rank."""
    high: float
    """The same for high compression, such as 0.01 or 1."""
    scheduler: Scheduler | None = field(default=None, metadata={"code": True})
    """The optimizer's learning rate scheduler."""
    interval: int = 100
    """In steps."""
    threshold: float = 0.5
    """A relative change of the norm of so much or more is critical."""
    numbers: ClassVar[int] = 1
    reduces: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scheduler(self.scheduler)
        if not self.low > self.high > 0:
            raise ValueError(
                f"low={self.low} compresses no less than high={self.high}; low compression sends more: "
                "use e.g. Accordion(low=0.1, high=0.01, scheduler=scheduler)"
            )
        if self.interval < 1:
            raise ValueError(f"interval={self.interval} counts steps; use 1 or more, e.g. interval=100")
        if not self.threshold > 0:
            raise ValueError(f"threshold={self.threshold} finds every interval critical; use e.g. threshold=0.5")
        # state: the user's plan, the interval's first step, the largest rate, each layer's regime
        self._origin = Plan(())
        self._began: int | None = None
        self._rate = 0.0
        self._layers: dict[str, _Layer] = {}

    def check(self, plan: Plan) -> None:
        # it sees the learning rate
        if self.scheduler is None:
            raise ValueError(
                "Accordion acts when the learning rate drops, and has no scheduler; "
                "use Accordion(low, high, scheduler=scheduler)"
            )
        # some group has a setting that it can change
        if not any(setting_of(group.compressor) in ("ratio", "rank") for group in plan.groups):
            raise ValueError(
                f"Accordion changes a ratio or a rank, and {plan.groups[0].compressor} has neither; "
                "use TopK(0.1), or PowerSGD(4) with ranks for low and high"
            )
        # whose norms are those of mean gradients
        if update := update_in(plan):
            raise ValueError(f"Accordion compares norms of mean gradients, and {update} makes updates; use PowerSGD(4)")
        # ranks are of one kind, and both plans can be made
        if self.high < 1 <= self.low and any(setting_of(group.compressor) == "rank" for group in plan.groups):
            raise ValueError(
                f"low={self.low} is a rank, and high={self.high} a share of the full one, which may be more; "
                "use e.g. Accordion(low=4, high=1, scheduler=scheduler), or low=1/3, high=1/12"
            )
        for value in (self.low, self.high):
            _with(plan, lambda name, value=value: value, self._defaults)

    def begin(self, plan: Plan) -> Plan:
        self._origin = plan
        # the layers of this plan alone; a layer that was there before keeps its regime
        changed = [group for group in plan.groups if setting_of(group.compressor) in ("ratio", "rank")]
        self._layers = {name: self._layers.get(name, _Layer()) for group in changed for name in group.slots}
        return _with(plan, self._value, self._defaults)

    def observe(self, seen: StepView, numbers: Tensor) -> None:
        assert self.scheduler
        numbers[0] = self.scheduler.get_last_lr()[0]

    def reduced(self, means: Mapping[str, Tensor], nonfinite: Tensor, scale: Scalar) -> None:
        for name, mean in means.items():
            if name in self._layers:
                self._layers[name].add(mean, nonfinite, scale)

    def decide(self, seen: Observation) -> Plan | None:
        # compare the learning rate with the largest so far
        rate, before = float(seen.sums[0]) / seen.ranks, self._rate
        self._rate = max(rate, before)
        # the first interval begins with the first step that is seen
        if self._began is None:
            self._began = seen.step
        # close the interval, early where the rate has dropped
        if rate_dropped(rate, before):
            self._rate = rate
            self._close(seen, "the learning rate dropped", dropped=True)
        elif seen.step + 1 - self._began >= self.interval:
            self._close(seen, "norms compared", dropped=False)
        else:
            return None
        # each layer by its regime
        plan = _with(self._origin, self._value, self._defaults)
        return None if plan == seen.plan else plan

    def state_dict(self) -> dict[str, Tensor]:
        # by layer: of this rank's shard, where there are shards
        began = -1 if self._began is None else self._began
        interval = torch.tensor([began, self._rate], dtype=torch.float64, device="cpu")
        known = [(name, layer) for name, layer in self._layers.items() if layer.norm or layer.high]
        summed = [(name, layer.sum) for name, layer in self._layers.items() if layer.sum is not None]
        return {
            "interval": interval,
            **{
                f"{SHARED}layer {name}": torch.tensor([layer.norm, layer.high], dtype=torch.float64, device="cpu")
                for name, layer in known
            },
            **{f"{SHARED}sum {name}": total for name, total in summed},
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        began, self._rate = state["interval"].tolist()
        self._began = None if began < 0 else int(began)
        for name in self._layers:
            norm, high = state.get(f"{SHARED}layer {name}", torch.zeros(2, dtype=torch.float64, device="cpu")).tolist()
            total = state.get(f"{SHARED}sum {name}")
            self._layers[name] = _Layer(norm, bool(high), None if total is None else total.clone())

    def _close(self, seen: Observation, reason: str, dropped: bool) -> None:
        # each layer's regime follows from its own sum
        for layer in self._layers.values():
            layer.close(dropped, self.threshold)
        # the next interval
        self._began = seen.step + 1
        high = sum(layer.high for layer in self._layers.values())
        text = f"{reason}: {len(self._layers) - high} layers low, {high} high"
        self.decisions.append(Decision(seen.next_step, text))

    def _value(self, name: str) -> float:
        """A layer's ratio or rank by its regime."""
        return self.high if self._layers[name].high else self.low


def _with(plan: Plan, value_of: Callable[[str], float], defaults: Defaults) -> Plan:
    """A copy of the plan with these ratios or ranks by parameter."""

    def compressor_of(group: Group, name: str) -> Compressor:
        setting = setting_of(group.compressor)
        if setting not in ("ratio", "rank"):
            return group.compressor
        value = value_of(name)
        # ranks from 1 on are whole numbers
        return with_options(group.compressor, {setting: int(value) if setting == "rank" and value >= 1 else value})

    return recompress(plan, compressor_of, defaults)


@dataclass
class _Layer:
    """A layer's regime, and the sum that it follows from."""

    norm: float = 0.0
    """Of the sum of the interval before; 0 at first."""
    high: bool = False
    """Compression is high."""
    sum: Tensor | None = field(default=None, repr=False)
    """Of the layer's mean gradients in this interval so far."""

    def add(self, mean: Tensor, nonfinite: Tensor, scale: Scalar) -> None:
        """Adds a step's mean, unless the step does not count."""
        # a state may have been loaded to another device
        self.sum = torch.zeros_like(mean, dtype=torch.float32) if self.sum is None else self.sum.to(mean.device)
        add_unless(self.sum, mean, nonfinite, scale)

    def close(self, dropped: bool, threshold: float) -> None:
        """Ends an interval, critical where the norm has changed by `threshold` or the learning rate `dropped`."""
        norm = float(self.sum.norm()) if self.sum is not None else 0.0
        change = abs(self.norm - norm) / self.norm if self.norm else inf
        self.norm, self.high = norm, not dropped and change < threshold
        if self.sum is not None:
            self.sum.zero_()
