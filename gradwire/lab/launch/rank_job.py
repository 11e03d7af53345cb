"""Jobs as ranks see them: their specification, the other ranks, and the process that runs them."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist

from gradwire.lab.network.traffic import interface_traffic
from gradwire.lab.results import Totals, append
from gradwire.runtime.replicas import from_first
from gradwire.transports import Mesh, ProcessGroup, Transport

Log = Callable[[dict[str, Any]], None]
"""Takes one JSON object that rank 0 has measured."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Specification of a job in plain values, read from a JSON file. `shard` ranks hold a replica."""

    task: str
    """The name of a task."""
    options: list[str]
    """Its options, name=value."""
    seed: int = 0
    shard: int = 1

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.of(json.loads(path.read_text()))

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        return cls(**plain)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True)
class Peers:
    """This rank and the others. `interface` is the emulated host's, whose counters it reads."""

    rank: int
    """This rank's number."""
    world: int
    """The number of ranks."""
    device: torch.device
    """This rank's."""
    transport: Transport | Mesh
    """Gradwire's own, of all ranks."""
    interface: str | None = None
    group: dist.ProcessGroup | None = None
    """DDP's; None for torch.distributed's default one."""

    def sum(self, numbers: list[float]) -> list[float]:
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def mean(self, numbers: list[float]) -> list[float]:
        # over the ranks that run, also where each plays one of more
        return [total / dist.get_world_size() for total in self.sum(numbers)]

    def mean_of(self, totals: Totals) -> Totals:
        """The mean of the ranks' totals."""
        mean = Totals(*self.mean([number or 0 for number in astuple(totals)]))
        return mean if totals.interface_bytes is not None else replace(mean, interface_bytes=None)

    def text_of_first(self, text: str) -> str:
        """Rank 0's text, on all ranks."""
        return from_first(text, Mesh.of(self.transport), self.device)

    def interface_bytes(self) -> int | None:
        """The bytes that this rank's host has sent, divided by its ranks."""
        if self.interface is None:
            return None
        return interface_traffic(self.interface).sent_bytes // int(os.environ["LOCAL_WORLD_SIZE"])

    def synchronize(self) -> None:
        """Waits for this rank's GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextmanager
def meet(device: str, interface: str | None = None) -> Iterator[Peers]:
    """Joins the other ranks as torch's env:// variables say: over gloo, or over NCCL where each rank has a GPU."""
    # as launch() sets it
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    here, backend = torch.device(device), "gloo"
    if here.type == "cuda":
        here, backend = gpu_of_rank(interface is not None)
        torch.cuda.set_device(here)
    dist.init_process_group(backend)
    try:
        yield Peers(dist.get_rank(), dist.get_world_size(), here, ProcessGroup.own(), interface)
        # the others may still ask the store, which ends with rank 0
        dist.barrier()
    finally:
        dist.destroy_process_group()


def gpu_of_rank(emulated: bool) -> tuple[torch.device, str]:
    """This rank's GPU and the backend of all ranks; those of `emulated` hosts are on one machine, and have its GPUs."""
    place, ranks = ("RANK", "WORLD_SIZE") if emulated else ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, count = int(os.environ.get(place, "0")), int(os.environ.get(ranks, "1"))
    gpus = torch.cuda.device_count()
    # NCCL wants a GPU for each rank
    return torch.device("cuda", rank % gpus), "nccl" if count <= gpus else "gloo"


S = TypeVar("S", bound=Spec)


def run_rank(job: Callable[[S, Peers, Log], None], spec_type: type[S]) -> None:
    """The process of one rank, started as `python -m MODULE SPEC LINES DEVICE [INTERFACE]`. Does not return."""
    spec, lines, device, *interface = sys.argv[1:]
    with meet(device, *interface) as peers:
        log = partial(append, Path(lines)) if peers.rank == 0 else lambda line: None
        job(spec_type.read(Path(spec)), peers, log)
    sys.stdout.flush()
    # a thread of gloo's that still holds a tensor would abort an interpreter that ends
    os._exit(0)
