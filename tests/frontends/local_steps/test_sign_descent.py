"""Descent by signs, against its formula."""

import logging
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

import gradwire as gw
from tests.support.allocations import Largest
from tests.support.harness import raising, together


def test_a_step_shrinks_a_parameter_and_goes_against_the_sign_of_its_gradient():
    moved, resting = torch.tensor([1.0, -2.0, 4.0], requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = gw.SignDescent([{"params": [moved]}, {"params": [resting], "lr": 7.0}], lr=0.5, weight_decay=0.2)
    moved.grad = torch.tensor([3e-9, -8.0, 0.0])
    optimizer.step()
    torch.testing.assert_close(moved.detach(), torch.tensor([0.9 - 0.5, -1.8 + 0.5, 3.6]))
    assert torch.equal(moved.grad, torch.tensor([3e-9, -8.0, 0.0]))
    assert torch.equal(resting.detach(), torch.ones(2))


def test_once_warm_a_step_makes_no_tensor_of_gradient_size():
    parameters = [torch.zeros(256, 64, requires_grad=True), torch.zeros(7, dtype=torch.bfloat16, requires_grad=True)]
    optimizer = gw.SignDescent(parameters, lr=0.5)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with Largest() as made:
        optimizer.step()
    deepcopy(optimizer).step()  # of copies
    assert made.bytes < 64, made.by
    for parameter in parameters:
        assert torch.equal(parameter.detach(), torch.full_like(parameter, -1.0))


def test_sparse_gradients_and_transposed_ones_go_by_their_signs():
    sparse, transposed = torch.zeros(4, requires_grad=True), torch.zeros(2, 3).t().requires_grad_()
    sparse.grad = torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (4,))
    transposed.grad = torch.tensor([[1.0, -1.0], [0.0, 2.0], [-3.0, 4.0]])
    gw.SignDescent([sparse, transposed], lr=0.5).step()
    assert sparse.tolist() == [0.0, -0.5, 0.0, 0.0]
    assert torch.equal(transposed.detach(), -0.5 * transposed.grad.sign())


def test_the_loss_of_a_closure_is_returned():
    x = torch.tensor([2.0], requires_grad=True)

    def closure() -> float:
        (loss := x.square().sum()).backward()
        return loss.item()

    assert gw.SignDescent([x], lr=1.0).step(closure) == 4.0
    assert x.item() == 1.0


def warned(
    caplog: pytest.LogCaptureFixture,
    compressor: gw.compressors.Compressor,
    between: Callable[[gw.DistributedOptimizer], object],
) -> int:
    """How often two ranks are warned in three backward passes, with a call between them."""
    transports = gw.Threads.group(2)
    caplog.set_level(logging.WARNING, "gradwire")
    caplog.clear()

    def body(rank: int) -> None:
        model = nn.Linear(3, 2)
        optimizer = gw.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model, compressor, transport=transports[rank]
        )
        for _ in range(3):
            model(torch.ones(1, 3)).sum().backward()
            between(optimizer)
        optimizer.handle.detach()

    raising(together(2, body))
    return sum("is no gradient" in record.message for record in caplog.records)


def warned_of_momentum(caplog: pytest.LogCaptureFixture, make: Callable[[nn.Linear, gw.Transport], gw.Handle]) -> int:
    """How often each of two ranks is warned that momentum counts twice."""
    transports = gw.Threads.group(2)
    caplog.set_level(logging.WARNING, "gradwire")
    caplog.clear()
    raising(together(2, lambda rank: make(nn.Linear(30, 20), transports[rank]).detach()))
    return sum("momentum would count twice" in record.message for record in caplog.records) // 2


def test_momentum_that_would_count_twice_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def by(
        compressor: gw.compressors.Compressor, memory: gw.Memory | None = None, momentum: float = 0.9, **options: Any
    ) -> int:
        def make(model: nn.Linear, transport: gw.Transport) -> gw.Handle:
            # the matrix, and the bias
            groups = [
                {"params": [model.weight], "momentum": momentum, **options},
                {"params": [model.bias], "momentum": 0.9},
            ]
            sgd = torch.optim.SGD(groups, lr=0.1)
            return gw.DistributedOptimizer(sgd, model, compressor, memory=memory, transport=transport).handle

        return warned_of_momentum(caplog, make)

    def by_rounds(memory: gw.Memory, outer: gw.Outer) -> int:
        def make(model: nn.Linear, transport: gw.Transport) -> gw.Handle:
            adam = torch.optim.AdamW(model.parameters())
            return gw.LocalSteps(adam, model, gw.DGC(0.1), memory=memory, outer=outer, transport=transport).handle

        return warned_of_momentum(caplog, make)

    assert by(gw.DGC(0.1), gw.DGCMemory()) == by(gw.Dion(1 / 4)) == by(gw.Signum()) == 1
    assert by(gw.DGC(0.1), gw.DGCMemory(), momentum=0) == by(gw.Dion(1 / 4), momentum=0) == 0
    assert by(gw.DGC(0.1)) == by(gw.SignSGD()) == 0
    # what other optimizers may call betas
    assert by(gw.Signum(), momentum=0, betas=None) == by(gw.Signum(), momentum=0, betas=0.9) == 0
    assert by_rounds(gw.DGCMemory(), gw.Outer()) == 1
    assert by_rounds(gw.DGCMemory(), gw.Outer(1.0, momentum=0)) == by_rounds(gw.Residual(), gw.Outer()) == 0


def accumulate(optimizer: gw.DistributedOptimizer) -> None:
    """Two more passes of a step that begins."""
    optimizer.zero_grad()
    with optimizer.no_sync():
        for _ in range(2):
            sum(p.sum() for group in optimizer.param_groups for p in group["params"]).backward()


@pytest.mark.parametrize("compressor", [gw.SignSGD(), gw.Signum(), gw.Dion(1)], ids=str)
def test_a_backward_pass_that_adds_to_votes_is_warned_of_once(caplog: pytest.LogCaptureFixture, compressor):
    assert warned(caplog, compressor, lambda optimizer: None) == 2
    assert warned(caplog, compressor, lambda optimizer: optimizer.step()) == 2
    assert warned(caplog, compressor, lambda optimizer: optimizer.zero_grad()) == 0
    assert warned(caplog, compressor, lambda optimizer: optimizer.zero_grad(set_to_none=False)) == 0
    assert warned(caplog, compressor, accumulate) == 0
    assert warned(caplog, gw.FP32(), lambda optimizer: None) == 0
