"""A replica whose numbers are not finite goes back to the anchors with all that it has, and says so."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

import gradwire as gw
from tests.support.harness import raising, together

INNER_STEPS = 4


class Replica:
    """A replica with averages of its own, in BatchNorm's buffers."""

    def __init__(self, transport: gw.Transport, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        self.inner = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.rank, self.taken = transport.rank, 0
        self.optimizer = gw.LocalSteps(self.inner, self.model, inner_steps=INNER_STEPS, transport=transport, **options)

    def train(self, steps: int, factor: float = 1.0) -> None:
        for _ in range(steps):
            self.taken += 1
            inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(2 * self.taken + self.rank))
            self.optimizer.zero_grad()
            (factor * self.model(inputs).square().mean()).backward()
            self.optimizer.step()

    def is_finite(self) -> bool:
        moments = [value for state in self.inner.state.values() for value in state.values()]
        held = [*self.model.state_dict().values(), *moments]
        return all(bool(tensor.isfinite().all()) for tensor in held)

    def anchors(self) -> torch.Tensor:
        with self.optimizer.shared_parameters():
            return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()


WAYS = [{}, {"delay": 2}, {"fragments": 2, "delay": 3}, {"eager": True}, {"compressor": gw.TopK(0.3)}]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_after_a_dropped_round_nothing_is_left_that_is_not_finite(options: dict[str, Any]):
    transports = gw.Threads.group(2)

    def run(rank: int) -> bool:
        replica = Replica(transports[rank], **options)
        replica.train(INNER_STEPS)
        replica.train(1, torch.nan if rank == 0 else 1.0)
        replica.train(2 * INNER_STEPS)
        return replica.is_finite()

    assert raising(together(2, run)) == [True, True]


@pytest.mark.parametrize("options", [each for each in WAYS if "eager" not in each], ids=str)
def test_a_replica_whose_weight_is_zero_may_be_not_finite_and_is_whole_for_the_next_round(options: dict[str, Any]):
    transports = gw.Threads.group(2)

    def run(rank: int) -> tuple[int, bool, bool]:
        weight = [1.0]
        replica = Replica(transports[rank], weight=lambda: weight[0], **options)
        replica.train(INNER_STEPS)
        weight[0] = float(rank)
        replica.train(1, torch.nan if rank == 0 else 1.0)
        replica.train(INNER_STEPS + options.get("delay", 0) - 1)
        weight[0] = 1.0
        finite, before = replica.is_finite(), replica.anchors()
        replica.train(INNER_STEPS)
        return replica.optimizer.handle.stats().skipped, finite, torch.equal(before, replica.anchors())

    assert raising(together(2, run)) == [(0, True, False)] * 2


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_a_dropped_round_is_counted_and_logged_with_whose_numbers_were_not_finite(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    transports = gw.Threads.group(2)

    def run(rank: int) -> tuple[bool, str]:
        replica = Replica(transports[rank], **options)
        replica.train(INNER_STEPS)
        replica.train(1, torch.nan if rank == 0 else 1.0)
        replica.train(2 * INNER_STEPS - 1)
        return replica.optimizer.handle.stats().skipped > 0, replica.optimizer.handle.status()

    with caplog.at_level(logging.WARNING, "gradwire"):
        for counted, status in raising(together(2, run)):
            assert counted
            assert "not being finite" in status
    assert "this replica's own" in caplog.text
    assert options.get("eager") or "some replica's" in caplog.text


def test_averages_that_were_loaded_after_it_was_made_are_gone_back_to():
    transports = gw.Threads.group(2)

    def run(rank: int) -> float:
        replica = Replica(transports[rank])
        averages = replica.model.get_buffer("1.running_mean")
        averages.fill_(5.0)
        replica.train(1)
        replica.train(INNER_STEPS - 1, torch.nan if rank == 0 else 1.0)
        return float(averages.mean())

    assert min(raising(together(2, run))) > 3
