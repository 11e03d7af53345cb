"""Turns recorded on a tape, where a GPU would record them as CUDA graphs: for jobs on a GPU that is pretended.

While a turn is recorded, what it calls is logged with its tensors, and then everything is as before, as if nothing was
computed; what it has made is zero. A replay calls the same on the same tensors. What a graph
could not hold fails the recording: the host asks for a number, memory is pinned, a generator is made.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from unittest import mock
from weakref import WeakSet

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from gradwire.ops import backend
from gradwire.runtime import runtime
from gradwire.runtime.worker.executor import Executor
from gradwire.transports import staged
from tests.support import harness, pretend_cuda
from tests.support.harness import together as harness_together
from tests.support.pretend_cuda import ASKS, COPIES, Call, PretendedGPU, leaves, real

pytest.importorskip("triton")
from gradwire.ops.triton import TRITON, launching

launching_launch = launching.launch
interpreting = Lock()
T = TypeVar("T")
DRAWS = {"rand", "randn", "randint", "randperm", "uniform_", "normal_", "bernoulli_", "bernoulli", "random_"}


class Tape:
    """Stands for the graphs of one group. As torch's pool of memory, it is of no use once all that was recorded on it
    is dropped."""

    recorded = replayed = 0
    """Turns, of all tapes."""

    def __init__(self, gpu: PretendedGPU) -> None:
        self._gpu = gpu
        self._logs: WeakSet[Log] = WeakSet()
        self._used = False

    def record(self, turn: Callable[[], T]) -> tuple[Callable[[], None], T]:
        assert self._logs or not self._used, "torch has given up the pool of graphs that were dropped"
        log, self._used = Log(), True
        self._logs.add(log)
        self._gpu.log = log
        try:
            value = turn()
        finally:
            self._gpu.log = None
            log.undo()
        Tape.recorded += 1

        def replay() -> None:
            Tape.replayed += 1
            for call in log.calls:
                call()

        return replay, value


class Log:
    """The calls of one turn."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self._before: dict[int, tuple[Any, Tensor]] = {}
        self._made: list[Tensor] = []

    def carry_out(self, call: Call) -> Any:
        """The result of a call, which is logged."""
        self._check(call)
        if call.is_view:
            return call.result()
        args, kwargs = call.on_cpu()
        tensors = [leaf for leaf in leaves((args, *kwargs.values())) if isinstance(leaf, Tensor)]
        self.save(tensors)
        found = call.result()
        given = {id(tensor) for tensor in tensors}
        made = [real(leaf) for leaf in leaves(found) if isinstance(leaf, Tensor) and id(real(leaf)) not in given]
        self._made += made
        if call.name not in pretend_cuda.LAUNCHES_NOTHING:
            self.calls.append(lambda: self._again(call, args, kwargs, given, made))
        return found

    def launch(self, carry_out: Callable[[], None], tensors: list[Tensor]) -> None:
        """Logs the launch of a kernel."""
        self.save(tensors)
        self.calls.append(carry_out)
        carry_out()

    def save(self, tensors: Any) -> None:
        """Keeps what these hold, to be undone."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._before:
                self._before[storage.data_ptr()] = storage, storage.clone()

    def undo(self) -> None:
        """Nothing was computed."""
        for storage, before in self._before.values():
            storage.copy_(before)
        for tensor in self._made:
            torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage()).zero_()

    def _again(self, call: Call, args: Any, kwargs: Any, given: set[int], made: list[Tensor]) -> None:
        found = call.func(*args, **kwargs)
        again = [leaf for leaf in leaves(found) if isinstance(leaf, Tensor) and id(leaf) not in given]
        for target, value in zip(made, again, strict=True):
            target.copy_(value)

    def _check(self, call: Call) -> None:
        assert call.name not in ASKS, f"the host asks: {pretend_cuda.where(call.name)}"
        assert not call.kwargs.get("pin_memory"), f"memory is pinned: {pretend_cuda.where(call.name)}"
        assert call.name not in DRAWS, f"a generator draws: {pretend_cuda.where(call.name)}"
        crosses = call.name in COPIES and (call.elsewhere or call.to == "cpu")
        assert not crosses, f"the host takes part: {pretend_cuda.where(call.name)}"


class TapedGPU(PretendedGPU):
    """A GPU whose calls are logged while a turn is recorded."""

    log: Log | None = None

    def carry_out(self, call: Call) -> Any:
        if self.log is None or not call.concerns_gpu:
            return super().carry_out(call)
        return self.log.carry_out(call)


class PretendingExecutor(Executor):
    """The executor of a GPU that is pretended; `records` says whether it has tapes."""

    records = True

    def __init__(self, device: torch.device) -> None:
        self.gpu = TapedGPU()
        super().__init__(torch.device("cpu"))
        self.device, self._device_flag = device, torch.zeros(1, device=device)
        self._host_flag.is_pinned_ = True  # pyright: ignore

    def graphs(self) -> Callable[[], Tape] | None:
        return partial(Tape, self.gpu) if self.records else None

    is_immediate = property(lambda self: False)  # pyright: ignore

    def _work(self) -> None:
        with self.gpu:
            super()._work()


@contextmanager
def taped(*, records: bool, triton: bool = False) -> Iterator[None]:
    """Has runtimes work on a pretended GPU, on which Triton's interpreter may compute, and record turns or not."""

    def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        log = _log()
        carry_out = partial(launching_launch, kernel, programs, *map(real, arguments), **constants)

        def alone() -> None:
            with interpreting:
                carry_out()

        log.launch(alone, [real(one) for one in arguments if isinstance(one, Tensor)]) if log else alone()

    def pinned(tensor: Tensor, device: Any = None) -> Tensor:
        assert not _log(), "memory is pinned"
        return pretend_cuda._pinned(tensor, device)

    def together(world: int, body: Callable[[int], Any]) -> list[Any]:
        def on_gpu(rank: int) -> Any:
            with pretend_cuda.PretendedGPU(), torch.no_grad():
                return body(rank)

        return harness_together(world, on_gpu)

    with (
        pretend_cuda.pretended_cuda(),
        mock.patch.object(torch.Tensor, "pin_memory", pinned),
        mock.patch.object(PretendingExecutor, "records", records),
        mock.patch.object(runtime, "Executor", PretendingExecutor),
        mock.patch.object(staged, "Copied"),
        mock.patch.object(harness, "together", together),
        mock.patch.object(backend, "on_gpu", return_value=(TRITON if triton else None, "")),
        mock.patch.object(launching, "launch", launch),
        torch.no_grad(),
    ):
        yield


def _log() -> Log | None:
    """The log of the turn that this thread records."""
    mode = _get_current_dispatch_mode()
    return mode.log if isinstance(mode, TapedGPU) else None
