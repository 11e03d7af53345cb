"""Several optimizers of one model, where ranks differ in which of them a backward pass gives gradients."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

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
    monkeypatch.setattr(threads, "PATIENCE_S", 10.0)


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


def test_a_compiled_model_has_the_names_of_the_model_inside():
    transports, models = [Threads.group(2) for _ in range(2)], [Heads(), Heads()]

    def wrap(rank: int) -> list[set[str]]:
        model = models[rank]
        compiled = torch.compile(model, backend="eager")
        first = gw.DistributedOptimizer(
            torch.optim.SGD(model.body.parameters(), 0.1), compiled, transport=transports[0][rank],
            rules=[("body.weight", gw.BF16()), ("*", gw.FP32())],
        )  # fmt: skip
        second = gw.LocalSteps(
            torch.optim.SGD(model.first.parameters(), 0.1), compiled, inner_steps=2, transport=transports[1][rank]
        )
        assert {str(g.compressor) for g in first.handle.plan.groups if "body.weight" in g.slots} == {"BF16()"}
        return [{name for g in each.handle.plan.groups for name in g.slots} for each in (first, second)]

    for names in raising(together(2, wrap)):
        assert names == [{"body.weight", "body.bias"}, {"first.weight", "first.bias"}]


@pytest.mark.parametrize("split", [lambda model: [model.parameters()], matrices_and_the_rest, each_head])
def test_a_step_whose_backward_pass_failed_is_given_up_though_nothing_was_seen_since(split: Split):
    """Neither the model's forward nor the wrapper's zero_grad: the next backward pass is the first thing that is."""
    transports, models = [Threads.group(2) for _ in range(3)], [Heads(), Heads()]

    def train(rank: int) -> list[Tensor]:
        model = models[rank]
        wrapped(model, split, transports, rank)

        def step(number: int) -> None:
            model.zero_grad()
            inputs = torch.randn(2, 4, generator=torch.Generator().manual_seed(10 * number + rank))
            model.forward(inputs, 0).square().sum().backward()

        step(0)
        hook = model.body.weight.register_hook(fail)
        if rank:
            with pytest.raises(ZeroDivisionError):
                step(1)
        hook.remove()
        if not rank:
            step(1)
        model.body.bias.requires_grad_(False)  # to which every optimizer's next step comes after the one given up
        step(2)
        return [p.grad for p in model.parameters() if p.grad is not None]

    alone = Heads()
    alone.body.bias.requires_grad_(False)
    inputs = [torch.randn(2, 4, generator=torch.Generator().manual_seed(20 + rank)) for rank in range(2)]
    torch.stack([alone(each, 0).square().sum() for each in inputs]).mean().backward()
    for gradients in raising(together(2, train)):
        torch.testing.assert_close(gradients, [p.grad for p in alone.parameters() if p.grad is not None])


@pytest.mark.parametrize("seen", ["forward", "zero_grad"])
def test_what_is_seen_behind_a_failed_pass_gives_up_also_what_it_had_not_come_to(seen: str):
    transports, models = [Threads.group(2) for _ in range(3)], [Heads(), Heads()]

    def train(rank: int) -> list[int]:
        model = models[rank]
        optimizers = wrapped(model, each_head, transports, rank)
        hook = model.body.weight.register_hook(fail)
        if rank:
            with pytest.raises(ZeroDivisionError):
                loss_of(model, 0, 1).backward()
        hook.remove()
        if not rank:
            loss_of(model, 0, 0).backward()
        elif seen == "forward":
            model(torch.zeros(1, 4), 0)
        else:
            optimizers[1].zero_grad()
        # all ranks have begun as many steps of each
        for each in optimizers:
            each.handle.verify()
        return [each.handle.stats().steps for each in optimizers]

    assert len({*map(tuple, raising(together(2, train)))}) == 1


@pytest.mark.parametrize("seen", ["forward", "zero_grad", "backward"])
def test_a_pass_that_fails_behind_the_last_gradient_of_an_optimizer_is_no_step_of_it_on_any_rank(seen: str):
    """Rank 0's pass does not fail: with means, it would step what rank 1 does not."""
    transports, models = [Threads.group(2) for _ in range(2)], [Heads(), Heads()]

    def train(rank: int) -> list[Tensor]:
        model = models[rank]
        optimizers = wrapped(model, lambda model: [model.first.parameters(), model.body.parameters()], transports, rank)
        hook = model.body.weight.register_hook(fail)
        if rank:
            with pytest.raises(ZeroDivisionError):
                loss_of(model, 0, 0).backward()
        hook.remove()
        if not rank:
            loss_of(model, 0, 0).backward()
            own = [p.grad for each in (model.first, model.body) for p in each.parameters()]
            assert all(gradient.isnan().all() for gradient in own)
        elif seen == "forward":
            model(torch.zeros(1, 4), 0)
        elif seen == "zero_grad":
            optimizers[0].zero_grad()
        model.zero_grad()
        loss_of(model, 1, 1).backward()
        return [p.grad for each in (model.first, model.body) for p in each.parameters()]

    first, second = raising(together(2, train))
    assert all(map(torch.equal, first, second))
    assert all(gradient.isfinite().all() for gradient in first)


def fail(gradient: Tensor) -> None:
    raise ZeroDivisionError


