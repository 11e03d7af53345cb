"""A training of one configuration: a model in DDP, what reduces its gradients, and an optimizer, behind a card that is
played: 8 ranks, each the only one on its host, unless another cluster is given."""

import os
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from benchmarks.gpu.configurations import CONFIGURATIONS
from benchmarks.gpu.device import Device
from benchmarks.gpu.models import Model
from gradwire.lab.configuration import parse
from gradwire.lab.play_spec import PlaySpec
from gradwire.lab.played_cluster import PlayedCluster
from gradwire.lab.rate import Rate
from gradwire.schedule.cluster import Cluster
from gradwire.transports import Mesh, Pending

UNLIMITED = 1e15
ALONE = Cluster(8, UNLIMITED, latency_s=30e-6)
BATCHES = 4
LEAST_WARM, MOST_WARM = 6, 24
"""Steps before those that are measured, until all that can be recorded is."""
TEXTS = CONFIGURATIONS | {
    "no communication": "nocomm",
    "DDP": "dense",
    "fp16 hook": "torch-fp16",
    "bf16 hook": "torch-bf16",
    "torch PowerSGD r4": "torch-powersgd:4,2@1000mb",
    "torch PowerSGD r1": "torch-powersgd:1,2@1000mb",
}
"""How the command line writes what tables show by another name."""
NATIVE = {"gw.NATIVE": gw.NATIVE, "Auto": None}
"""Those whose plan is that DDP reduces, or becomes that where the link is no limit."""
MOST_CHOOSING = 400
"""Steps in which the automatic plan is found, at most."""
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

    def __init__(
        self, device: Device, model: Model, name: str, *, records: bool = True, cluster: Cluster = ALONE
    ) -> None:  # fmt: skip
        self.name, self._device, self._model = name, device, model
        torch.manual_seed(0)
        played = PlayedCluster(PlaySpec(cluster), card=CountingCard)
        self.card: Any = played.card
        with device.device:
            module = model.build(device.tiny).to(device.device)
        self._batches = [tuple(x.to(device.device) for x in model.batch(device.tiny)) for _ in range(BATCHES)]
        # DDP and torch's hooks have the same card behind them
        self._configuration = None if name in NATIVE else parse(TEXTS.get(name, name))
        bucket_mb: Any = self._configuration.bucket_mb if self._configuration else None
        self._ddp = DistributedDataParallel(
            module, process_group=played.group, broadcast_buffers=False, gradient_as_bucket_view=True,
            bucket_cap_mb=bucket_mb,
        )  # fmt: skip
        self.handle = self._reduced_by(played.mesh, records)
        self._optimizer = torch.optim.AdamW(self._ddp.parameters(), lr=1e-5, fused=device.is_gpu)
        self._number, self.loss = 0, torch.zeros(())

    def _reduced_by(self, transport: Mesh, records: bool) -> gw.Handle | None:
        # read when the first step arranges its groups
        os.environ["GRADWIRE_GRAPHS"] = "1" if records else "0"
        if self._configuration is None:
            return gw.attach(self._ddp, NATIVE[self.name], transport=transport)
        if self._configuration.hook:
            self._configuration.hook.register(self._ddp, seed=0)
        self._controller = self._configuration.fresh_controller(Rate())
        return self._configuration.attach(self._ddp, 0, self._controller, transport=transport)

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
        most = 2 if self._device.tiny else MOST_CHOOSING if self._chooses else MOST_WARM
        for number in range(most):
            self.step()
            if self._settled and number >= LEAST_WARM:
                break
        self._device.synchronize()
        return self

    @property
    def _chooses(self) -> bool:
        return self._configuration is None or self._configuration.controller is not None

    @property
    def _settled(self) -> bool:
        if self.handle is None or self._chooses:
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
