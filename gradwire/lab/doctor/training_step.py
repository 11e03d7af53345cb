"""A compressed training step against a dense one, of a small model."""

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from gradwire.frontends.attach import attach
from gradwire.lab.doctor.findings import Finding
from gradwire.lab.doctor.site import Site
from gradwire.lab.random_state import seeded
from gradwire.ops.host import synchronize
from gradwire.runtime.replicas import differences
from gradwire.transports import Mesh

COMPRESSED = "topk:0.01+residual"
STEPS, WARM_UP, ENOUGH_S = 12, 2, 5.0
WIDTH, BATCH = 256, 16
REMEDY = "first mend the faults above; then gw.attach(ddp, 'bf16') shows whether a cast alone works"


@dataclass(frozen=True)
class Trained:
    """The outcome of some steps on this rank."""

    step_ms: float
    finite: bool
    different: str
    """The first parameter in which replicas differ."""


def check(site: Site) -> list[Finding]:
    """Trains the model dense, by DDP alone, and compressed."""
    return [_found(name, _trained(site, name)) for name in ("dense", COMPRESSED)]


def _found(name: str, trained: Trained) -> Finding:
    wrong = trained.different or ("" if trained.finite else "the loss or a parameter is not finite")
    words = f"{trained.step_ms:.3g} ms a step (median), all finite, replicas equal"
    return Finding(name, not wrong, wrong or words, REMEDY if wrong else "")


def _trained(site: Site, name: str) -> Trained:
    # the model, its replicas under DDP, and compression
    site.doing = f"before the first step of training, {name}"
    ddp = DistributedDataParallel(_model().to(site.device))
    handle = None if name == "dense" else attach(ddp, name, transport=site.carrying.mesh)
    try:
        times, loss = _steps(site, name, ddp)
    finally:
        if handle:
            handle.detach()
    # compare the replicas
    held = {name: parameter.detach() for name, parameter in ddp.module.named_parameters()}
    finite = all(bool(tensor.isfinite().all()) for tensor in (loss, *held.values()))
    different = differences(held, Mesh.of(site.carrying.everyone), site.device)
    return Trained(1e3 * median(times[WARM_UP:] or times), finite, str(different[0]) if different else "")


def _steps(site: Site, name: str, ddp: nn.Module) -> tuple[list[float], Tensor]:
    """The steps' times and the last loss. All ranks stop together where steps take long."""
    # each rank has a batch of its own
    generator = torch.Generator().manual_seed(site.rank)
    inputs = torch.randn(BATCH, WIDTH, generator=generator).to(site.device)
    labels = torch.randint(10, (BATCH,), generator=generator).to(site.device)
    optimizer = SGD(ddp.parameters(), lr=0.01)
    times = list[float]()
    loss = inputs
    while len(times) < STEPS:
        site.doing = f"in step {len(times)} of training, {name}"
        # only the step is timed: forward, backward with its reductions, optimizer
        synchronize(site.device)
        began = perf_counter()
        loss = _backward(ddp, inputs, labels)
        optimizer.step()
        optimizer.zero_grad()
        synchronize(site.device)
        times.append(perf_counter() - began)
        # all ranks stop after the same step, or the others would wait for this one
        if site.summed(sum(times)) > site.world * ENOUGH_S:
            break
    return times, loss


def _backward(ddp: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Forward and backward; returns the loss."""
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    return loss.detach()


def _model() -> nn.Module:
    """The same on all ranks; leaves torch's random numbers as they were."""
    with seeded(0):
        return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, 10))
