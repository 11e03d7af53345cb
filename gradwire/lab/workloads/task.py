"""The interface of workloads: a model, endless batches for every rank, a loss, and held-out figures."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import islice
from math import exp, inf
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from gradwire.lab.names import MOST
from gradwire.lab.random_state import seeded
from gradwire.lab.task_error import TaskError
from gradwire.lab.workloads.to_device import to_device

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, on the CPU, batch dimension first."""

IGNORED = -100
"""A target that counts neither in the loss nor in a score, as in `torch.nn.functional.cross_entropy`."""

_EVALUATION_CHUNK = 32
_HELD_OUT_SEED = (1 << 32) - 1


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A classification or next-token workload; its fields are the sizes a user may set.

    Data is read when the task is made (and kept for the next task with the same options), so that a missing or broken
    file raises ValueError there. A task holds no tensors itself: it is cheap to hash, compare and send.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    """The key of `evaluate`'s result that the field reports."""
    optimizer: ClassVar[Literal["sgd", "adamw"]] = "sgd"
    """The default optimizer."""
    scored: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "top5")
    """Names of the sums in `scores`."""
    sample: ClassVar[int] = 512
    """Number of held-out samples to evaluate during a training."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and not 1 <= value <= MOST:
                bound = "at least 1" if value < 1 else f"at most {MOST:,}"
                raise ValueError(f"{field.name} must be {bound}, got {value}")

    def build_model(self, seed: int) -> nn.Module:
        """A fresh model, the same on every rank for the same seed; torch's generators are left as they were."""
        with seeded(seed):
            return self._module()

    def parameters(self) -> int:
        """The number of the model's parameters."""
        return sum(parameter.numel() for parameter in self.build_model(0).parameters())

    @abstractmethod
    def _module(self) -> nn.Module:
        """The model, its parameters drawn from the global generator."""

    @abstractmethod
    def batches(self, rank: int, world: int, seed: int, start: int = 0) -> Iterator[Any]:
        """Endless training batches of `rank` from step `start` on, whatever came before: ranks that give the
        same seed share no sample in an epoch."""

    @abstractmethod
    def epoch_steps(self, world: int) -> int:
        """Steps of an epoch on `world` ranks; samples that do not fill a last step are left out.

        Raises ValueError where there is not one."""

    @property
    @abstractmethod
    def held_out_size(self) -> int:
        """The number of held-out samples."""

    @abstractmethod
    def held_out_batch(self, index: Tensor) -> Any:
        """The held-out samples with these numbers."""

    @property
    def looked_at(self) -> str:
        """The figure that a report shows."""
        return self.metric

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats; logits are (..., classes), targets the same shape without classes."""
        return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())

    def training_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss of a batch that lies where the model does. Raises TaskError where the step before left a
        parameter of a DDP model without a gradient."""
        try:
            return self.batch_loss(model, batch)
        except RuntimeError as error:
            # DDP advises an option that the lab does not have
            if "find_unused_parameters" not in str(error):
                raise
            raise TaskError(
                "a parameter of the model had no gradient in the last step; freeze those that the loss does not use, "
                "by requires_grad_(False)"
            ) from error

    def batch_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss of a batch, as `training_loss` has it."""
        inputs, targets = batch
        return self.loss(model(inputs), targets)

    def scores(self, model: nn.Module, batch: Any) -> list[float]:
        """Sums over the targets of a batch, in the order of `scored`, and how many targets there are."""
        inputs, targets = batch
        logits = model(inputs).flatten(0, -2)
        targets = targets.flatten()
        count = int((targets != IGNORED).sum())
        best = logits.topk(min(5, logits.shape[-1])).indices == targets[:, None]
        return [self.loss(logits, targets).item() * count, int(best[:, 0].sum()), int(best.sum()), count]

    @torch.no_grad()
    def sums(self, model: nn.Module, rank: int = 0, world: int = 1, whole: bool = False) -> list[float]:
        """`scores` of this rank's part of the held-out samples, of all of them or of a fixed choice; ranks add theirs.

        Give the bare module, not its DDP wrapper: that one talks to the other ranks in forward."""
        # without dropout, and as it was afterwards
        device = next(model.parameters()).device
        was_training = model.training
        model.eval()
        total = [0.0] * (len(self.scored) + 1)
        # each rank takes its part of the samples
        for index in self._chosen(whole)[rank::world].split(_EVALUATION_CHUNK):
            if len(index):
                scores = self.scores(model, to_device(self.held_out_batch(index), device))
                total = [a + b for a, b in zip(total, scores, strict=True)]
        model.train(was_training)
        return total

    def figures(self, sums: list[float]) -> dict[str, float]:
        """Means by the sums of `scores`: `loss` in nats, others from 0 to 1."""
        *totals, count = sums
        return {name: total / count for name, total in zip(self.scored, totals, strict=True)}

    def evaluate(self, model: nn.Module, whole: bool = False) -> dict[str, float]:
        """Held-out figures, computed on the device the model is on."""
        return self.figures(self.sums(model, whole=whole))

    def _chosen(self, whole: bool) -> Tensor:
        """The numbers of the held-out samples to look at: all, or `sample` of them, evenly spread."""
        size = self.held_out_size
        if whole or size <= self.sample:
            return torch.arange(size)
        return torch.linspace(0, size - 1, self.sample, dtype=torch.float64).long()


def steps_of(samples: int, batch: int, world: int) -> int:
    """The steps that so many samples fill. Raises ValueError where it is not one."""
    steps = samples // (world * batch)
    if steps == 0:
        raise ValueError(f"{samples} training samples do not fill one step of {world} x {batch}: lower batch")
    return steps


def epoch(generator: Generator, samples: int, batch: int, rank: int, world: int) -> Tensor:
    """One epoch's sample indices of `rank`, shape (steps, batch).

    Ranks with equal generators get disjoint parts of one permutation; the world's samples of a step
    depend on world x batch alone. Samples that do not fill a last step are left out.
    """
    # one permutation for all ranks; each step takes a row for every rank
    steps = steps_of(samples, batch, world)
    order = torch.randperm(samples, generator=generator)[: steps * world * batch]
    return order.view(steps, world, batch)[:, rank]


def endless(draw_epoch: Callable[[Generator], Tensor], seed: int, start: int) -> Iterator[Tensor]:
    """Row after row (batch,) of one drawn epoch (steps, batch) after the other, without the first `start` rows."""

    def rows() -> Iterator[Tensor]:
        generator = Generator().manual_seed(seed)
        while True:
            yield from draw_epoch(generator)

    return islice(rows(), start, None)


def random_images(count: int, pixels: int, classes: int, generator: Generator) -> Batch:
    """Images (count, 3, pixels, pixels) and labels (count,)."""
    images = torch.randn(count, 3, pixels, pixels, generator=generator)
    return images, torch.randint(classes, (count,), generator=generator)


def random_windows(count: int, length: int, words: int, generator: Generator) -> Batch:
    """Tokens (count, length) and, of the same shape, the next token of each."""
    tokens = torch.randint(words, (count, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


class RandomTask(Task):
    """Random data of a fixed shape, for measuring step times: there is nothing to learn."""

    def batches(self, rank: int, world: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Fresh random batches, different on every rank."""

        def drawn() -> Iterator[Batch]:
            generator = Generator().manual_seed(seed * world + rank)
            while True:
                yield self._draw(generator)

        return islice(drawn(), start, None)

    def epoch_steps(self, world: int) -> int:
        """Refused: there is no end to random data."""
        raise ValueError(f"{self.name} draws its data at random and has no epochs: give --steps")

    @property
    def held_out_size(self) -> int:
        return 1

    def held_out_batch(self, index: Tensor) -> Batch:
        return self._draw(Generator().manual_seed(_HELD_OUT_SEED))

    @abstractmethod
    def _draw(self, generator: Generator) -> Batch:
        """A batch."""


class DealtTask(Task):
    """A task whose samples each epoch deals out to the ranks in a new order, `batch` to a rank's step."""

    batch: int

    @property
    @abstractmethod
    def train_size(self) -> int:
        """The number of samples to train on."""

    def epoch_steps(self, world: int) -> int:
        return steps_of(self.train_size, self.batch, world)

    def dealt(self, rank: int, world: int, seed: int, start: int) -> Iterator[Tensor]:
        """The samples of a rank's steps (batch,), from step `start` on."""
        return endless(lambda generator: self._epoch(generator, rank, world), seed, start)

    def _epoch(self, generator: Generator, rank: int, world: int) -> Tensor:
        """An epoch's samples of a rank, (steps, batch)."""
        return epoch(generator, self.train_size, self.batch, rank, world)


class WordsTask(DealtTask):
    """A task of words to guess."""

    def figures(self, sums: list[float]) -> dict[str, float]:
        """Also the perplexity of the mean loss, infinite where that is too large."""
        figures = super().figures(sums)
        return figures | {"perplexity": exp(figures["loss"]) if figures["loss"] < 700 else inf}
