"""Steps of optimizers on the ranks of a job, for oracles of algorithms that are compressor and optimizer in one."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from tests.support.harness import Job


def gradient(parameter: Tensor, rank: int, step: int) -> Tensor:
    """One that depends on where the parameter is."""
    noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(100 * step + rank))
    return parameter - 1 + noise.to(parameter.dtype)


def descend(running: Job, ranks: Sequence[Sequence[Tensor]], optimizers: Sequence[Optimizer], step: int) -> None:
    """Reduces the gradients of all ranks' parameters, and has each rank's optimizer take a step by what that gives."""
    gradients = [[gradient(p.detach(), rank, step) for p in own] for rank, own in enumerate(ranks)]
    for own, means, optimizer in zip(ranks, running.step(gradients), optimizers, strict=True):
        for parameter, mean in zip(own, means, strict=True):
            parameter.grad = mean
        optimizer.step()
