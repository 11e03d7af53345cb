"""Jobs as ranks see them: their specification, the other ranks, and the process that runs them."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from signal import SIG_DFL, SIGHUP, SIGTERM, getsignal, signal
from socket import gethostname
from threading import current_thread, main_thread
from typing import Any, NoReturn, Self, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from gradwire.lab.launch.store_address import serves_store, unmet, wait_for_store
from gradwire.lab.network.traffic import interface_traffic
from gradwire.lab.results import Totals, append
from gradwire.lab.task_error import TaskError
from gradwire.launched import gpu_of_rank
from gradwire.runtime.replicas import from_first
from gradwire.transports import Mesh, ProcessGroup, Transport

PATIENCE_S = 300.0
"""How long a rank looks for the store, and waits there for the others, who may begin later."""
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
        return from_first(text, Mesh.of(self.transport), self.device)[0]

    def interface_bytes(self) -> int | None:
        """The bytes that this rank's host has sent, divided by its ranks."""
        if self.interface is None:
            return None
        return interface_traffic(self.interface).sent_bytes // int(os.environ["LOCAL_WORLD_SIZE"])


@contextmanager
def meet(device: str, interface: str | None = None) -> Iterator[Peers]:
    """Joins the other ranks as torch's env:// variables say: over gloo, or over NCCL where each rank has a GPU. Raises
    OSError where the store cannot be reached, or others do not come to it."""
    # as launch() sets it
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        with ended_at_once():
            here = _join(torch.device(device), emulated=interface is not None)
    except (dist.DistNetworkError, dist.DistStoreError, OSError) as error:
        raise unmet(error) from error
    try:
        with ended_at_once():
            own = ProcessGroup.own()
        yield Peers(dist.get_rank(), dist.get_world_size(), here, own, interface)
        # the others may still ask the store, which ends with rank 0
        with ended_at_once():
            dist.barrier()
    finally:
        dist.destroy_process_group()


def _join(device: torch.device, emulated: bool) -> torch.device:
    """Joins the default process group; returns this rank's device."""
    if not serves_store(int(os.environ["RANK"])):
        wait_for_store(PATIENCE_S)
    # torch would wait for half an hour
    store, rank, world = next(rendezvous("env://", timeout=timedelta(seconds=PATIENCE_S)))
    if device.type != "cuda":
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        return device
    here = _gpu_here(emulated)
    torch.cuda.set_device(here)
    name = f"{gethostname()} {torch.cuda.get_device_properties(here).uuid}"
    dist.init_process_group(backend_of(name, store, rank, world), store=store, rank=rank, world_size=world)
    return here


@contextmanager
def ended_at_once() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process at once: handlers in Python do not run while torch waits for other ranks."""
    handlers = {number: getsignal(number) for number in (SIGTERM, SIGHUP)} if current_thread() is main_thread() else {}
    # what is ignored, as under nohup, stays so
    replaced = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in replaced:
        signal(number, SIG_DFL)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal(number, handler)


def _gpu_here(emulated: bool) -> torch.device:
    """This rank's GPU; ranks of `emulated` hosts are on one machine, and have its GPUs."""
    gpus = torch.cuda.device_count()
    return torch.device("cuda", (int(os.environ["RANK"]) if emulated else gpu_of_rank(gpus)) % gpus)


def backend_of(gpu: str, store: Store, rank: int, world: int) -> str:
    """NCCL where no two ranks have one GPU, else gloo: the same on all ranks, which tell each other their GPUs."""
    store.set(f"gradwire/gpu/{rank}", gpu)
    gpus = store.multi_get([f"gradwire/gpu/{each}" for each in range(world)])
    return "nccl" if len(set(gpus)) == world else "gloo"


S = TypeVar("S", bound=Spec)


def run_rank(job: Callable[[S, Peers, Log], None], spec_type: type[S]) -> None:
    """The process of one rank, started as `python -m MODULE SPEC LINES DEVICE [INTERFACE]`. Does not return."""
    spec, lines, device, *interface = sys.argv[1:]
    with meet(device, *interface) as peers:
        log = partial(append, Path(lines)) if peers.rank == 0 else lambda line: None
        try:
            job(spec_type.read(Path(spec)), peers, log)
        except TaskError as mistake:
            # the user's own: a traceback through the lab's code would not help
            print(mistake, file=sys.stderr)
            _leave(1)
    _leave(0)


def _leave(exit_code: int) -> NoReturn:
    """Ends this process at once: a thread of gloo's that still holds a tensor would abort an interpreter that ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
