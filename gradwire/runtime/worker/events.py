"""Moments on the host's clock or on a stream of a GPU, and the seconds between two of them."""

from typing import Any, Protocol

import torch


class Event(Protocol):
    """A moment on a clock, with the methods of a CUDA event: a `DeviceEvent` or a `HostEvent`. For any thread."""

    def query(self) -> bool:
        """Whether the clock has come to it."""
        ...

    def synchronize(self) -> None:
        """Returns when the clock has come to it."""
        ...

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds until `end`, of the same clock."""
        ...


class HostEvent(float):
    """A moment on the host's clock, in seconds of `time.perf_counter`."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: float, /) -> float:
        return 1e3 * (end - self)


class DeviceEvent:
    """A moment on the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._event = device, torch.cuda.Event(enable_timing=True)
        self._event.record(torch.cuda.current_stream(device))

    # a thread that asks CUDA without a device of its own makes a context on the first one

    def query(self) -> bool:
        with torch.cuda.device(self._device):
            return self._event.query()

    def synchronize(self) -> None:
        with torch.cuda.device(self._device):
            self._event.synchronize()

    def elapsed_time(self, end: "DeviceEvent", /) -> float:
        with torch.cuda.device(self._device):
            return self._event.elapsed_time(end._event)


EPOCH = HostEvent(0.0)


def elapsed_s(start: Event, end: Event) -> float:
    """Seconds between two marks; waits for a GPU."""
    end.synchronize()
    return start.elapsed_time(end) / 1e3
