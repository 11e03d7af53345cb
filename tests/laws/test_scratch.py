"""Scratch that all groups of a job share holds until the next collective, and no longer: another group's turn may come
in between. That of a thread is one stream's."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gradwire.ops import workspace
from gradwire.ops.workspace import Workspace, scratch_on
from tests.support.cases import CASES, Case, rows
from tests.support.harness import CPU, SMALL, draw, slots_of
from tests.support.lane import Lane

SLOTS, WORLD, STEPS = slots_of(SMALL), 2, 3


class AnotherGroup(Lane):
    """A lane between whose turns another group writes to all scratch."""

    def turn_ended(self) -> None:
        for exchange in self.exchanges:
            overwrite(exchange.context.scratch)


def overwrite(scratch: Workspace) -> None:
    tensors, _ = scratch.contents()
    for tensor in tensors.values():
        tensor.fill_(77)


@rows(CASES)
def test_another_groups_turn_changes_no_mean(case: Case):
    undisturbed, disturbed = Lane(case, SLOTS, CPU, world=WORLD), AnotherGroup(case, SLOTS, CPU, world=WORLD)
    for step in range(STEPS):
        grads: Sequence[Sequence[Tensor]] = draw(SLOTS, WORLD, seed=step)
        for mine, others in zip(disturbed.step(grads), undisturbed.step(grads), strict=True):
            torch.testing.assert_close(mine, others, rtol=0, atol=0)


def test_two_streams_share_no_scratch(monkeypatch: pytest.MonkeyPatch):
    """As those on which two models with FSDP2 roots of their own reduce: the thread that drives both is one."""
    current = [3]
    monkeypatch.setattr(workspace, "stream_of", lambda device: current[0], raising=False)
    first = scratch_on(CPU)
    current[0] = 4
    assert scratch_on(CPU) is not first
    current[0] = 3
    assert scratch_on(CPU) is first
