"""Dion (Ahn et al., 2025, https://arxiv.org/abs/2504.05295), written from the paper's algorithm for data-parallel ranks
in float64, against Gradwire's parts."""

from math import sqrt

import pytest
import torch
from torch import Tensor

import gradwire as gw
from tests.support.descent import descend, gradient
from tests.support.harness import job, plan_of, slots_of

STEPS, MU, LR, DECAY, EPSILON = 10, 0.9, 0.02, 0.1, 1e-8
SHAPES = {"tall": (24, 10), "bias": (20,), "wide": (9, 30), "twin": (24, 10), "kernel": (6, 3, 2, 2)}
NEAR, NEARLY = {"rtol": 0, "atol": 3e-6}, {"rtol": 0, "atol": 1e-4}
"""For parameters of size 1, which move by about 0.01 a step; and for momenta of size 5 and Q, of which some columns are
little more than rounding errors of the others where r is large."""


class Matrix:
    """A matrix X (m, n) of the paper, which all ranks have, with their momenta M (m, n) and Q (n, r)."""

    def __init__(self, x: Tensor, q: Tensor, world: int) -> None:
        self.x, self.q, self.momenta = x, q, [torch.zeros_like(x) for _ in range(world)]

    def step(self, gradients: list[Tensor]) -> None:
        for momentum, added in zip(self.momenta, gradients, strict=True):
            momentum += added
        p = torch.linalg.qr(mean([momentum @ self.q for momentum in self.momenta])).Q
        r = mean([momentum.T @ p for momentum in self.momenta])
        for momentum in self.momenta:
            momentum -= (1 - MU) * p @ r.T
        self.q = r / (r.norm(dim=0) + EPSILON)
        m, n = self.x.shape
        self.x.mul_(1 - LR * DECAY).sub_(LR * sqrt(m / n) * p @ self.q.T)


def mean(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).mean(0)


def columns(q: Tensor) -> Tensor:
    """Q (n, r) with columns of length 1, the largest element of each above zero."""
    signs = q.gather(0, q.abs().argmax(0, keepdim=True)).sign()
    return q / q.norm(dim=0) * signs


@pytest.mark.parametrize("rank", [1, 3, 1 / 2, 1000], ids="r = {}".format)
@pytest.mark.parametrize("world", [2, 3])
def test_ten_steps_are_those_of_the_paper(world: int, rank: float):
    """The paper takes the mean factors out of each momentum, Gradwire each rank's own: their mean, from which all else
    follows, is the same."""
    start = {name: torch.randn(shape, generator=torch.Generator().manual_seed(7)) for name, shape in SHAPES.items()}
    ranks = [[p.clone().requires_grad_() for p in start.values()] for _ in range(world)]
    optimizers = [torch.optim.SGD(own, LR, weight_decay=DECAY) for own in ranks]

    slots = slots_of(start)
    with job(plan_of(slots, gw.Dion(rank, mu=MU), gw.Residual(), gw.AllReduce()), slots, world) as running:

        def kept(name: str) -> Tensor:
            return running.runtimes[0].state_dict()[f"{name}//shared/q"].double().T.clone()

        matrices = {
            name: Matrix(p.double().view(len(p), -1), kept(name), world) for name, p in start.items() if p.dim() > 1
        }
        bias = start["bias"].double()
        for step in range(STEPS):
            # Gradwire
            descend(running, ranks, optimizers, step)
            # the paper
            for name, matrix in matrices.items():
                x = matrix.x.view(SHAPES[name])
                matrix.step([gradient(x, rank, step).view(matrix.x.shape) for rank in range(world)])
            bias = (1 - LR * DECAY) * bias - LR * mean([gradient(bias, rank, step) for rank in range(world)])
        residuals = running.state("residual")
        last = {name: kept(name) for name in matrices}

    for place, name in enumerate(SHAPES):
        own, residual = ranks[0][place].detach().double(), sum(each[place].double() for each in residuals)
        assert all(torch.equal(ranks[0][place], other[place]) for other in ranks)
        if name == "bias":
            torch.testing.assert_close(own, bias, **NEAR)
            continue
        matrix = matrices[name]
        torch.testing.assert_close(own.view(matrix.x.shape), matrix.x, **NEAR)
        torch.testing.assert_close(residual.view(matrix.x.shape), mean(matrix.momenta), **NEARLY)
        torch.testing.assert_close(columns(last[name]), columns(matrix.q), **NEARLY)
