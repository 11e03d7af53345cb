"""A training of one configuration: a model in DDP, what reduces its gradients, and an optimizer, behind a card that is
played: 8 ranks, each the only one on its host."""

import os
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from benchmarks.gpu.configurations import CONFIGURATIONS
from benchmarks.gpu.device import Device
from benchmarks.gpu.models import Model
from gradwire.lab.torch_hooks import TorchBF16, TorchFP16, TorchPowerSGD
from gradwire.transports import Pending
from gradwire.transports.played_group import PlayedGroup

WORLD, LATENCY_S = 8, 30e-6
BATCHES = 4
LEAST_WARM, MOST_WARM = 6, 24
"""Steps before those that are measured, until all that can be recorded is."""
HOOKS = {
    "fp16 hook": TorchFP16(),
    "bf16 hook": TorchBF16(),
    "torch PowerSGD r4": TorchPowerSGD(4, 2),
    "torch PowerSGD r1": TorchPowerSGD(1, 2),
}
NATIVE = {"gw.NATIVE": gw.NATIVE, "Auto": None}
"""Those whose plan is that DDP reduces, or becomes that where the link is no limit."""
MOST_AUTO = 400
"""Steps in which the automatic plan is found."""
UNLIMITED = 1e15
AHEAD = 3
"""Steps for which the host launches ahead of the GPU, at most."""


class CountingCard(gw.Card):
    """A card that knows how long it was busy."""

    busy_s = 0.0

    def carry(self, seconds: float, device: torch.device, arrive: Callable[[], None]) -> Pending:
        self.busy_s += seconds
        return super().carry(seconds, device, arrive)


class Times(NamedTuple):
    """Milliseconds of a step, and for how many of them the training thread launched and the card was busy."""

    ms: float
    host_ms: float
    wire_ms: float


class Training:
    """The training of a configuration, or of a peer, by its name in `configurations`."""

    def __init__(self, device: Device, model: Model, name: str, *, records: bool = True, **options: Any) -> None:
        self.name, self._device, self._model = name, device, model
        torch.manual_seed(0)
        self.card = CountingCard(LATENCY_S, UNLIMITED)
        with device.device:
            module = model.build(device.tiny).to(device.device)
        self._batches = [tuple(x.to(device.device) for x in model.batch(device.tiny)) for _ in range(BATCHES)]
        # DDP and torch's hooks have the same card behind them
        group = PlayedGroup(gw.Played(WORLD, self.card))
        cap = {"bucket_cap_mb": 1000} if name.startswith("torch PowerSGD") else {}
        self._ddp = DistributedDataParallel(
            module, process_group=group, broadcast_buffers=False, gradient_as_bucket_view=True, **cap
        )
        self.handle = self._reduced_by(name, records, options)
        self._optimizer = torch.optim.AdamW(self._ddp.parameters(), lr=1e-5, fused=device.is_gpu)
        self._number, self.loss = 0, torch.zeros(())

    def _reduced_by(self, name: str, records: bool, options: dict[str, Any]) -> gw.Handle | None:
        if name in CONFIGURATIONS:
            # read when the first step arranges its groups
            os.environ["GRADWIRE_GRAPHS"] = "1" if records else "0"
            return gw.attach(self._ddp, CONFIGURATIONS[name], transport=gw.Played(WORLD, self.card), **options)
        if name in NATIVE:
            return gw.attach(self._ddp, NATIVE[name], transport=gw.Played(WORLD, self.card))
        if name == "no communication":
            self._ddp.register_comm_hook(None, noop_hook)
        elif name in HOOKS:
            HOOKS[name].register(self._ddp, seed=0)
        return None

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._ddp.parameters())

    @property
    def recorded(self) -> str:
        """How many groups are recorded. Where the plan is native or Auto's, that plan; for DDP and torch's hooks ""."""
        if self.handle and self.name in NATIVE:
            return self.handle.plan.describe() if self.handle.plan else ""
        return self.handle.stats().recorded if self.handle else ""

    def warm_up(self) -> "Training":
        """Steps until no more is compiled, recorded or tried."""
        most = 2 if self._device.tiny else MOST_AUTO if self.name == "Auto" else MOST_WARM
        for number in range(most):
            self.step()
            if self._settled and number >= LEAST_WARM:
                break
        self._device.synchronize()
        return self

    @property
    def _settled(self) -> bool:
        if self.handle is None or self.name in NATIVE:
            return self.handle is None or "choosing a plan" not in self.handle.status()
        return all_recorded(self.recorded)

    def step(self) -> None:
        """One step, as a user's loop makes it."""
        self._optimizer.zero_grad(set_to_none=True)
        inputs, targets = self._batches[self._number % BATCHES]
        with torch.autocast(self._device.device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(self._ddp(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        self.loss = loss.detach()
        self._optimizer.step()
        self._number += 1

    def timed(self, seconds: float) -> Times:
        """Medians over steps that take about so long together, behind one that fills the queue."""
        self.step()
        self._device.synchronize()
        busy, end, here = self.card.busy_s, time.perf_counter() + seconds, list[float]()
        marks = [self._device.mark()]
        while len(here) < 2 or time.perf_counter() < end:
            # a loop that reads its loss now and then is about so far ahead
            self._device.wait_for(marks[-AHEAD]) if len(marks) >= AHEAD else None
            began = time.perf_counter()
            self.step()
            here.append(1e3 * (time.perf_counter() - began))
            marks.append(self._device.mark())
        self._device.synchronize()
        there = [self._device.between(a, b) for a, b in pairwise(marks)]
        return Times(median(there), median(here), 1e3 * (self.card.busy_s - busy) / len(here))

    def close(self) -> None:
        if self.handle:
            self.handle.detach()


def all_recorded(status: str) -> bool:
    """Whether "7 of 8 groups; ..." says that all are."""
    first, *_ = [*status.split(" of "), ""]
    return status.startswith(f"{first} of {first} ")
