"""What a workload is: a model, an endless stream of batches for every rank, a loss, and held-out figures."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, on the CPU, batch dimension first."""

_EVALUATION_CHUNK = 32
_HELD_OUT_SEED = 1 << 32


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A classification or next-token workload; its fields are the sizes a user may set.

    Data is read when the task is made (and kept for the next task made alike), so that a missing or broken
    file raises ValueError there. A task holds no tensors itself: it is cheap to hash, compare and send.
    """

    name: ClassVar[str]
    metric: ClassVar[Literal["loss", "accuracy"]]
    """The key of `evaluate`'s result that the field reports."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{field.name} must be at least 1, got {value}")

    def build_model(self, seed: int) -> nn.Module:
        """A fresh model, the same on every rank for the same seed; the global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._module()

    @abstractmethod
    def _module(self) -> nn.Module:
        """The model, its parameters drawn from the global generator."""

    @abstractmethod
    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """Endless training batches of `rank`: ranks that give the same seed share no sample in an epoch."""

    @abstractmethod
    def held_out(self) -> Batch:
        """The fixed held-out samples that `evaluate` uses, as one large batch."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats; logits are (..., classes), targets the same shape without classes."""
        return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Held-out `loss` (nats) and `accuracy` (0 to 1), computed on the device the model is on.

        Give the bare module, not its DDP wrapper: that one talks to the other ranks in forward.
        """
        device = next(model.parameters()).device
        inputs, targets = self.held_out()
        was_training = model.training
        model.eval()
        loss_sum, correct = 0.0, 0
        for x, y in zip(inputs.split(_EVALUATION_CHUNK), targets.split(_EVALUATION_CHUNK), strict=True):
            logits, y_there = model(x.to(device)), y.to(device)
            loss_sum += self.loss(logits, y_there).item() * y.numel()
            correct += int((logits.argmax(-1) == y_there).sum())
        model.train(was_training)
        return {"loss": loss_sum / targets.numel(), "accuracy": correct / targets.numel()}


def epoch(generator: Generator, samples: int, batch: int, rank: int, world: int) -> Tensor:
    """One epoch's sample indices of `rank`, shape (steps, batch).

    Ranks whose generators are alike get disjoint parts of one permutation; the world's samples of a step
    depend on world x batch alone. Samples that do not fill a last step are left out.
    """
    steps = samples // (world * batch)
    if steps == 0:
        raise ValueError(f"{samples} training samples do not fill one step of {world} x {batch}: lower batch")
    order = torch.randperm(samples, generator=generator)[: steps * world * batch]
    return order.view(steps, world, batch)[:, rank]


class RandomTask(Task):
    """Random data of a fixed shape, for measuring step times: there is nothing to learn."""

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """Fresh random batches, different on every rank."""
        generator = Generator().manual_seed(seed * world + rank)
        while True:
            yield self._draw(generator)

    def held_out(self) -> Batch:
        """One fixed random batch."""
        return self._draw(Generator().manual_seed(_HELD_OUT_SEED))

    @abstractmethod
    def _draw(self, generator: Generator) -> Batch:
        """A batch."""
