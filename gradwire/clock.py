"""Where the time goes, in seconds, without waiting for a GPU."""

import time
from collections import Counter, deque
from threading import Lock

import torch

Mark = float | torch.cuda.Event
"""A moment: seconds of `time.perf_counter`, or an event on a CUDA stream."""


class Clock:
    """Adds up spans by name, of any thread. On CUDA a span lies between two events of the current stream and is read
    later."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._totals: Counter[str] = Counter()
        self._open: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._reading = Lock()

    def mark(self) -> Mark:
        """Now."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, name: str, start: Mark, end: Mark) -> None:
        """Adds the span from `start` to `end` to `name`."""
        if isinstance(start, float) and isinstance(end, float):
            self._totals[name] += end - start  # pyright: ignore[reportArgumentType]
            return
        assert isinstance(start, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        with self._reading:
            self._open.append((name, start, end))
            while self._open and self._open[0][2].query():
                self._close()

    def totals(self) -> dict[str, float]:
        """Seconds by name; waits for spans that are still open on the GPU."""
        with self._reading:
            while self._open:
                self._open[0][2].synchronize()
                self._close()
            return dict(self._totals)

    def _close(self) -> None:
        name, start, end = self._open.popleft()
        self._totals[name] += start.elapsed_time(end) / 1e3  # pyright: ignore[reportArgumentType]
