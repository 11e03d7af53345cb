"""Where the time goes, in seconds, without waiting for a GPU."""

from collections import Counter, deque
from threading import Lock

from gradwire.runtime.executor import Mark, elapsed_s, is_over


class Clock:
    """Adds up spans by name, of any thread. On a GPU a span lies between two events and is read later."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._open: deque[tuple[str, Mark, Mark]] = deque()
        self._reading = Lock()

    def add(self, name: str, start: Mark, end: Mark) -> None:
        """Adds the span from `start` to `end` to `name`."""
        with self._reading:
            self._open.append((name, start, end))
            while self._open and is_over(self._open[0][2]):
                self._close()

    def so_far(self, name: str) -> float:
        """Seconds of the spans that are over."""
        with self._reading:
            return self._totals[name]

    def totals(self) -> dict[str, float]:
        """Seconds by name; waits for spans that are still open on a GPU."""
        with self._reading:
            while self._open:
                self._close()
            return dict(self._totals)

    def _close(self) -> None:
        name, start, end = self._open.popleft()
        self._totals[name] += elapsed_s(start, end)  # pyright: ignore[reportArgumentType]
