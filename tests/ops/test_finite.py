"""What is not finite never becomes state, wherever it comes from."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.compressors import Parts
from gradwire.compressors.context import SlotState
from gradwire.ops.mean import Mean
from tests.support.harness import SMALL, draw, job, plan_of, slots_of

SLOTS = slots_of(SMALL)
LARGE = 1e3


@dataclass(frozen=True)
class Breaks(gw.FP32):
    """Makes of large gradients a small tensor that is not finite, of each slot or of the group."""

    of: str
    value: Any  # an algorithm's own options are finite

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"seen": torch.zeros(3)}

    def init_group(self) -> dict[str, Tensor]:
        return {"seen": torch.zeros(3)}

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        super().decode(payloads, mean, parts)
        out, context = mean.vector(), parts.context
        value = self.value if out.abs().max() > LARGE / 2 else 1.0
        context.slots.stage("seen", [torch.full((3,), value if self.of == "slot" else 1.0)] * len(context.layout.slots))
        context.group.stage("seen", torch.tensor([1.0, 1.0, value if self.of == "group" else 1.0]))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_step_that_makes_a_factor_not_finite_is_taken_by_no_rank(value: float):
    with job(plan_of(SLOTS, Breaks("slot", value), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        before = running.states()
        means = running.step([[torch.full_like(slot, LARGE) for slot in own] for own in draw(SLOTS, 2, 1)])
        assert not any(mean.isfinite().any() for own in means for mean in own)
        for old, new in zip(before, running.states(), strict=True):
            assert all(torch.equal(new[key], old[key]) for key in old.keys() - {"step", "about"})
        assert all(mean.isfinite().all() for own in running.step(draw(SLOTS, 2, 2)) for mean in own)
        assert [runtime.stats().skipped for runtime in running.runtimes] == [1, 1]


def test_a_groups_number_that_is_not_finite_is_not_kept():
    """Each rank has its own, so the step counts."""
    with job(plan_of(SLOTS, Breaks("group", torch.inf), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        for step in range(2):
            grads = draw(SLOTS, 2, 0, scale=LARGE**step)
            assert all(mean.isfinite().all() for own in running.step(grads) for mean in own)
        for state in running.states():
            assert state["scale//group/seen"].tolist() == [1, 1, 1]
        assert [runtime.stats().skipped for runtime in running.runtimes] == [0, 0]


def test_numbers_whose_sum_is_too_large_are_finite():
    state = SlotState([{"seen": torch.zeros(2)}])
    for largest in (None, torch.tensor([3e38, 3e38])):
        state.stage("seen", [torch.full((2,), 3e38)], largest)
        assert state.nonfinite is not None
        assert state.nonfinite == 0
        state.forget()


def test_what_spoilt_a_step_is_named_on_all_ranks():
    with job(plan_of(SLOTS, gw.TopK(0.5), gw.Residual(), gw.AllGather(), groups=7), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        assert "skipped" not in running.runtimes[0].status()
        grads = draw(SLOTS, 2, 1)
        grads[1][3][0, 0] = torch.inf
        running.step(grads)
        for runtime in running.runtimes:
            assert "1 skipped, the last step 1 for the group of 'body.weight'" in runtime.status()
