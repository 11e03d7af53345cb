"""A thread that notices a lost rank where a wait does not."""

import threading
from time import monotonic

from gradwire.runtime.failures.job_errors import PeerFailed
from gradwire.runtime.worker.executor import Executor
from gradwire.transports import Mesh

PERIOD_S, SOON_S, PAUSE_S = 1.0, 0.2, 5.0
"""How often it looks; how long the wait itself gets to fail first, which names the group (together less than the others
wait for this rank's mark); and the delay that counts as a pause, or half the collectives' timeout if that is less."""
LOOKS_PER_S = 4000
"""The most looks of all ranks together, which ask one store."""
WAITS_S = 2.0
"""After so long a wait may be one for a lost rank."""


class Monitor:
    """A thread that polls transports whose waits may not notice a lost rank.

    On NCCL the worker waits for a stream, not for the ranks: a wait returns at once, and where a rank is lost the
    stream never ends. gloo's waits mostly end with an error; but it forgets some messages to a rank that is gone. So
    every second, or less often where ranks are many, this thread asks the transports that need it; a lost rank fails
    the job, which aborts the collectives under way, and so ends all waits for the stream or for the worker.

    Where the thread is itself late, this process did not run, and others may have given it up.
    """

    def __init__(self, mesh: Mesh, executor: Executor) -> None:
        self._mesh = mesh
        self._executor = executor
        self._closed = threading.Event()
        self._period_s = period_s(mesh.ranks * len(mesh.axes))
        for transport in mesh.axes.values():
            transport.look_s = self._period_s
        # since when this thread waits, and the last pause of this process: its end and its seconds
        self._waits_since: float | None = None
        self._pause = (0.0, 0.0)
        # last: the thread reads all of these
        self._thread = threading.Thread(target=self._watch, name="gradwire-monitor", daemon=True)
        self._thread.start()

    def watches(self) -> bool:
        """Whether the thread still looks for lost ranks, or is ending the job; False on that thread itself."""
        return self._thread.is_alive() and threading.current_thread() is not self._thread

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def paused_s(self, within_s: float) -> float:
        """The seconds of this process's last pause, if it ended within the last `within_s` seconds or since this thread
        last looked; else 0."""
        # the caller may have woken before the thread
        self._note_pause()
        ended_s, seconds = self._pause
        return seconds if monotonic() - ended_s < within_s + self._period_s else 0.0

    def _note_pause(self) -> None:
        now, since = monotonic(), self._waits_since
        # later than it should be: this process was stopped, or got no core
        late_s = 0.0 if since is None else now - since - self._period_s
        if late_s > min(PAUSE_S, self._mesh.timeout_s / 2):
            self._pause = now, late_s

    def _waited(self) -> bool:
        """Waits for a period in which only this process itself can be late. Returns whether to go on."""
        # from here to the end of the wait only this process itself can be late
        self._waits_since = monotonic()
        closed = self._closed.wait(self._period_s)
        self._note_pause()
        self._waits_since = None
        return not closed

    def _watch(self) -> None:
        while self._waited():
            # a wait that notices the lost rank by itself names the group: it gets some time to fail first
            if (why := self._lost()) is not None and not self._closed.wait(SOON_S):
                self._executor.fail(PeerFailed("reducing ended", why))
                return

    def _lost(self) -> str | None:
        try:
            return self._mesh.lost(self._executor.waits.seconds() > WAITS_S)
        except Exception as error:  # the store's host is gone, or whatever a user's transport raises
            return f"a rank was lost ({error})"


def period_s(looks: int) -> float:
    """How often to look where all ranks look so many times together."""
    return max(PERIOD_S, looks / LOOKS_PER_S)
