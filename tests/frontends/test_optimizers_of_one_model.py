"""Several optimizers of one model, where ranks differ in which of them a backward pass gives gradients."""

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from torch import Tensor, nn

import gradwire as gw
from gradwire.transports import threads
from gradwire.transports.threads import Threads
from tests.support.harness import raising, together

Split = Callable[["Heads"], Sequence[Iterable[Tensor]]]


@pytest.fixture(autouse=True)
def _fail_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE_S", 4.0)


class Heads(nn.Module):
    """Two heads, of which the second one's first gradient is a matrix's, and the first one's a bias's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 4)
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3, bias=False)

    def forward(self, inputs: Tensor, head: int) -> Tensor:
        return (self.first, self.second)[head](self.body(inputs))


def matrices_and_the_rest(model: Heads) -> Sequence[Iterable[Tensor]]:
    return [[p for p in model.parameters() if (p.dim() == 2) == matrix] for matrix in (True, False)]


def each_head(model: Heads) -> Sequence[Iterable[Tensor]]:
    return [model.body.parameters(), model.first.parameters(), model.second.parameters()]


def wrapped(model: Heads, split: Split, transports: list[list[Threads]], rank: int) -> list[gw.DistributedOptimizer]:
    return [
        gw.DistributedOptimizer(
            torch.optim.SGD(own, 0.1), model, gw.FP32(), find_unused_parameters=True, transport=transports[index][rank]
        )
        for index, own in enumerate(split(model))
    ]


def loss_of(model: Heads, step: int, rank: int) -> Tensor:
    inputs = torch.randn(2, 4, generator=torch.Generator().manual_seed(10 * step + rank))
    return model(inputs, (step + rank) % 2).square().sum()


def plain(ranks: int, steps: int, frozen: Callable[[Heads, int], None]) -> Heads:
    """A model that is trained by the mean of all ranks' losses."""
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        frozen(model, step)
        optimizer.zero_grad()
        torch.stack([loss_of(model, step, rank) for rank in range(ranks)]).mean().backward()
        optimizer.step()
    return model


def check_trains_as_plain_torch(split: Split, frozen: Callable[[Heads, int], None]) -> None:
    ranks, steps = 2, 4
    transports, models = [Threads.group(ranks) for _ in range(3)], [Heads() for _ in range(ranks)]

    def train(rank: int) -> tuple[Heads, list[int]]:
        model = models[rank]
        optimizers = wrapped(model, split, transports, rank)
        for step in range(steps):
            frozen(model, step)
            for each in optimizers:
                each.zero_grad()
            loss_of(model, step, rank).backward()
            for each in optimizers:
                each.step()
        return model, [each.handle.stats().steps for each in optimizers]

    expected = plain(ranks, steps, frozen)
    for model, counts in raising(together(ranks, train)):
        torch.testing.assert_close(model.state_dict(), expected.state_dict())
        assert counts == [steps] * len(counts)


@pytest.mark.parametrize("split", [matrices_and_the_rest, each_head])
def test_ranks_that_take_different_branches_wait_for_no_optimizer_before_all_have_handed_over(split: Split):
    check_trains_as_plain_torch(split, lambda model, step: None)


def test_what_is_thawed_is_agreed_on_in_one_order_whichever_optimizer_has_the_first_gradient():
    def frozen(model: Heads, step: int) -> None:
        model.body.requires_grad_(step > 1)

    check_trains_as_plain_torch(matrices_and_the_rest, frozen)


def test_an_optimizer_of_which_all_is_frozen_sends_nothing():
    transports, models = [Threads.group(2) for _ in range(3)], [Heads(), Heads()]

    def train(rank: int) -> list[int]:
        model = models[rank]
        optimizers = wrapped(model, each_head, transports, rank)
        model.second.requires_grad_(False)
        for _ in range(2):
            loss_of(model, 0, 0).backward()
        return [each.handle.stats().steps for each in optimizers]

    assert raising(together(2, train)) == [[2, 2, 0]] * 2


def test_an_optimizer_under_no_sync_takes_no_part():
    transports, models = [Threads.group(2) for _ in range(3)], [Heads(), Heads()]

    def train(rank: int) -> list[Tensor]:
        model = models[rank]
        _, first, second = wrapped(model, each_head, transports, rank)
        with first.no_sync(), second.no_sync():
            loss_of(model, 0, rank).backward()
        assert [each.handle.stats().steps for each in (first, second)] == [0, 0]
        # what was accumulated counts, though this rank's last micro-batch does not come to it
        loss_of(model, 1, rank).backward()
        return gradients_of_heads(model)

    def alone(rank: int) -> list[Tensor]:
        model = Heads()
        for step in range(2):
            loss_of(model, step, rank).backward()
        return gradients_of_heads(model)

    expected = [(first + second) / 2 for first, second in zip(alone(0), alone(1), strict=True)]
    for means in raising(together(2, train)):
        torch.testing.assert_close(means, expected)


def gradients_of_heads(model: Heads) -> list[Tensor]:
    grads = [p.grad for head in (model.first, model.second) for p in head.parameters()]
    return [grad for grad in grads if grad is not None]
