"""Set-ups of a benchmark: one model on one cluster."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, ClassVar

from gradwire.lab.configuration import check_autocast, check_hooks, check_plans, parse_all
from gradwire.lab.jobs.bench_job import BenchSpec
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.models import MODELS
from gradwire.lab.names import NOCOMM, TINY
from gradwire.lab.network.link import LOOPBACK, REAL, link_of
from gradwire.lab.play_spec import PlaySpec
from gradwire.lab.workloads import Published, Task, UserModel
from gradwire.lab.workloads.make_task import make_task
from gradwire.launched import is_launched
from gradwire.options import Options
from gradwire.process_limits import memory_bytes

# weight, gradient, DDP's bucket, residual, mean
_BYTES_PER_PARAMETER = 20


@dataclass(frozen=True)
class TimingOptions(Options):
    """Steps, repeats, seed, device and autocast of a timing."""

    called: ClassVar[str] = "bench"

    steps: int
    repeats: int
    seed: int = 0
    device: str = "cpu"
    autocast: str | None = None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A model, a number of ranks and a link. The model is published, whole or cut; tiny, always whole; or a user's own.

    `layers`, `batch` and `size` are the published ones where they are None.
    """

    model: str
    """A name of the table, tiny-NAME, or a function of the user's."""
    ranks: int
    """All ranks."""
    link: str = LOOPBACK
    """Of each host; `real` for that of ranks which were started beforehand."""
    shard: int = 1
    """Ranks that hold one model together."""
    play: PlaySpec | None = None
    """The cluster of these ranks, one of which is played, in place of ranks on a link."""
    layers: int | None = None
    batch: int | None = None
    size: int | None = None

    def task(self) -> Task:
        """The task of every rank. Raises ValueError for an unknown model, and sizes that it cannot have."""
        return make_task(*self._task())

    def parameters(self) -> int:
        return _parameters(self.task())

    def cluster(self, device: str) -> LabCluster:
        """The ranks and their link. Raises ValueError for a link that is none, and where there is too little memory."""
        if self.play and (self.shard > 1 or self.link != LOOPBACK):
            raise ValueError("a played rank has a link of its own, and holds a whole model: leave link and shard out")
        # one that is played runs alone
        running = 1 if self.play else self.ranks
        cluster = LabCluster(running, link_of(self.link), device, self.shard)
        if device == "cpu" and not is_launched():
            _check_memory(self, running)
        return cluster

    def spec(self, configurations: Sequence[str], timed: TimingOptions) -> BenchSpec:
        """The ranks' job, always with `nocomm`. Raises ValueError for plans of another model, for hooks of DDP where
        there is none, and for a user's model that gives no batches."""
        # refuse on this process what would fail on the ranks
        parsed = parse_all(configurations)
        check_hooks(parsed, self.shard)
        check_autocast(parsed, timed.autocast)
        next(self.task().batches(0, self.ranks, timed.seed))
        self.parameters()
        check_plans(parsed, lambda: self.task().build_model(timed.seed))
        names = [configuration.text for configuration in parsed]
        # `nocomm` first, beside which all others are shown
        texts = [NOCOMM, *(name for name in names if name != NOCOMM)]
        task, options = self._task()
        timing: dict[str, Any] = {name: value for name, value in asdict(timed).items() if name != "device"}
        where: dict[str, Any] = {"shard": self.shard, "play": self.play}
        return BenchSpec(task=task, options=options, configurations=texts, **timing, **where)

    def command(self, configuration: str, timed: TimingOptions) -> str:
        """The shell command that times one configuration."""
        shard = {"shard": self.shard} if self.shard > 1 else {}
        cluster = {"model": self.model, "hosts": self.ranks // self.shard, "link": self.link} | shard
        given = {name: value for name, value in asdict(timed).items() if value is not None}
        options = cluster | self._sizes() | given
        gradwire = ["gradwire"]
        # its ranks were started beforehand
        if self.link == REAL:
            gradwire = ["torchrun", *_ranks_of_hosts(self.ranks, self.cluster(timed.device).hosts), "-m", "gradwire"]
            options = {name: value for name, value in options.items() if name not in ("hosts", "link")}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return shlex.join([*gradwire, "bench", configuration, *words])

    @property
    def title(self) -> str:
        """The model and, of a published one, what decides how much there is to compute."""
        if self.model not in MODELS:
            return self.model
        model = MODELS[self.model]
        layers = [f"{self.layers} of {sum(model.stages)} layers"] if self.layers is not None else []
        return ", ".join([self.model, *layers, model.samples(self.batch, self.size)])

    def __str__(self) -> str:
        return f"{self.title}, {self.ranks} ranks, {'their own network' if self.link == REAL else self.link}"

    def _sizes(self) -> dict[str, int]:
        sizes = {"layers": self.layers, "batch": self.batch, "size": self.size}
        return {name: value for name, value in sizes.items() if value is not None}

    def _task(self) -> tuple[str, list[str]]:
        sizes = self._sizes()
        # a user's function, a published model, or a tiny one
        if ":" in self.model and not sizes:
            return UserModel.name, [f"function={self.model}"]
        if ":" in self.model:
            raise ValueError(f"{self.model} has sizes of its own: {', '.join(sizes)} are for the published models")
        if not self.model.startswith(TINY):
            return Published.name, [f"model={self.model}", *(f"{name}={value}" for name, value in sizes.items())]
        if sizes:
            raise ValueError(f"{self.model} has one size only: {', '.join(sizes)} are for the published models")
        return "synthetic", [f"model={self.model.removeprefix(TINY)}"]


def _ranks_of_hosts(ranks: int, hosts: int) -> list[str]:
    """The options by which torchrun starts so many ranks, on each of the hosts."""
    if hosts == 1:
        return ["--nproc-per-node", str(ranks)]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{os.environ['MASTER_ADDR']}:29500"]
    return ["--nnodes", str(hosts), "--nproc-per-node", str(ranks // hosts), *meeting]


@cache
def _parameters(task: Task) -> int:
    """The number of a task's parameters, counted once."""
    return task.parameters()


def _check_memory(setup: Setup, running: int) -> None:
    needed = running * setup.parameters() * _BYTES_PER_PARAMETER
    present = memory_bytes()
    if needed > present:
        raise ValueError(
            f"{setup.model} with {setup.parameters() / 1e6:.0f} M parameters on {running} ranks needs over "
            f"{needed >> 30} GiB, there are {present >> 30} here: take fewer ranks"
            f"{', or --layers' if setup.model in MODELS else ''}"
        )
