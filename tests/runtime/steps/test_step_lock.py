"""Calls that come at the wrong moment, on one rank or on all."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire import checkpoint
from tests.support.harness import SMALL, draw, job, plan_of, raising, slots_of, together
from tests.support.moments import Failure, Network, dense_of, fail, residual_in

SLOTS = slots_of(SMALL)
NAMES = [name for name, _ in Network().named_parameters()]


def plan(names: list[str], compressor: gw.Compressor) -> gw.Plan:
    """Each in a group of its own."""
    memory = gw.plans.default_memory(compressor)
    groups = [gw.Group((name,), compressor, memory, gw.plans.default_communicator(compressor)) for name in names]
    return gw.Plan(tuple(groups))


class Rank:
    """One rank that trains with `DistributedOptimizer`."""

    def __init__(self, rank: int, transport: gw.Transport, begins: gw.Plan | gw.TopK) -> None:
        self.rank, self.model, self.steps = rank, Network(), 0
        self.optimizer = gw.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.1), self.model, begins, transport=transport,
            dense=dense_of(begins),
        )  # fmt: skip
        self.handle = self.optimizer.handle

    def loss(self) -> Tensor:
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * self.steps + self.rank))
        self.steps += 1
        return self.model(x).square().mean()

    def own(self, loss: Tensor) -> Tensor:
        """What this rank's gradients give of the mean."""
        gradients = torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True)
        return torch.cat([gradient.flatten() for gradient in gradients]).double() / 2

    def mean(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None]).double()


def on_two(body: Callable[[Rank], Any], begins: gw.Plan | gw.TopK) -> list[Any]:
    transports = gw.Threads.group(2)

    def run(rank: int) -> Any:
        trained = Rank(rank, transports[rank], begins)
        try:
            return body(trained)
        finally:
            trained.handle.detach()

    return raising(together(2, run))


