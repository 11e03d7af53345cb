"""The GPU that is measured, or the CPU on which the script is tried."""

import gc
import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.shared.provenance import CALLED, ROOT
from gradwire.torch_private.delay import delay

MOST_HELD_MS = 60.0


class Memory(NamedTuple):
    """Bytes that are allocated, that were at most, and that torch has of the GPU."""

    held: int
    peak: int
    reserved: int


@dataclass(frozen=True)
class Device:
    """A device, with what differs between a GPU and a CPU on which the script is tried."""

    device: torch.device
    tiny: bool = False

    @classmethod
    def of(cls, kind: str, tiny: bool) -> "Device":
        """The device of this process, which is set."""
        if kind == "cuda":
            torch.cuda.set_device(0)
            return cls(torch.device("cuda", 0), tiny)
        torch.set_num_threads(1)
        return cls(torch.device("cpu"), tiny)

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def size(self, large: int, small: int) -> int:
        """A number that is smaller where the script is tried."""
        return small if self.tiny else large

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def mark(self) -> Any:
        """Now, on the current stream."""
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait_for(self, mark: Any) -> None:
        """Returns when the device has come to a mark."""
        if self.is_gpu:
            mark.synchronize()

    def between(self, start: Any, end: Any) -> float:
        """Milliseconds between two marks; the device has passed both."""
        return start.elapsed_time(end) if self.is_gpu else 1e3 * (end - start)

    def ms(self, run: Callable[[], object]) -> float:
        """Median milliseconds of the device for a call that is made again and again, behind a queue that is full."""
        repeats = self.size(20, 3)
        for _ in range(2):
            run()
        began = time.perf_counter()
        run()
        self.hold(min(1500 * repeats * (time.perf_counter() - began), MOST_HELD_MS))
        marks = [self.mark()]
        for _ in range(repeats):
            run()
            marks.append(self.mark())
        self.synchronize()
        return median(self.between(a, b) for a, b in pairwise(marks))

    def copy_ms(self, nbytes: int) -> float:
        """Milliseconds of a copy that reads and writes so many bytes in all."""
        source = torch.empty(max(nbytes // 8, 1), dtype=torch.float32, device=self.device)
        target = torch.empty_like(source)
        return self.ms(lambda: target.copy_(source))

    @contextmanager
    def waiting_is_an_error(self) -> Iterator[None]:
        """A context in which torch raises where the host waits for the GPU."""
        if not self.is_gpu:
            yield
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def hold(self, ms: float) -> None:
        """Keeps the GPU busy for some milliseconds, so that the host has launched what follows before it begins."""
        if self.is_gpu:
            delay(ms / 1e3, self.device)

    def free(self) -> None:
        """Gives memory back that nothing uses."""
        gc.collect()
        if self.is_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def memory(self) -> "Memory":
        """Bytes of the GPU's memory now; the peak is that since the last call."""
        if not self.is_gpu:
            return Memory(0, 0, 0)
        found = Memory(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved())
        torch.cuda.reset_peak_memory_stats()
        return found

    def kernels(self, run: Callable[[], object]) -> list[tuple[str, float]]:
        """The name and microseconds of each kernel, copy and fill that a call launches."""
        if not self.is_gpu:
            run()
            return []
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as found:
            run()
            torch.cuda.synchronize()
        return [(e.name, e.device_time) for e in found.events() if str(e.device_type).endswith("CUDA")]

    @property
    def capacity(self) -> int:
        """Bytes of memory; on a CPU, as many as trainings are planned for."""
        return torch.cuda.get_device_properties(0).total_memory if self.is_gpu else 80_000_000_000

    def facts(self) -> dict[str, Any]:
        """The card and all versions."""
        own: dict[str, Any] = {"card": "a CPU, which stands for one"}
        if self.is_gpu:
            smi = ["nvidia-smi", "--query-gpu=driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"]
            own = {
                "card": torch.cuda.get_device_name(), "driver, memory, clock": _printed(smi),
                "capability": str(torch.cuda.get_device_capability()), "CUDA": torch.version.cuda,
                "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
            }  # fmt: skip
        own |= {"torch": torch.__version__, "Triton": _triton(), "sources": sources()}
        return own | {"command": os.environ.get(CALLED, "")}


def sources() -> str:
    """A hash of the package's source, by which `keep.py` finds the commit: a copy's own git may be older."""
    return hashed(path.read_bytes() for path in sorted(Path(ROOT, "gradwire").rglob("*.py")))


def hashed(files: Iterable[bytes]) -> str:
    """A hash of these files, one after another."""
    found = hashlib.sha256()
    for file in files:
        found.update(file)
    return found.hexdigest()[:12]


def _triton() -> str:
    try:
        import triton
    except ImportError:
        return "none"
    return triton.__version__


def _printed(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except OSError as error:
        return str(error)
