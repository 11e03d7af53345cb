"""Descent by signs, against its formula."""

import torch

import gradwire as gw


def test_a_step_shrinks_a_parameter_and_goes_against_the_sign_of_its_gradient():
    moved, resting = torch.tensor([1.0, -2.0, 4.0], requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = gw.SignDescent([{"params": [moved]}, {"params": [resting], "lr": 7.0}], lr=0.5, weight_decay=0.2)
    moved.grad = torch.tensor([3e-9, -8.0, 0.0])
    optimizer.step()
    torch.testing.assert_close(moved.detach(), torch.tensor([0.9 - 0.5, -1.8 + 0.5, 3.6]))
    assert torch.equal(moved.grad, torch.tensor([3e-9, -8.0, 0.0]))
    assert torch.equal(resting.detach(), torch.ones(2))


def test_the_loss_of_a_closure_is_returned():
    x = torch.tensor([2.0], requires_grad=True)

    def closure() -> float:
        (loss := x.square().sum()).backward()
        return loss.item()

    assert gw.SignDescent([x], lr=1.0).step(closure) == 4.0
    assert x.item() == 1.0
