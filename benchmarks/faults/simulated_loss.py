"""A loss among thousands of ranks on one store, by a played clock: when each of the others knows which rank it was."""

from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import gradwire as gw
from benchmarks.faults.played_store import Clock, PlayedStore
from gradwire.runtime.failures import failure_verdict, monitor
from gradwire.runtime.failures.failure_verdict import FailureVerdict
from gradwire.runtime.failures.job_errors import PeerFailed, RankStatus
from gradwire.transports.heartbeat import Heartbeat

TIMEOUT_S = 600.0


DIES_S = 20.0
"""When the ranks die that are lost."""


class Loss(NamedTuple):
    """A loss, which all others have to name."""

    noticed_s: float
    """When the first one noticed it."""
    named_s: list[float]
    """When each of the others had its name."""
    said: set[str]
    """The reasons that the others name; one where they agree."""
    asked: int
    """The questions to the store after it was noticed."""


class OverNCCL(gw.ProcessGroup):
    """A group over NCCL whose store is played; it has no collectives."""

    def __init__(self, store: Any, rank: int, ranks: int, clock: Clock) -> None:
        self.rank, self.world, self.store, self.timeout_s = rank, ranks, store, TIMEOUT_S
        self._queues, self._group, self._texts, self._beside = True, None, store, store
        self._heart = Heartbeat(store, rank, ranks, clock.now)


class Simulation:
    """Ranks that wait for each other and watch; some of them die when all have beaten for some time."""

    def __init__(self, ranks: int, answer_s: float, step_s: float, dead: Collection[int]) -> None:
        self._ranks, self._step_s, self._dead = ranks, step_s, dead
        self._clock = Clock()
        self._store = PlayedStore(self._clock, answer_s)
        self._noticed: list[tuple[float, int]] = []
        self._named: list[float] = []
        self._said = set[str]()

    def run(self) -> Loss:
        with ExitStack() as stack:
            for name, played in ("monotonic", self._clock.now), ("sleep", self._clock.sleep):
                stack.enter_context(patch.object(failure_verdict, name, played))
            self._clock.run([partial(self._rank, rank) for rank in range(self._ranks)])
        (noticed, before), *_ = self._noticed
        named = [at - DIES_S for at in self._named]
        return Loss(noticed - DIES_S, named, self._said, self._store.asked - before)

    def _rank(self, rank: int) -> None:
        transport = OverNCCL(self._store, rank, self._ranks, self._clock)
        # looks of all ranks are spread over a period
        transport.look_s = period_s = monitor.period_s(self._ranks)
        self._clock.sleep(period_s * rank / self._ranks)
        while (why := transport.lost(True)) is None:
            self._clock.sleep(period_s)
            if rank in self._dead and self._clock.now() > DIES_S:
                return
        self._noticed.append((self._clock.now(), self._store.asked))
        self._clock.sleep(monitor.SOON_S)
        self._end(transport, why)

    def _end(self, transport: OverNCCL, why: str) -> None:
        silent = set[int]() if transport.silent is None else {transport.silent}
        mesh: Any = SimpleNamespace(
            rank=transport.rank, ranks=self._ranks, store=self._store, timeout_s=TIMEOUT_S, abort=transport.abort,
            silent=silent, gives_up_s=transport.gives_up_s,
        )  # fmt: skip
        progress: Any = SimpleNamespace(step_s=lambda: self._step_s, status=RankStatus)
        error = PeerFailed("reducing ended", why)
        blame = error.blame

        def blamed(why: str) -> None:
            self._named.append(self._clock.now())
            blame(why)

        with patch.object(error, "blame", blamed):
            FailureVerdict(mesh, list, lambda _: 0.0, lambda: progress).end(error)
        self._said.add(str(error))


def simulated_loss(ranks: int, answer_s: float, step_s: float = 0.0, dead: Collection[int] = ()) -> Loss:
    """Simulates the loss of the ranks `dead`, by default one, while all ranks wait for each other."""
    return Simulation(ranks, answer_s, step_s, dead or {ranks // 3}).run()
