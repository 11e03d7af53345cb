"""DeMo (Peng et al., 2024, https://arxiv.org/abs/2411.19870), written from the paper's algorithm in float64, against
Gradwire's parts."""

from math import pi, sqrt

import pytest
import torch
from torch import Tensor

import gradwire as gw
from tests.support.descent import descend, gradient
from tests.support.harness import job, plan_of, slots_of

STEPS, K, CHUNK, BETA, LR, DECAY = 10, 5, 8, 0.999, 0.01, 0.1
SHAPES = {"weight": (16, 12), "bias": (20,), "twin": (16, 12), "kernel": (4, 3, 2, 2)}
TOLERANCE = 1e-5
"""Of parameters of size 1 that move by 0.01 a step: an element whose sign differed would be off by 2e-2."""


def cosines(n: int) -> Tensor:
    """The DCT-II of n numbers as a matrix, by its formula."""
    frequency, place = torch.arange(n).double()[:, None], torch.arange(n).double()
    scale = torch.full((n, 1), sqrt(2 / n)).double()
    scale[0] = sqrt(1 / n)
    return scale * torch.cos(pi / n * (place + 0.5) * frequency)


def side(n: int) -> int:
    return max(divisor for divisor in range(1, CHUNK + 1) if n % divisor == 0)


def update(deltas: list[Tensor], over_senders: bool) -> Tensor:
    """Takes what is sent out of each rank's delta (rows, columns); returns what all of them decode."""
    result = torch.zeros_like(deltas[0])
    rows, columns = map(side, result.shape)
    down, across = cosines(rows), cosines(columns)
    for i in range(0, result.shape[0], rows):
        for j in range(0, result.shape[1], columns):
            total, senders = torch.zeros(rows, columns).double(), torch.zeros(rows, columns)
            for delta in deltas:
                block = delta[i : i + rows, j : j + columns]
                found = down @ block @ across.T
                chosen = torch.zeros(rows * columns).double()
                chosen[found.flatten().abs().topk(min(K, rows * columns)).indices] = 1
                chosen = chosen.view(rows, columns)
                block -= down.T @ (found * chosen) @ across
                total += found * chosen
                senders += chosen
            mean = total / (senders.clamp(min=1) if over_senders else len(deltas))
            result[i : i + rows, j : j + columns] = down.T @ mean @ across
    return result


def matrix(x: Tensor) -> Tensor:
    return x.view(1, -1) if x.dim() < 2 else x.view(len(x), -1)


@pytest.mark.parametrize("over_senders", [True, False])
@pytest.mark.parametrize("world", [2, 3])
def test_ten_steps_are_those_of_the_paper(world: int, over_senders: bool):
    start = {name: torch.randn(shape, generator=torch.Generator().manual_seed(7)) for name, shape in SHAPES.items()}
    expected = {name: tensor.double() for name, tensor in start.items()}
    deltas = {name: [torch.zeros_like(matrix(p)) for _ in range(world)] for name, p in expected.items()}
    ranks = [[p.clone().requires_grad_() for p in start.values()] for _ in range(world)]
    optimizers = [gw.SignDescent(own, LR, DECAY) for own in ranks]

    slots = slots_of(start)
    memory, communicator = gw.Residual(decay=BETA), gw.AllGather(over_senders=over_senders)
    with job(plan_of(slots, gw.DCTTopK(K, CHUNK), memory, communicator), slots, world) as running:
        for step in range(STEPS):
            # Gradwire
            descend(running, ranks, optimizers, step)
            # the paper
            for name, parameter in expected.items():
                for rank, delta in enumerate(deltas[name]):
                    delta.mul_(BETA).add_(matrix(gradient(parameter, rank, step)))
                moved = update(deltas[name], over_senders).view(parameter.shape)
                parameter.mul_(1 - LR * DECAY).sub_(moved.sign(), alpha=LR)
        residuals = running.state("residual")

    for place, (name, parameter) in enumerate(expected.items()):
        for rank in range(world):
            torch.testing.assert_close(ranks[rank][place].double(), parameter, rtol=0, atol=TOLERANCE)
            kept = matrix(residuals[rank][place]).double() * world
            torch.testing.assert_close(kept, deltas[name][rank], rtol=0, atol=TOLERANCE)
            assert torch.equal(ranks[rank][place], ranks[0][place])
