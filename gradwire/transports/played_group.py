"""A process group of torch.distributed that plays one rank of N, for DDP by itself and torch's communication hooks."""

import threading
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
        self._side: torch.cuda.Stream | None = None

    def getBackendName(self) -> str:
        return "played"

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> "_Work":
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise NotImplementedError(f"a played group adds up, and knows no {opts.reduceOp}; use ReduceOp.SUM")
        if any(each.is_sparse for each in tensors):
            raise NotImplementedError(
                "a played group knows no sparse gradients, as DDP reduces them; use Embedding(sparse=False)"
            )
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
        future: Future[Any] = Future(devices=devices)
        if devices or not pending:
            # on a GPU the future is complete at once, and orders streams behind the messages
            self._side = self._side or (torch.cuda.Stream(devices[0]) if devices else None)
            with torch.cuda.stream(self._side):
                _complete(future, list(tensors), pending)
        else:
            # a thread each: torch's hooks wait for one message in the callback of another
            threading.Thread(target=_complete, args=(future, list(tensors), pending), daemon=True).start()
        return _Work(future)


def _complete(future: "Future[Any]", tensors: list[Tensor], pending: list[Pending]) -> None:
    for each in pending:
        each.wait()
    future.set_result(tensors)


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
