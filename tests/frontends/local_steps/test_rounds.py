"""Rounds of local steps on threads: calls in the middle of them, and their end."""

import logging
import time
from threading import Event
from typing import Any

import pytest
import torch
from torch import nn

import gradwire as gw
from gradwire.frontends.local_steps.fragments import Fragment
from gradwire.frontends.local_steps.schedule import Schedule
from tests.support.harness import hosts, raising, together

INNER_STEPS = 2


class Replica:
    """A replica whose inner steps move nothing."""

    def __init__(self, transport: gw.Transport, frozen: bool = False, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.model.bias.requires_grad_(not frozen)
        inner = torch.optim.SGD(self.model.parameters(), 0.0)
        options = {"inner_steps": INNER_STEPS, **options}
        self.optimizer = gw.LocalSteps(inner, self.model, transport=transport, **options)
        self.handle = self.optimizer.handle

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()

    def shared(self) -> torch.Tensor:
        with self.optimizer.shared_parameters():
            return self.model.weight.detach().clone()


@pytest.mark.parametrize("steps", [0, 1, INNER_STEPS])
@pytest.mark.parametrize("options", [{}, {"delay": 1}, {"delay": 1, "mix": 0.5}], ids=str)
def test_what_was_healed_is_no_movement(options: dict[str, Any], steps: int):
    transports = gw.Threads.group(3)

    def run(rank: int) -> bool:
        replica = Replica(transports[rank], **options)
        before = replica.shared()
        replica.train(steps)
        if rank == 2:  # a mean that came wrong
            with torch.no_grad():
                for tensor in (replica.model.weight, replica.optimizer._rounds.anchors["weight"]):
                    tensor[0, 0] += 3
        assert replica.handle.verify(heal=True) == ["weight"]
        replica.train(3 * INNER_STEPS)
        return torch.equal(replica.shared(), before) and torch.equal(replica.model.weight, before)

    assert raising(together(3, run)) == [True] * 3


def test_what_is_healed_while_it_travels_is_as_if_just_sent():
    weight = nn.Parameter(torch.zeros(3))
    fragment = Fragment({"weight": weight}, Schedule(inner_steps=2, fragments=1, delay=1))
    weight.data += 1
    fragment.measure()
    fragment.healed({"weight"})
    fragment.merge(None)
    assert torch.equal(weight, fragment.anchors["weight"])


def test_what_travels_while_a_parameter_joins_its_fragment_is_as_before():
    weight, thawed = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(2))
    fragment = Fragment({"weight": weight}, Schedule(inner_steps=2, fragments=1, delay=1))
    weight.data += 1
    fragment.measure()
    weight.data += 2
    grown = fragment.grown({"weight": weight, "thawed": thawed})
    assert torch.equal(grown.pseudo_gradients["weight"], torch.full((3,), -1.0))
    grown.merge(None)
    assert weight.tolist() == [2.0] * 3
    assert thawed.tolist() == [1.0] * 2


def test_shared_parameters_of_eager_updates_are_not_compared():
    transports = gw.Threads.group(2)

    def run(rank: int) -> None:
        replica = Replica(transports[rank], eager=True)
        assert replica.handle.verify() == []
        replica.train(1)
        with pytest.raises(ValueError, match="with eager=True every replica has shared parameters of its own"):
            replica.handle.verify()
        replica.train(INNER_STEPS)

    raising(together(2, run))


def test_with_eager_updates_a_host_is_one_replica():
    transports, averages = hosts(2, 2), gw.Outer(1.0, momentum=0)

    def run(rank: int) -> None:
        replica = Replica(transports[rank], eager=True, outer=averages, inner_steps=1)
        moved, before = 1.0 + rank // 2, replica.shared()
        replica.train(1)
        with torch.no_grad():
            replica.model.weight += moved
        replica.train(1)
        torch.testing.assert_close(replica.model.weight, before + moved / 2)

    raising(together(4, run))


def test_the_state_of_a_job_that_has_failed_has_no_mean_that_was_lost():
    transports, sent = gw.Threads.group(2), Event()

    def run(rank: int) -> None:
        replica = Replica(transports[rank], eager=True)
        replica.train(INNER_STEPS)
        if rank == 1:
            replica.optimizer._rounds.runtime.finish()
            sent.wait(60)
            return transports[rank].abort("rank 1 is gone")
        replica.train(INNER_STEPS)
        sent.set()
        means = replica.optimizer._rounds.progress()["eager"][0]["means"]
        assert all(mean.isnan().all() for mean in means.values())

    raising(together(2, run))


@pytest.mark.parametrize("call", ["verify", "thaw"])
def test_the_first_step_and_calls_in_a_round_wait_as_long_as_a_round_does(call: str):
    transports = gw.Threads.group(2)

    def run(rank: int) -> None:
        replica = Replica(transports[rank], frozen=call == "thaw")
        # what a meeting before training waits: not at all
        replica.optimizer._rounds.runtime._agreement._meeting._patience_s = 0.0
        time.sleep(0.3 * rank)
        replica.train(1)
        time.sleep(0.3 * rank)
        if call == "verify":
            assert replica.handle.verify() == []
        replica.model.bias.requires_grad_(True)
        replica.train(INNER_STEPS)

    raising(together(2, run))


def test_shared_parameters_before_the_first_outer_step_are_those_of_the_beginning(caplog: pytest.LogCaptureFixture):
    replica = Replica(gw.Threads.group(1)[0], delay=1)
    with caplog.at_level(logging.WARNING, "gradwire"):
        replica.shared()
        assert not caplog.text
        replica.train(INNER_STEPS)
        replica.shared()
        assert "no outer step yet" in caplog.text
        caplog.clear()
        replica.train(1)
        replica.shared()
    assert not caplog.text
