"""Descent by signs, against its formula."""

from copy import deepcopy

import torch

import gradwire as gw
from tests.support.allocations import Largest


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
