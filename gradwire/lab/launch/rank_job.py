"""What every rank of a job does around its work: meet the others, and prove that the replicas are alike."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.controllers import Decision, GraVAC
from gradwire.frontends import LocalSteps
from gradwire.lab.configuration import Configuration
from gradwire.lab.jobs.sharded import gather_into, mesh_of, sharded
from gradwire.lab.network.traffic import interface_traffic
from gradwire.lab.results import Totals, append
from gradwire.lab.workloads import Task
from gradwire.lab.workloads.to_device import moved
from gradwire.runtime.stats import Stats
from gradwire.transports import ProcessGroup

Log = Callable[[dict[str, Any]], None]
"""Takes one JSON object that rank 0 has measured."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What the ranks of a job are told; plain values, as it travels in a JSON file. `shard` ranks hold a replica."""

    task: str
    options: list[str]
    seed: int = 0
    shard: int = 1

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote."""
        return cls.of(json.loads(path.read_text()))

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        """From plain values."""
        return cls(**plain)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True)
class Peers:
    """One rank among the others. `interface` is its emulated host's, whose counters it reads."""

    rank: int
    world: int
    device: torch.device
    transport: ProcessGroup
    interface: str | None = None

    def sum(self, numbers: list[float]) -> list[float]:
        """The sum over the ranks."""
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def mean(self, numbers: list[float]) -> list[float]:
        """The mean over the ranks."""
        return [total / self.world for total in self.sum(numbers)]

    def mean_of(self, totals: Totals) -> Totals:
        """The mean over the ranks of what each counted."""
        mean = Totals(*self.mean([number or 0 for number in astuple(totals)]))
        return mean if totals.interface_bytes is not None else replace(mean, interface_bytes=None)

    def said_by_first(self, text: str) -> str:
        """Rank 0's text, on all ranks."""
        mine = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        length = torch.tensor(len(mine), device=self.device)
        dist.broadcast(length, 0)
        letters = mine if self.rank == 0 else torch.empty(int(length), dtype=torch.uint8, device=self.device)
        dist.broadcast(letters, 0)
        return bytes(letters.tolist()).decode()

    def interface_bytes(self) -> int | None:
        """This rank's share of what its host has sent."""
        if self.interface is None:
            return None
        return interface_traffic(self.interface).sent_bytes // int(os.environ["LOCAL_WORLD_SIZE"])

    def synchronize(self) -> None:
        """Waits for this rank's GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextmanager
def meet(device: str, interface: str | None = None) -> Iterator[Peers]:
    """Joins the other ranks as torch's env:// variables say; gloo on CPUs, NCCL on GPUs."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    here = torch.device(device)
    if here.type == "cuda":
        place = "RANK" if interface else "LOCAL_RANK"  # an emulated host has all of the machine's GPUs
        here = torch.device("cuda", int(os.environ.get(place, "0")))
        torch.cuda.set_device(here)
    dist.init_process_group("nccl" if here.type == "cuda" else "gloo")
    try:
        yield Peers(dist.get_rank(), dist.get_world_size(), here, ProcessGroup.own(), interface)
        dist.barrier()  # the others may still ask the store, which ends with rank 0
    finally:
        dist.destroy_process_group()


class Rate:
    """The learning rate of an optimizer that is made later, told as schedulers do; 0 without one."""

    optimizer: Optimizer | None = None

    def get_last_lr(self) -> list[float]:
        return [self.optimizer.param_groups[0]["lr"] if self.optimizer else 0.0]


