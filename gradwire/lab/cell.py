"""One model at one place: what a benchmark times its configurations on."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.lab.bench import BenchSpec
from gradwire.lab.catalogue import make_task
from gradwire.lab.configuration import NOCOMM
from gradwire.lab.join import joined
from gradwire.lab.link import Link
from gradwire.lab.runner import Place
from gradwire.lab.workloads import Published, Task

LOOPBACK = "loopback"
_TINY = "tiny-"
_BYTES_PER_PARAMETER = 20  # weight, gradient, DDP's bucket, what is not sent yet, the mean


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A published model, whole or cut, or one of the tiny ones, which are always whole; ranks; a link.

    `layers`, `batch` and `size` are the published ones where they are None.
    """

    model: str
    ranks: int
    link: str = LOOPBACK
    layers: int | None = None
    batch: int | None = None
    size: int | None = None

    def task(self) -> Task:
        """What every rank trains. Raises ValueError where the model is not known or cannot be so."""
        return make_task(*self._task())

    def place(self, device: str) -> Place:
        """Where it runs. Raises ValueError for a link that is none, and where there is too little memory."""
        place = Place(self.ranks, None if self.link == LOOPBACK else Link.parse(self.link), device)
        task = self.task()
        if isinstance(task, Published) and device == "cpu" and not joined():
            _check_memory(self, task.parameters())
        return place

    def spec(self, configurations: Sequence[str], steps: int, repeats: int, seed: int) -> BenchSpec:
        """What the ranks are told; always with `nocomm`."""
        task, options = self._task()
        texts = [NOCOMM, *(text for text in configurations if text != NOCOMM)]
        return BenchSpec(task=task, options=options, configurations=texts, steps=steps, repeats=repeats, seed=seed)

    def command(self, configuration: str, steps: int, repeats: int) -> str:
        """What a user types to time one configuration."""
        options = {"model": self.model, "hosts": self.ranks, "link": self.link} | self._sizes()
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return shlex.join(["gradwire", "bench", configuration, *words, f"--steps={steps}", f"--repeats={repeats}"])

    def __str__(self) -> str:
        sizes = [f"{name} {value}" for name, value in self._sizes().items()]
        return ", ".join([self.model, *sizes, f"{self.ranks} ranks", self.link])

    def _sizes(self) -> dict[str, int]:
        sizes = {"layers": self.layers, "batch": self.batch, "size": self.size}
        return {name: value for name, value in sizes.items() if value is not None}

    def _task(self) -> tuple[str, list[str]]:
        sizes = self._sizes()
        if not self.model.startswith(_TINY):
            return Published.name, [f"model={self.model}", *(f"{name}={value}" for name, value in sizes.items())]
        if sizes:
            raise ValueError(f"{self.model} has one size only: {', '.join(sizes)} are for the published models")
        return "synthetic", [f"model={self.model.removeprefix(_TINY)}"]


def _check_memory(cell: Cell, parameters: int) -> None:
    needed = cell.ranks * parameters * _BYTES_PER_PARAMETER
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise ValueError(
            f"{cell.model} with {parameters / 1e6:.0f} M parameters on {cell.ranks} ranks needs {needed >> 30} GB and "
            f"more, this machine has {present >> 30}: take fewer --layers or --hosts"
        )
