"""Signs of life that ranks leave for each other in a store."""

import time
from collections.abc import Callable

from gradwire.transports.transport import KeyValueStore

GLANCE_S = 0.5
"""How long a first sign is waited for."""


class Heartbeat:
    """One rank's beats, and what it has seen of the others'. Used by one thread.

    A beat is a count. Who reads one compares it with what it read before, by its own clock: no two clocks agree.
    """

    def __init__(self, store: KeyValueStore, rank: int, world: int, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._rank, self._now = store, rank, now
        self._others = [other for other in range(world) if other != rank]
        self._count = 0
        self._seen: dict[int, tuple[str | None, float]] = {}

    def beat(self) -> None:
        """This rank lives."""
        self._count += 1
        self._store.set(f"alive/{self._rank}", str(self._count))

    def silent(self, patience_s: float) -> int | None:
        """A rank that has not beaten for so long while this was asked again and again; None where all do."""
        for rank in self._others:
            beat = self._store.get(f"alive/{rank}", GLANCE_S)
            last, since = self._seen.get(rank, (None, self._now()))
            self._seen[rank] = (beat, since if beat == last else self._now())
            if beat == last and self._now() - since > patience_s:
                return rank
        return None

    def forget(self) -> None:
        """Nobody has been waited for."""
        self._seen.clear()
