"""On which GPU kernels run, and how often they are compiled; no GPU is needed."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradwire.ops import backend
from gradwire.ops.triton import launching, trial
from tests.support.warm import Forked


def test_kernels_are_tried_on_the_gpu_of_the_tensor(monkeypatch: pytest.MonkeyPatch):
    """Without torch.cuda.set_device() the current one is the first, on every rank of a host."""
    tried: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(trial, "tried", lambda device: tried.append(device) or (None, ""))
    monkeypatch.setattr(backend, "load_linear_algebra", lambda device: None)
    backend._on_gpu.cache_clear()
    x: Any = SimpleNamespace(device=torch.device("cuda", 1))
    try:
        backend.backend_for(x)
    finally:
        backend._on_gpu.cache_clear()
    assert tried == [torch.device("cuda", 1)]


def test_kernels_are_launched_on_the_gpu_of_their_tensors(monkeypatch: pytest.MonkeyPatch):
    said: list[Any] = []
    monkeypatch.setattr(torch.cuda, "_exchange_device", lambda index: said.append(index) or 0)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", lambda index: said.append(index) or 1)
    x: Any = SimpleNamespace(is_cuda=True, get_device=lambda: 1)
    launching.launch({(3,): lambda *arguments: said.append(arguments)}, 3, x, 5)
    assert said == [1, (x, 5), 0]


class Kernel:
    """A kernel that is compiled only beside another one, and must not be launched beside one."""

    def __init__(self):
        self.compiling, self.launching, self.launched = Barrier(2), Lock(), list[bool]()

    def warmup(self, *arguments: Any, grid: tuple[int]) -> None:
        self.compiling.wait(10)

    def __getitem__(self, grid: tuple[int]) -> Any:
        return self.launch

    def launch(self, *arguments: Any) -> None:
        alone = self.launching.acquire(blocking=False)
        sleep(0.01)
        self.launched.append(alone)
        if alone:
            self.launching.release()


def test_threads_compile_side_by_side_and_launch_one_at_a_time():
    """Of two threads that load launchers at once, Triton 3.6 gives one the other's."""
    kernel, x = Kernel(), torch.empty(1)
    with launching.side_by_side(), ThreadPoolExecutor(2) as threads:
        [*threads.map(lambda number: launching.launch(kernel, 1, x, number), range(2))]
    with ThreadPoolExecutor(2) as threads:
        [*threads.map(lambda number: launching.launch(kernel, 1, x, number), range(2))]
    assert kernel.launched == [True] * 4


SALT = """
from gradwire.ops.triton.codes import quantise_kernel
print(quantise_kernel.do_not_specialize, [p.name for p in quantise_kernel.params if p.do_not_specialize])
"""


def test_a_salt_has_no_second_variant_compiled():
    """Of a number that is a multiple of 16, as one salt in 16 is, Triton makes another variant."""
    with Forked(["-c", SALT], env={"OMP_NUM_THREADS": "1", "PATH": ""}, stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate(timeout=120)
    assert said == "['salt'] ['salt']\n"
