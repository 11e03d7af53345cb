"""Four ranks in one process, on one device: their batches are computed one after another, their exchange is real."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

import gradwire as gw
from benchmarks.gpu.jobs import Synchronised
from benchmarks.losses.size.model import GPT
from benchmarks.losses.size.ways import Way
from gradwire.frontends.options.choices import StepChoices
from gradwire.frontends.options.parameters import slots_of
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.runtime import Runtime
from gradwire.torch_private.foreach import copy_each

T = TypeVar("T")
RANKS = 4
GROUPS = gw.groups.of(count=2)


class EveryStep:
    """Ranks that exchange gradients at every step. Their weights are equal, so one model stands for all; each has
    gradients and a memory of its own."""

    def __init__(self, model: GPT, way: Way, rate: float) -> None:
        self.model, self._parameters = model, list(model.parameters())
        named = dict(model.named_parameters())
        # rank by rank all gradients side by side, by name; they stay there, so that turns are recorded
        sizes = [p.numel() for p in self._parameters]
        self._flat = [torch.zeros(sum(sizes), dtype=torch.float32, device=model.position.device) for _ in range(RANKS)]
        self._gradients = [
            {name: part.view_as(p) for (name, p), part in zip(named.items(), flat.split(sizes), strict=True)}
            for flat in self._flat
        ]
        # the optimizer sees rank 0's means
        for name, parameter in named.items():
            parameter.grad = self._gradients[0][name]
        self.optimizers = way.optimizers(model, rate)
        slots = slots_of(named)
        plan = StepChoices.of(way.compressor, groups=GROUPS, **way.options).plan(named, lambda: RANKS)(slots)
        device, transports = model.position.device, transports_on(model.position.device)
        self._runtimes = at_once(
            lambda own: Runtime(lambda: plan, slots, gw.Mesh.of(own), device, JobOptions()), transports
        )
        for runtime in self._runtimes:
            runtime.fix_addresses(True)

    def step(self, batches: Sequence[Tensor]) -> Tensor:
        """A step on the windows of each rank; returns the mean loss () before it."""
        losses = list[Tensor]()
        for own, windows in zip(self._gradients, batches, strict=True):
            loss = self.model.loss(windows)
            copy_each(list(own.values()), torch.autograd.grad(loss, self._parameters))
            losses.append(loss.detach())
        # each runtime has a thread: what the last one hands over completes the exchange
        for runtime, own in zip(self._runtimes, self._gradients, strict=True):
            runtime.reduce(own)
        for runtime in self._runtimes:
            runtime.finish()
        for optimizer in self.optimizers:
            optimizer.step()
        return torch.stack(losses).mean()

    def shared(self) -> AbstractContextManager[None]:
        """A context in which `model` has the weights that all ranks share."""
        return nullcontext()

    @property
    def sent(self) -> int:
        """Bytes that one rank has sent."""
        return self._runtimes[0].stats().wire_bytes

    def facts(self) -> dict[str, Any]:
        """Whether the last means are the same on all ranks, the norm of a rank's residuals, and what is recorded."""
        state = self._runtimes[1].state_dict()
        kept = [tensor.double().norm() for name, tensor in state.items() if name.endswith("//residual")]
        return {
            "means equal": all(torch.equal(self._flat[0], other) for other in self._flat[1:]),
            "residual": float(torch.stack(kept).norm()) if kept else 0.0,
            "recorded": self._runtimes[1].stats().recorded,
        }

    def close(self) -> None:
        for runtime in self._runtimes:
            runtime.close()


class Rounds:
    """Ranks that take local steps, each with a model and an optimizer of its own, and exchange after each round."""

    def __init__(self, model: GPT, way: Way, rate: float) -> None:
        self.model, self._models = model, [model, *(deepcopy(model) for _ in range(RANKS - 1))]
        self.optimizers: list[Optimizer] = [own for each in self._models for own in way.optimizers(each, rate)]
        options = {"groups": GROUPS, **way.options, **(way.rounds or {})}
        transports = transports_on(model.position.device)
        self._steppers = at_once(
            lambda own: gw.LocalSteps(own[0], own[1], way.compressor, transport=own[2], **options),
            list(zip(self.optimizers, self._models, transports, strict=True)),
        )

    def step(self, batches: Sequence[Tensor]) -> Tensor:
        """See `EveryStep.step`."""
        losses = list[Tensor]()
        for model, optimizer, windows in zip(self._models, self.optimizers, batches, strict=True):
            optimizer.zero_grad(set_to_none=False)
            loss = model.loss(windows)
            loss.backward()
            losses.append(loss.detach())
        # a round may end in this step: ranks then wait for each other
        at_once(gw.LocalSteps.step, self._steppers)
        return torch.stack(losses).mean()

    def shared(self) -> AbstractContextManager[None]:
        """See `EveryStep.shared`."""
        return self._steppers[0].shared_parameters()

    @property
    def sent(self) -> int:
        """See `EveryStep.sent`."""
        return self._steppers[0].handle.stats().wire_bytes

    def facts(self) -> dict[str, Any]:
        """Whether the shared parameters are the same on all ranks."""
        first, *others = map(self._shared_of, range(RANKS))
        return {"means equal": all(torch.equal(*pair) for own in others for pair in zip(first, own, strict=True))}

    def _shared_of(self, rank: int) -> list[Tensor]:
        with self._steppers[rank].shared_parameters():
            return [p.detach().clone() for p in self._models[rank].parameters()]

    def close(self) -> None:
        for stepper in self._steppers:
            stepper.handle.detach()


def transports_on(device: torch.device) -> list[gw.Threads]:
    """Transports of ranks that are threads, which on a GPU wait for each other's streams."""
    return (Synchronised if device.type == "cuda" else gw.Threads).group(RANKS)


def at_once(body: Callable[[Any], T], ranks: Sequence[Any]) -> list[T]:
    """Calls `body` for each rank on a thread of its own; returns the results, and raises the first error."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(body, ranks))
