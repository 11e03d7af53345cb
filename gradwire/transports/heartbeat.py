"""Signs of life that ranks leave for each other in a store."""

import time
from collections.abc import Callable

from gradwire.transports.transport import KeyValueStore

GLANCE_S = 0.5
"""How long to wait for a first sign."""


class Heartbeat:
    """One rank's beats, and its view of the others'. Used by one thread.

    A beat is a count. Its readers compare it with the last one that they read, by their own clock: no two agree.
    """

    def __init__(self, store: KeyValueStore, rank: int, world: int, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._rank, self._now = store, rank, now
        self._others = [other for other in range(world) if other != rank]
        self._count = 0
        self._seen: dict[int, tuple[str | None, float]] = {}

    def beat(self) -> None:
        """Leaves this rank's sign of life."""
        self._count += 1
        self._store.set(f"alive/{self._rank}", str(self._count))

    def silent(self, patience_s: float) -> int | None:
        """A rank without a new beat for so long, while this was called again and again; None if there is none."""
        for rank in self._others:
            beat = self._store.get(f"alive/{rank}", GLANCE_S)
            last, since = self._seen.get(rank, (None, self._now()))
            self._seen[rank] = (beat, since if beat == last else self._now())
            if beat == last and self._now() - since > patience_s:
                return rank
        return None

    def forget(self) -> None:
        """Counts silence anew."""
        self._seen.clear()
