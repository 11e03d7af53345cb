"""Warm-up: little compression at first, while gradients are large and change fast."""

from dataclasses import dataclass
from math import ceil, log

import torch
from torch import Tensor

from gradwire.compressors import FP32, Compressor, Quantized
from gradwire.controllers.controller import Controller, Decision, Observation
from gradwire.controllers.recompress import has, recompress, update_in, with_options
from gradwire.plans import Group, Plan


@dataclass
class WarmUp(Controller):
    """Deep Gradient Compression's exponential schedule of the ratio (Lin et al., ICLR 2018,
    https://arxiv.org/abs/1712.01887): it falls in stages, each by the same factor of at most 4, from `start` to the
    compressor's own ratio. With `bits` there is one stage instead, for every compressor with a memory, low rank too.
    """

    start: float = 0.25
    """The first ratio, in (0, 1]."""
    steps: int = 1000
    """After the dense ones, until the compressor's own ratio is reached."""
    dense: int = 0
    """The first steps send all, before the stages."""
    bits: int | None = None
    """Instead of stages, all elements are sent in so many bits (`Quantized`), such as 8 or 4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.start <= 1:
            raise ValueError(f"start={self.start} is not the ratio of elements to send first; use e.g. start=0.25")
        if self.steps < 1 or self.dense < 0:
            raise ValueError(
                f"steps={self.steps}, dense={self.dense} count steps; use e.g. WarmUp(start=0.25, steps=1000)"
            )
        if self.bits is not None and self.start != type(self).start:
            raise ValueError(
                f"bits={self.bits} send all elements, and start={self.start} would change nothing; use "
                f"WarmUp(bits={self.bits}) or WarmUp(start={self.start})"
            )
        self._first = None if self.bits is None else Quantized(self.bits)
        self._origin, self._done = Plan(()), 0

    def check(self, plan: Plan) -> None:
        if self._first:
            self._check_bits(plan)
        else:
            self._check_ratios(plan)

    def _check_bits(self, plan: Plan) -> None:
        # there must be a residual for what the bits lose
        if not any(map(self._warms, plan.groups)):
            raise ValueError(
                f"WarmUp(bits={self.bits}) keeps what it does not send, and {plan.groups[0].compressor} has no memory; "
                "use memory=Residual(), or e.g. attach(ddp, TopK(0.01), controller=WarmUp(bits=8))"
            )
        # no updates, in place of which bits would bring gradients
        if update := update_in(plan):
            raise ValueError(f"bits={self.bits} send mean gradients, and {update} makes updates; leave WarmUp out")
        # and no memory that masks what was sent
        if any(group.memory.wants_sparse for group in plan.groups):
            raise ValueError(
                "all elements are sent in bits, after which DGCMemory keeps no momentum; use WarmUp(start=0.25)"
            )

    def _check_ratios(self, plan: Plan) -> None:
        # there must be a ratio to change
        ratios = [_ratio(group.compressor) for group in plan.groups if has(group.compressor, "ratio")]
        if not ratios:
            raise ValueError(
                f"WarmUp changes a sparsifier's ratio, and {plan.groups[0].compressor} has none; "
                "use e.g. attach(ddp, DGC(0.001), controller=WarmUp())"
            )
        if min(ratios) == 1:
            raise ValueError(
                "the compressor sends all already, with ratio=1, and nothing warms up; "
                "use e.g. attach(ddp, TopK(0.01), controller=WarmUp())"
            )
        # which falls, where not all is sent
        most = max(ratio for ratio in ratios if ratio < 1)
        if self.start <= most:
            raise ValueError(
                f"start={self.start} sends no more than the compressor's ratio={most}; "
                f"use e.g. WarmUp(start={min(1.0, 4 * most):g})"
            )

    def begin(self, plan: Plan) -> Plan:
        self._origin = plan
        return self._plan()

    def decide(self, seen: Observation) -> Plan | None:
        # the stage follows from the step alone
        self._done = seen.next_step
        plan = self._plan()
        if plan == seen.plan:
            return None
        self.decisions.append(self._decision(plan))
        return plan

    def _decision(self, plan: Plan) -> Decision:
        if self._first:
            return Decision(self._done, "the plan" if plan == self._origin else f"{self.bits} bits")
        ratios = {_ratio(group.compressor) for group in plan.groups if has(group.compressor, "ratio")}
        # groups that send all at all times do not count, and in dense steps, to which a resume may go back, all do
        most = max(ratios - {1.0} or {1.0})
        return Decision(self._done, f"ratio {most:.3g}", factor=1 / most)

    def state_dict(self) -> dict[str, Tensor]:
        return {"done": torch.tensor(self._done, dtype=torch.int64, device="cpu")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._done = int(state["done"])

    def _plan(self) -> Plan:
        def compressor_of(group: Group, name: str) -> Compressor:
            if not self._warms(group):
                return group.compressor
            # dense steps, then bits or stages of ratios, then as given
            if self._done < self.dense:
                return FP32()
            if self._first:
                return self._first if self._done < self.dense + self.steps else group.compressor
            return with_options(group.compressor, {"ratio": self._ratio_now(_ratio(group.compressor))})

        return recompress(self._origin, compressor_of, self._defaults)

    def _warms(self, group: Group) -> bool:
        """Whether the schedule is for this group."""
        if self._first:
            return group.memory.error_feedback and not group.compressor.is_cast
        return has(group.compressor, "ratio") and _ratio(group.compressor) < 1

    def _ratio_now(self, final: float) -> float:
        """The ratio after the steps done so far, for a compressor of this ratio."""
        # stages of a factor of 4 or less
        stages = ceil(log(self.start / final, 4) - 1e-9)
        stage = (self._done - self.dense) * stages // self.steps
        return max(final, self.start * (final / self.start) ** (stage / stages)) if stage < stages else final


def _ratio(compressor: Compressor) -> float:
    return compressor.ratio  # pyright: ignore[reportAttributeAccessIssue]
