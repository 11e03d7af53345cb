"""Heartbeats: signs of life that ranks leave for each other in a store."""

import time
from collections.abc import Callable

from gradwire.transports.torch_store import TorchStore
from gradwire.transports.transport import KeyValueStore

ALARM = 1 << 40
"""More beats than ever come."""


class Heartbeat:
    """One rank's beats, and its view of its partners', which are half of the ranks away. Used by one thread.

    Two partners share a counter. Adding 1 to it is a rank's beat, and the sum that comes back says how many beats the
    partner has left: so a beat is one question to the store, however many ranks there are. Times are those of the
    reader's clock: no two agree.
    """

    alarmed = False
    """Some rank has raised the alarm."""

    def __init__(self, store: KeyValueStore, rank: int, world: int, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._rank = rank
        self._now = now
        self._partners = {(rank + half) % world for half in (world // 2, -(world // 2))} - {rank}
        # own beats, and the time of the last
        self._count, self._beaten = 0, now()
        # by partner: its beats when they last changed, and when that was
        self._seen: dict[int, tuple[int, float]] = {}

    def silent(self, patience_s: float, waits: bool = True) -> int | None:
        """Leaves a beat. Returns a partner without a new one for so long, in which this rank `waits` for the others and
        has left its own beats; None if there is none."""
        # a beat, and the partners' numbers
        self._count += 1
        # a rank that was late itself, or does not wait, begins to wait for its partners anew
        late = self._now() - self._beaten > patience_s / 2
        for other in self._partners:
            both = self._store.add(_pair(self._rank, other), 1)
            self.alarmed |= both >= ALARM
            beats = both - self._count
            if late or not waits or beats != self._seen.get(other, (-1, 0.0))[0]:
                self._seen[other] = beats, self._now()
        self._beaten = self._now()
        return next((other for other, (_, at) in self._seen.items() if self._beaten - at > patience_s), None)


def raise_alarm(store: TorchStore, world: int) -> None:
    """Has the next beat of every rank find the alarm."""
    half = world // 2
    # one question: one for each pair would wait behind those of all ranks that have heard it
    store.set_all([_pair(rank, (rank + half) % world) for rank in range(world)], str(ALARM))


def _pair(one: int, other: int) -> str:
    return f"alive/{min(one, other)}-{max(one, other)}"