class Words(nn.Module):
    """A sparse embedding that a pass may leave out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(6, 4, sparse=True), nn.Linear(4, 2)

    def loss(self, words: Tensor | None) -> Tensor:
        hidden = torch.ones(1, 4) if words is None else self.embedding(words)
        return self.head(hidden).square().sum()


def test_what_an_earlier_pass_has_left_of_a_sparse_gradient_counts_where_a_rank_has_no_rows_now():
    transports, models = Threads.group(2), [Words(), Words()]

    def train(rank: int) -> list[Tensor]:
        model = models[rank]
        gw.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model, gw.FP32(), find_unused_parameters=True,
            transport=transports[rank],
        )  # fmt: skip
        model.loss(torch.tensor([rank, 2])).backward()
        model.loss(None if rank else torch.tensor([3])).backward()
        model.embedding.weight.grad = model.embedding.weight.grad.to_dense()
        return [p.grad for p in model.parameters()]

    alone = Words()
    for words in (torch.tensor([0, 2]), torch.tensor([1, 2]), torch.tensor([3]), None):
        (alone.loss(words) / 2).backward()
    alone.embedding.weight.grad = alone.embedding.weight.grad.to_dense()
    for gradients in raising(together(2, train)):
        torch.testing.assert_close(gradients, [p.grad for p in alone.parameters()])


def test_where_all_but_sparse_gradients_is_frozen_there_is_nothing_to_compress():
    transports, models = Threads.group(2), [Words(), Words()]

    def train(rank: int) -> None:
        model = models[rank]
        gw.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model, gw.TopK(0.1), transport=transports[rank]
        )
        model.head.requires_grad_(False)
        with pytest.raises(ValueError, match=r"^all gradients are sparse, .* train a dense parameter as well"):
            model.loss(torch.tensor([rank, 2])).backward()

    raising(together(2, train))


class WithMore(nn.Module):
    """A model with an empty parameter, whole numbers, and a frozen one that no rank could send."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 2)
        self.empty = nn.Parameter(torch.empty(0))
        self.numbers = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
        self.conjugate = nn.Parameter(torch.ones(2, dtype=torch.complex64).conj(), requires_grad=False)


def test_a_rank_that_thaws_what_cannot_be_averaged_ends_local_steps_on_all():
    transports, models = Threads.group(2), [WithMore(), WithMore()]

    def train(rank: int) -> str:
        model = models[rank]
        optimizer = gw.LocalSteps(
            torch.optim.SGD(model.parameters(), 0.1), model, inner_steps=2, transport=transports[rank]
        )
        model.conjugate.requires_grad_(rank == 0)
        model.body(torch.ones(1, 4)).sum().backward()
        with pytest.raises((ValueError, RuntimeError)) as raised:
            step_often(optimizer)
        return str(raised.value)

    own, other = raising(together(2, train))
    assert "parameter 'conjugate' is the conjugate of another tensor" in own
    assert "parameter 'conjugate'" in other


def step_often(optimizer: gw.LocalSteps) -> None:
    for _ in range(4):
        optimizer.step()


def test_in_a_process_alone_a_controller_may_wait_for_what_is_frozen_as_among_several_ranks():
    model = Heads()
    for matrix in (model.body.weight, model.first.weight, model.second.weight):
        matrix.requires_grad_(False)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    alone = {"controller": gw.GraVAC(), "transport": Threads.group(1)[0]}
    assert gw.DistributedOptimizer(inner, model, gw.TopK(0.1), **alone).handle.plan is None
    with pytest.raises(ValueError, match=r"use attach\(ddp, TopK\(0.1\), controller=GraVAC"):
        gw.DistributedOptimizer(inner, model, gw.BF16(), **alone)


def test_parameters_that_nothing_averages_may_be_added_like_those_that_an_optimizer_held():
    model = WithMore()
    for kind in (gw.DistributedOptimizer, gw.LocalSteps):
        optimizer = kind(torch.optim.SGD(model.body.parameters(), 0.1), model, transport=Threads.group(1)[0])
        optimizer.add_param_group({"params": [model.empty, model.numbers]})
        assert len(optimizer.param_groups) == 2
        optimizer.handle.detach()


@pytest.mark.parametrize("kind", [gw.DistributedOptimizer, partial(gw.LocalSteps, inner_steps=2)])
def test_what_another_optimizer_averages_while_one_is_paused_stays(kind: Callable[..., Any]):
    """A generator's step in a GAN, whose critic has an optimizer of its own."""
    transports, models = [Threads.group(2) for _ in range(2)], [Heads(), Heads()]

    def train(rank: int) -> tuple[list[Tensor], list[Tensor | None]]:
        model = models[rank]
        generator = gw.DistributedOptimizer(
            torch.optim.SGD(model.body.parameters(), 0.1), model, gw.FP32(), transport=transports[0][rank]
        )
        critic = kind(torch.optim.SGD(model.first.parameters(), 0.1), model, gw.FP32(), transport=transports[1][rank])
        with critic.handle.paused():
            loss_of(model, rank, rank).backward()
        means = [p.grad for p in model.body.parameters() if p.grad is not None]
        generator.step()
        return means, [p.grad for p in model.first.parameters()]

    alone = Heads()
    torch.stack([loss_of(alone, rank, rank) for rank in range(2)]).mean().backward()
    for means, dropped in raising(together(2, train)):
        torch.testing.assert_close(means, [p.grad for p in alone.body.parameters()])
        assert dropped == [None, None]
