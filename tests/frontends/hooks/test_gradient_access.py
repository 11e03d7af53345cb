"""Gradients of whole parameters, as autograd leaves them: in memory of others, negated, or of another type."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gradwire as gw
from gradwire.transports import threads
from gradwire.transports.threads import Threads
from tests.support.harness import raising, together

RANKS = 2
Loss = Callable[[dict[str, Tensor], int], Tensor]


@pytest.fixture(autouse=True)
def _fail_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE_S", 10.0)


def factors(rank: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def sum_of_views(p: dict[str, Tensor], rank: int) -> Tensor:
    return ((p["first"].view(2, 300) + p["second"].view(2, 300)) * factors(rank, 2, 300)).sum()


def sum_of_rows(p: dict[str, Tensor], rank: int) -> Tensor:
    return ((p["first"][None] + p["second"][None]) * factors(rank, 1, 600)).sum()


def whole_and_parts(p: dict[str, Tensor], rank: int) -> Tensor:
    parts = torch.cat([p["left"], p["right"]])
    return ((p["first"].view(2, 300) + parts.view(2, 300)) * factors(rank, 2, 300)).sum()


def conjugate(p: dict[str, Tensor], rank: int) -> Tensor:
    return (torch.complex(p["real"], p["imaginary"]).conj() * (rank + 1 + 2j)).real + 0 * p["first"].sum()


NEEDED = {
    sum_of_views: ["first", "second"], sum_of_rows: ["first", "second"],
    whole_and_parts: ["first", "left", "right"], conjugate: ["first", "real", "imaginary"],
}  # fmt: skip
SHAPES = {"first": (600,), "second": (600,), "left": (300,), "right": (300,), "real": (), "imaginary": ()}


def model_of(loss: Loss) -> nn.ParameterDict:
    return nn.ParameterDict({name: torch.full(SHAPES[name], 0.5) for name in NEEDED[loss]})


def own_gradients(loss: Loss, rank: int) -> list[Tensor]:
    model = model_of(loss)
    loss(dict(model.items()), rank).backward()
    return [p.grad.resolve_neg().clone() for p in model.parameters() if p.grad is not None]


def wrapped(model: nn.Module, transport: Threads, **options) -> gw.DistributedOptimizer:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return gw.DistributedOptimizer(optimizer, model, gw.FP32(), transport=transport, **options)


@pytest.mark.parametrize("loss", NEEDED)
@pytest.mark.parametrize("megabytes", [0, 25])
def test_gradients_that_share_memory_or_are_negated_become_the_means_that_ddp_makes(loss: Loss, megabytes: float):
    transports, groups = Threads.group(RANKS), gw.groups.of(megabytes=megabytes)

    def means(rank: int) -> list[Tensor | None]:
        model = model_of(loss)
        optimizer = wrapped(model, transports[rank], groups=groups)
        for _ in range(2):
            optimizer.zero_grad()
            loss(dict(model.items()), rank).backward()
        return [p.grad for p in model.parameters()]

    by_rank = [own_gradients(loss, rank) for rank in range(RANKS)]
    expected = [torch.stack(each).mean(0) for each in zip(*by_rank, strict=True)]
    for ours in raising(together(RANKS, means)):
        torch.testing.assert_close(ours, expected)


def test_a_users_own_buffer_of_all_gradients_has_the_means():
    transports = Threads.group(RANKS)

    def means(rank: int) -> Tensor:
        model = model_of(sum_of_views)
        optimizer = wrapped(model, transports[rank])
        buffer = torch.zeros(1200)
        for parameter, part in zip(model.parameters(), buffer.split(600), strict=True):
            parameter.grad = part.view_as(parameter)
        sum_of_views(dict(model.items()), rank).backward()
        optimizer.handle.detach()
        return buffer

    expected = torch.stack([torch.cat(own_gradients(sum_of_views, rank)) for rank in range(RANKS)]).mean(0)
    for ours in raising(together(RANKS, means)):
        torch.testing.assert_close(ours, expected)


class SumOfViews(nn.Module):
    """A model whose gradients share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.terms = model_of(sum_of_views)

    def forward(self, rank: int) -> Tensor:
        return sum_of_views(dict(self.terms.items()), rank)


def flat_gradients(model: SumOfViews) -> list[Tensor]:
    """Has the model's gradients lie in one buffer, without being views; returns its parts."""
    parts = torch.zeros(1200).split(600)
    for parameter, part in zip(model.parameters(), parts, strict=True):
        parameter.grad = torch.zeros_like(parameter)
        parameter.grad.data = part
    return [*parts]


def kept_views(model: SumOfViews) -> list[Tensor]:
    """Views of the gradients that a backward pass has made."""
    return [p.grad.view(-1) for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("moment", ["before", "after", "later", "views"])
def test_memory_of_the_users_that_has_gradients_has_the_means(moment: str):
    """A buffer from before, or after the optimizer is wrapped, or a step later; or what is kept of that step's."""
    transports = Threads.group(RANKS)

    def means(rank: int) -> list[list[Tensor]]:
        model = SumOfViews()
        own = flat_gradients(model) if moment == "before" else []
        optimizer = wrapped(model, transports[rank])
        own = flat_gradients(model) if moment == "after" else own
        seen: list[list[Tensor]] = []
        for step in range(3):
            optimizer.zero_grad(set_to_none=False)
            if step == 1 and moment in ("later", "views"):
                own = kept_views(model) if moment == "views" else flat_gradients(model)
            model(rank).backward()
            seen += [[part.clone() for part in own]] if own else []
        return seen

    by_rank = [own_gradients(sum_of_views, rank) for rank in range(RANKS)]
    expected = [torch.stack(each).mean(0) for each in zip(*by_rank, strict=True)]
    for ours in raising(together(RANKS, means)):
        assert len(ours) >= 2
        torch.testing.assert_close(ours, [expected] * len(ours))


def test_a_rank_without_a_gradient_gets_the_mean_in_the_type_that_the_parameter_asks_for():
    transports = Threads.group(RANKS)

    def means(rank: int) -> list[Tensor | None]:
        model = nn.ParameterList(torch.ones(4, dtype=torch.bfloat16) for _ in range(2))
        for parameter in model:
            parameter.grad_dtype = torch.float32
        wrapped(model, transports[rank], find_unused_parameters=True)
        (model[0].sum() + (model[1].sum() if rank else 0)).backward()
        return [p.grad for p in model]

    for ours in raising(together(RANKS, means)):
        torch.testing.assert_close(ours, [torch.ones(4), torch.full((4,), 0.5)])
