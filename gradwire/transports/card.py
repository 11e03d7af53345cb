"""A network card that is played: messages take as long on it as their bytes need."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from threading import Lock

import torch

from gradwire.torch_private.delay import cycles_per_s, delay
from gradwire.transports.transport import Pending
from gradwire.wire import Wire

CPU = torch.device("cpu")


class Card:
    """A host's network card. It carries messages one after another, each in its bytes at `bytes_per_s` and `latency_s`
    for each of its parts that waits for the one before: on a CPU by the clock, on a GPU on a stream of its own, as
    NCCL's messages are. Waiting takes no processor."""

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        if not (0 <= latency_s < inf and bytes_per_s > 0):
            raise ValueError(
                f"no card takes {latency_s} s for a message and sends {bytes_per_s} bytes/s; use e.g. Card(50e-6, 1e9)"
            )
        self.latency_s, self.bytes_per_s = latency_s, bytes_per_s
        self._lanes: dict[torch.device, ClockLane | StreamLane] = {}

    def __repr__(self) -> str:
        return f"Card({self.latency_s}, {self.bytes_per_s})"

    def seconds(self, ways: Sequence[Wire]) -> float:
        """How long it is busy with a message that may be sent in these ways: the fastest."""
        return min(way.seconds(self.latency_s, self.bytes_per_s) for way in ways)

    def carry(self, seconds: float, device: torch.device, arrive: Callable[[], None]) -> Pending:
        """Begins with a message of tensors of this device once those before it are through; `arrive` writes it."""
        # at once: DDP's group and Gradwire's worker may both be the first
        lane = self._lanes.get(device) or self._lanes.setdefault(
            device, ClockLane() if device == CPU else StreamLane(device)
        )
        return lane.carry(seconds, arrive)


@dataclass(frozen=True)
class _UnderWay:
    """A message on a lane."""

    wait: Callable[[], None]


class ClockLane:
    """Messages one after another by the host's clock. Waiting for one sleeps. The clock is an argument for tests."""

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now, self._sleep = now, sleep
        self._free_s, self._changing = now(), Lock()

    def carry(self, seconds: float, arrive: Callable[[], None]) -> Pending:
        # the worker and, in hooks of torch's, the thread that trains may both come
        with self._changing:
            self._free_s = max(self._free_s, self._now()) + seconds
            over_s = self._free_s
        # bytes come while the message is under way
        arrive()
        return _UnderWay(partial(self._wait_until, over_s))

    def _wait_until(self, over_s: float) -> None:
        while (left_s := over_s - self._now()) > 0:
            self._sleep(left_s)


class StreamLane:
    """Messages one after another on a stream of a GPU, on which a kernel passes the time. The host waits for none."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device, priority=-1)
        # measured now, for it waits for the GPU
        cycles_per_s(device)

    def carry(self, seconds: float, arrive: Callable[[], None]) -> Pending:
        # behind what made the message, as NCCL's kernels are
        made = torch.cuda.current_stream(self._device).record_event()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(made)
            arrive()
            delay(seconds, self._device)
            over = self._stream.record_event()
        return _UnderWay(lambda: torch.cuda.current_stream().wait_event(over))
