"""A process group of torch.distributed that plays one rank of N, for DDP by itself and torch's communication hooks."""

import queue
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.collective import Broadcast, Message, Sum
from gradwire.transports.card import CPU
from gradwire.transports.played import Played
from gradwire.transports.transport import Pending

_ProcessGroup: Any = dist.ProcessGroup
"""As its C++ calls it: its type stubs have other arguments."""


class PlayedGroup(_ProcessGroup):
    """The group of a `Played` transport, to pass as `DistributedDataParallel(model, process_group=...)`. It has the
    collectives of DDP and of hooks that add up, and no others."""

    def __init__(self, played: Played) -> None:
        super().__init__(played.rank, played.world)
        self._played = played
        self._arrivals: _Arrivals | None = None

    def getBackendName(self) -> str:
        return "played"

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> "_Work":
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise NotImplementedError(f"a played group adds up, and knows no {opts.reduceOp}; use ReduceOp.SUM")
        return self._start(tensors, [Sum(Message.plain(each)) for each in tensors])

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> "_Work":
        return self._start(tensors, [Broadcast(Message.plain(each), opts.rootRank) for each in tensors])

    def allgather(self, output_tensors: list[list[Tensor]], input_tensors: list[Tensor], opts: Any = None) -> "_Work":
        """DDP compares shapes with it when it is made. It takes no time."""
        for rows, mine in zip(output_tensors, input_tensors, strict=True):
            for row in rows:
                row.copy_(mine)
        return self._start(input_tensors, [])

    def _start(self, tensors: Sequence[Tensor], ops: Sequence[Sum | Broadcast]) -> "_Work":
        pending = [self._played.start(op) for op in ops]
        devices: list[Any] = list({each.device for each in tensors} - {CPU})
        self._arrivals = self._arrivals or _Arrivals(devices)
        future: Future[Any] = Future(devices=devices)
        self._arrivals.complete(future, list(tensors), pending)
        return _Work(future)


class _Work(dist.Work):
    """A collective under way, as torch has it."""

    def __init__(self, future: "Future[Any]") -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: Any = None) -> bool:
        self._future.wait()
        return True

    def get_future(self) -> "Future[Any]":
        return self._future


_Due = tuple["Future[Any]", list[Tensor], list[Pending]]


class _Arrivals:
    """A thread that completes futures when their messages are through; on a GPU at once, ordered behind them."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._due: queue.SimpleQueue[_Due | None] = queue.SimpleQueue()
        # the thread has the queue alone, and ends with the group
        threading.Thread(target=_complete, args=(self._due, devices), name="gradwire arrivals", daemon=True).start()
        weakref.finalize(self, self._due.put, None)

    def complete(self, future: "Future[Any]", tensors: list[Tensor], pending: list[Pending]) -> None:
        """Gives the future these tensors after the messages that are `pending`."""
        self._due.put((future, tensors, pending))


def _complete(due: "queue.SimpleQueue[_Due | None]", devices: Sequence[torch.device]) -> None:
    with torch.cuda.stream(torch.cuda.Stream(devices[0]) if devices else None):
        while (item := due.get()) is not None:
            future, tensors, pending = item
            for each in pending:
                each.wait()
            future.set_result(tensors)
            # tensors are not kept while the next one is waited for
            del item, future, tensors, pending