def conserved(results: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """What two ranks gave, and kept before, is in the mean or kept now."""
    gave, mean, kept = zip(*results, strict=True)
    torch.testing.assert_close(mean[0] + sum(kept), sum(gave), rtol=1e-5, atol=1e-6)


def step_with(call: Callable[[Rank], None]) -> Callable[[Rank], tuple[Tensor, Tensor, Tensor]]:
    """A step in which the call comes between forward and backward."""

    def body(trained: Rank) -> tuple[Tensor, Tensor, Tensor]:
        loss = trained.loss()
        gave = trained.own(loss)
        call(trained)
        gave += residual_in(trained.handle.state_dict())
        loss.backward()
        return gave, trained.mean(), residual_in(trained.handle.state_dict())

    return body


def test_a_plan_that_comes_between_forward_and_backward_is_in_force_for_them():
    """Groups change places with others of equal shapes, whose residuals would fit."""
    other = [f"layers.{3 - int(name[7])}{name[8:]}" for name in NAMES]
    replan = step_with(lambda trained: trained.handle.replan(plan(other, gw.TopK(0.3))))

    def body(trained: Rank) -> tuple[Tensor, Tensor, Tensor]:
        trained.loss().backward()
        trained.optimizer.zero_grad()
        return replan(trained)

    conserved(on_two(body, plan(NAMES, gw.TopK(0.3))))


def test_a_state_that_comes_between_forward_and_backward_is_gone_on_from():
    """In the first step the state's order of slots, from which the plan is made, is another."""

    def save(trained: Rank) -> dict[str, Tensor]:
        trained.loss().backward()
        read = checkpoint.unpack(trained.handle.state_dict())
        return checkpoint.pack(
            read.exported, read.job, read.step, replace(read.about, order=(*NAMES[::2], *NAMES[1::2]))
        )

    saved = on_two(save, gw.TopK(0.3))
    results = on_two(step_with(lambda trained: trained.handle.load_state_dict(saved[trained.rank])), gw.TopK(0.3))
    conserved(results)


ALL_TOGETHER: list[Callable[[gw.Handle], object]] = [
    lambda handle: handle.replan(plan(NAMES, gw.FP32())),
    lambda handle: handle.load_state_dict(handle.state_dict()),
    lambda handle: handle.state_dict(all_ranks=True),
    lambda handle: handle.verify(),
    lambda handle: handle.stragglers(),
    lambda handle: handle.from_first({}),
]


def test_inside_a_backward_pass_calls_are_refused_on_all_ranks():
    """Rank 0 makes them in a hook; rank 1, too, or before its own backward pass. Training goes on."""

    def body(trained: Rank, one: bool) -> list[str]:
        said: list[str] = []

        def calls(gradient: Tensor | None = None) -> None:
            for call in ALL_TOGETHER:
                with pytest.raises(ValueError, match="inside a backward pass") as refused:
                    call(trained.handle)
                said.append(str(refused.value))

        loss = trained.loss()
        if one and trained.rank:
            calls()
        else:
            trained.model.outputs[1].register_hook(calls)
        loss.backward()
        for call in ALL_TOGETHER:
            call(trained.handle)
        return said

    for one in (False, True):
        first, second = on_two(lambda trained, one=one: body(trained, one), plan(NAMES, gw.TopK(0.3)))
        assert first == second
        assert first[1].endswith(
            "load_state_dict() inside a backward pass; make this call when backward() has returned"
        )


def test_what_cannot_be_sent_to_all_ranks_ends_no_job():
    def body(trained: Rank) -> int:
        with pytest.raises(ValueError, match="a datetime in a state cannot be sent to other ranks"):
            trained.handle.from_first({"when": datetime.now(UTC)})
        trained.loss().backward()
        return trained.handle.stats().steps

    assert on_two(body, plan(NAMES, gw.TopK(0.3))) == [1, 1]


def test_a_job_ends_between_backward_passes():
    def body(trained: Rank) -> None:
        def detach(gradient: Tensor) -> None:
            with pytest.raises(ValueError, match=r"detach\(\) inside a backward pass"):
                trained.handle.detach()

        loss = trained.loss()
        trained.model.outputs[1].register_hook(detach)
        loss.backward()
        assert trained.handle.stats().steps == 1

    on_two(body, plan(NAMES, gw.TopK(0.3)))


@pytest.mark.parametrize("call", [*ALL_TOGETHER, gw.Handle.skip])
def test_after_a_backward_pass_that_failed_calls_are_made(call: Callable[[gw.Handle], object]):
    """No rank takes that step."""

    def body(trained: Rank) -> None:
        trained.loss().backward()
        before = residual_in(trained.handle.state_dict())
        loss = trained.loss()
        trained.model.outputs[1].register_hook(fail)
        with pytest.raises(Failure):
            loss.backward()
        call(trained.handle)
        assert torch.equal(residual_in(trained.handle.state_dict()), before)

    on_two(body, plan(NAMES, gw.TopK(0.3)))


@pytest.mark.parametrize("call", ALL_TOGETHER)
def test_a_handle_whose_job_has_ended_says_so(call: Callable[[gw.Handle], object]):
    """As where its DDP was garbage collected; `detach()` works all the same."""

    def body(trained: Rank) -> None:
        trained.loss().backward()
        trained.handle._runtime.close()
        with pytest.raises(ValueError, match="garbage collected: keep a reference to ddp, or attach anew"):
            call(trained.handle)

    on_two(body, plan(NAMES, gw.TopK(0.3)))


def test_ranks_that_have_begun_other_steps_are_refused():
    """A step may be under way, as local steps have them; a call waits for those that all have begun."""
    first = plan_of(SLOTS, gw.TopK(0.3), gw.Residual(), gw.AllGather())
    with job(first, SLOTS, 2) as running:
        grads, one, other = draw(SLOTS, 2, 0), *running.runtimes
        gradients = [{slot.name: grad for slot, grad in zip(SLOTS, own, strict=True)} for own in grads]
        one.reduce(gradients[0])
        errors = together(2, lambda rank: running.runtimes[rank].install(first))
        assert {str(error) for error in errors} == {
            "the ranks differ in when they call replan(): after 1 steps on rank 0, after 0 steps on rank 1; "
            "give every rank the same"
        }
        other.reduce(gradients[1])
        running.finish()
        assert all(map(torch.equal, gradients[0].values(), gradients[1].values()))

        def waits(rank: int) -> int:
            """How many steps have ended inside a call."""
            runtime = running.runtimes[rank]
            runtime._executor.post(partial(sleep, 0.1))
            runtime.reduce(gradients[rank])
            with runtime.between_steps("a call"):
                return runtime._collector.reduced

        assert raising(together(2, waits)) == [2, 2]


def test_local_steps_refuse_a_plan_that_groups_what_is_sent_at_different_times():
    transports = gw.Threads.group(2)

    def body(rank: int) -> None:
        model = Network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = gw.LocalSteps(sgd, model, gw.TopK(0.3), inner_steps=2, fragments=2, transport=transports[rank])
        group = gw.Group(tuple(NAMES), gw.TopK(0.3), gw.Residual(), gw.AllGather())
        with pytest.raises(ValueError, match="with parameters of another fragment"):
            optimizer.handle.replan(gw.Plan((group,)))
        for _ in range(4):
            optimizer.step()
        optimizer.handle.detach()

    raising(together(2, body))


def test_a_step_that_begins_while_the_plan_becomes_native_is_the_frameworks():
    """DDP has looked at the plan before; then another thread's call has had its turn."""
    with job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2, no_native="") as running:
        running.step(draw(SLOTS, 2, 0))
        running.install(gw.NATIVE)
        assert [runtime.open_step() for runtime in running.runtimes] == [False, False]
        assert {runtime.stats().steps for runtime in running.runtimes} == {1}
        running.install(plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce()))
        running.step(draw(SLOTS, 2, 1))