class Replica:
    """A fresh DDP of a model that reduces as a configuration says, and what it has sent. With `shard` ranks to a
    replica, FSDP2 instead of DDP. With local steps neither, and `optimizer` is to take the steps.

    Use as a context manager: leaving it ends the engine.
    """

    def __init__(self, model: nn.Module, configuration: Configuration, peers: Peers, seed: int, shard: int = 1) -> None:
        self._whole, self.peers, self.silent = model.to(peers.device), peers, configuration.silent
        self._sharded, self.rate, self._seed = shard > 1, Rate(), seed
        self._configuration, self.local = configuration, configuration.local is not None
        self._local_steps: LocalSteps | None = None
        self._mesh: DeviceMesh | None = None
        self.controller = configuration.fresh_controller(self.rate)
        gradient_bytes, replicas = sum(p.nbytes for p in model.parameters() if p.requires_grad), peers.world // shard
        self._dense_bytes = 2 * (replicas - 1) * gradient_bytes // replicas // shard
        self.wrapped: nn.Module
        if self._sharded:
            self._mesh = mesh_of(shard, peers.device)
            self.wrapped = sharded(deepcopy(self._whole), self._mesh, configuration)
            self.handle = configuration.attach_shards(self.wrapped, self._mesh, seed, self.controller)
        elif self.local:
            self.wrapped, self.handle = self._whole, None
        else:
            self.wrapped = _ddp(self._whole, configuration)
            self.handle = configuration.attach(self.wrapped, peers.transport, seed, self.controller)
        self._interface_start = peers.interface_bytes()

    @property
    def module(self) -> nn.Module:
        """The model as it is now, whole; all ranks ask for it together."""
        return gather_into(self._whole, self.wrapped) if self._sharded else self._whole

    @property
    def every(self) -> int:
        """How many steps make a round."""
        return self._configuration.every

    def optimizer(self, inner: Optimizer) -> Optimizer:
        """What takes the steps: `inner`, with local steps around it where the configuration says so."""
        self.rate.optimizer = inner
        transport = None if self._mesh else self.peers.transport
        self._local_steps = self._configuration.local_steps(inner, self.wrapped, transport, self._mesh, self._seed)
        if self._local_steps is None:
            return inner
        self.handle = self._local_steps.handle
        return self._local_steps

    def shared(self) -> AbstractContextManager[None]:
        """Inside, parameters are what all replicas share, after local steps those of the last round."""
        return self._local_steps.shared_parameters() if self._local_steps else nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.handle:
            self.handle.detach()

    def backward(self, task: Task, batch: Any) -> Tensor:
        """Forward and backward of one batch; returns its loss."""
        loss = task.training_loss(self.wrapped, moved(batch, self.peers.device))
        if isinstance(self.controller, GraVAC):
            self.controller.report(loss.detach())
        loss.backward()
        return loss.detach()

    def decisions(self) -> list[Decision]:
        """What the controller has decided since this was last asked."""
        known = self.controller.decisions if self.controller else []
        new = list(known)
        known.clear()
        return new

    def totals(self, steps: int) -> Totals:
        """What this rank has sent and spent in `steps` steps."""
        dense_bytes = steps * self._dense_bytes
        stats = self.handle.stats() if self.handle else None
        stats = stats or Stats(steps, 0 if self.silent else dense_bytes, dense_bytes, 0, 0, 0, 0)
        stats = replace(stats, dense_bytes=dense_bytes) if self.local else stats  # those counted only rounds
        sent = self.peers.interface_bytes()
        start = self._interface_start
        return Totals.of(stats, None if sent is None or start is None else sent - start)

    def hash(self) -> str:
        """The parameters' SHA-256, the same on all ranks. Raises RuntimeError where it is not."""
        digest = sha256()
        with self.shared():
            for parameter in self.module.parameters():
                digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        mine = torch.tensor(list(digest.digest()), dtype=torch.uint8, device=self.peers.device)
        everyones = [torch.empty_like(mine) for _ in range(self.peers.world)]
        dist.all_gather(everyones, mine)
        for rank, other in enumerate(everyones):
            if not torch.equal(other, everyones[0]):
                raise RuntimeError(f"the replicas differ: rank {rank} has other parameters than rank 0")
        return digest.hexdigest()


def _ddp(model: nn.Module, configuration: Configuration) -> DistributedDataParallel:
    ddp = DistributedDataParallel(model, bucket_cap_mb=configuration.bucket_mb)  # pyright: ignore[reportArgumentType]
    ddp.broadcast_buffers = not configuration.silent  # BatchNorm's, before each step; torch 2.13 warns of the argument
    return ddp


S = TypeVar("S", bound=Spec)


def run_rank(job: Callable[[S, Peers, Log], None], spec_type: type[S]) -> None:
    """The process of one rank, started as `python -m MODULE SPEC LINES DEVICE [INTERFACE]`. Does not return."""
    spec, lines, device, *interface = sys.argv[1:]
    with meet(device, *interface) as peers:
        log = partial(append, Path(lines)) if peers.rank == 0 else lambda line: None
        job(spec_type.read(Path(spec)), peers, log)
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo's that still holds a tensor would abort an interpreter that ends
