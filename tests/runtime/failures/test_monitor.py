"""A rank that is lost where no wait says so, as on NCCL: played by a transport of threads and by one of processes."""

import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from socket import gethostname
from time import monotonic
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import gradwire as gw
from gradwire.collective import Collective
from gradwire.runtime.failures import monitor
from gradwire.runtime.failures.failure_verdict import ExitReport
from gradwire.runtime.failures.job_end import close_all
from gradwire.runtime.failures.job_errors import PeerFailed, ReductionError
from gradwire.runtime.runtime import Runtime
from gradwire.runtime.worker import executor
from gradwire.transports.heartbeat import Heartbeat
from gradwire.transports.transport import Pending
from tests.support.harness import CPU, SMALL, WAIT_S, draw, hand_over, job, slots_of, together
from tests.support.ranks import meeting_place
from tests.support.waiting import wait_until
from tests.support.warm import Forked

SLOTS = slots_of(SMALL)
PLAN = gw.Plan((gw.Group(tuple(slot.name for slot in SLOTS), gw.TopK(0.1), gw.Residual(), gw.AllGather()),))

SILENT_S = 1.0
"""How long a rank may be silent; its thread looks fifty times in that."""


class Stuck:
    """As the host's wait for a stream on which a collective never ends: it returns when that is aborted, and raises
    nothing."""

    def __init__(self, aborted: threading.Event) -> None:
        self._aborted = aborted

    def wait(self) -> None:
        assert self._aborted.wait(WAIT_S), "nobody aborted it"


class Silent(gw.Transport):
    """One rank of a group of threads as NCCL would be; rank 1 dies when it is told to."""

    needs_polling = True

    def __init__(self, inner: gw.Threads, dead: threading.Event) -> None:
        self.rank, self.world, self.store = inner.rank, inner.world, inner.store
        self._inner, self._dead, self._aborted = inner, dead, threading.Event()
        self._heart = Heartbeat(inner.store, self.rank, self.world)
        self.said, self.begins_to_abort = "", lambda: None

    def start(self, op: Collective) -> Pending:
        if self._aborted.is_set():
            raise RuntimeError("aborted")
        return Stuck(self._aborted) if self._dead.is_set() else self._inner.start(op)

    def abort(self, reason: str) -> None:
        self.said = reason
        self.begins_to_abort()
        self._aborted.set()

    def lost(self, waits: bool) -> str | None:
        if self.rank == 1 and self._dead.is_set():
            return None
        silent = self._heart.silent(SILENT_S)
        return None if silent is None else f"a rank was lost ({silent})"


@contextmanager
def silent_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[object, threading.Event]]:
    monkeypatch.setattr(monitor, "PERIOD_S", 0.02)
    dead = threading.Event()
    with job(PLAN, SLOTS, 2, transports=[Silent(inner, dead) for inner in gw.Threads.group(2)]) as running:
        yield running, dead
        dead.set()
        for transport in running.transports:
            transport.abort("the test is over")


def test_a_lost_rank_is_an_error_where_waits_say_nothing(monkeypatch: pytest.MonkeyPatch):
    with silent_job(monkeypatch) as (running, dead):
        running.step(draw(SLOTS, 2, 0))
        kept = running.states()[0]
        dead.set()
        survivor, noted = running.runtimes[0], list[bool]()
        worker = survivor._executor
        running.transports[0].begins_to_abort = lambda: noted.append(bool(worker.nan_if_aborted().isnan()))
        survivor.open_step()
        hand_over(survivor, draw(SLOTS, 2, 1)[0])
        (error,) = together(1, lambda rank: survivor.finish())
        assert isinstance(error, ReductionError)
        assert str(error) == f"reducing ended: rank 1 (host {gethostname()}) was lost"
        assert running.transports[0].said == "reducing ended: a rank was lost (1)", "the others are told"
        assert noted[0], "behind an aborted collective a stream goes on, with half of a mean"
        with pytest.raises(ReductionError, match="rank 1"):
            survivor.open_step()
        after = survivor.state_dict()
        assert all(torch.equal(after[name], kept[name]) for name in kept), "the last whole step's"


@pytest.mark.parametrize("error", [RuntimeError("no answer"), ConnectionResetError("reset by peer")], ids=str)
def test_a_transport_that_cannot_be_asked_is_one_that_has_lost_a_rank(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    """A user's own may raise anything; a monitor that ends by it would leave the ranks to wait for ever."""
    with silent_job(monkeypatch) as (running, _):
        monkeypatch.setattr(running.transports[0], "lost", Mock(side_effect=error))
        assert wait_until(lambda: running.transports[0].said == f"reducing ended: a rank was lost ({error})")


def test_a_call_that_was_under_way_raises_what_has_ended_the_job():
    """And not what came of that on the worker, which names no rank."""
    with job(PLAN, SLOTS, 2) as running:
        first, second = running.runtimes

        def interrupted(mesh: object, device: torch.device) -> None:
            lost = PeerFailed("reducing ended", "a rank was lost")
            threading.Thread(target=first.fail, args=(lost,)).start()  # as the monitor does: it asks who that was
            assert wait_until(lambda: first.error is lost)
            raise RuntimeError("aborted")

        def comes(runtime: Runtime, task: Callable[[object, torch.device], None]) -> None:
            with runtime.between_steps("a call") as together:
                together(task, None)

        threading.Thread(target=comes, args=(second, lambda mesh, device: None)).start()
        with pytest.raises(ReductionError, match=rf"^reducing ended: rank 1 \(host {gethostname()}\) was lost$"):
            comes(first, interrupted)


@pytest.mark.usefixtures("one_rank")
def test_that_another_rank_has_given_up_is_known_when_it_is_first_asked():
    """Else this one's mark may come when the others have given it up as well."""
    transport = gw.ProcessGroup.own()
    assert transport.lost(False) is None
    transport.abort("rank 1 was lost")
    assert transport.lost(False) == "rank 1 was lost"


class Stream:
    """A GPU's, of whose work a collective is the last that ends when it is aborted."""

    def __init__(self, aborted: threading.Event) -> None:
        self._aborted = aborted

    def query(self) -> bool:
        return self._aborted.is_set()

    def synchronize(self) -> None:
        assert self._aborted.wait(5), "nobody aborted it"


def test_a_rank_that_is_lost_in_the_last_step_is_noticed_while_the_job_is_closed(monkeypatch: pytest.MonkeyPatch):
    with silent_job(monkeypatch) as (running, dead):
        running.step(draw(SLOTS, 2, 0))
        survivor, transport = running.runtimes[0], running.transports[0]
        survivor._executor._stream = Stream(transport._aborted)
        dead.set()
        (error,) = together(1, lambda rank: survivor.close())
        assert error is None
        assert transport.said == "reducing ended: a rank was lost (1)"
        assert ExitReport(*json.loads(survivor.mesh.store.get("ended/0", 0))).detached, "whatever came then"
        assert survivor.mesh.store.add("ended", 0) == 1


def test_a_stream_that_nobody_watches_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(executor, "CLOSE_S", 0.1)
    never, looks = Stream(threading.Event()), iter([True] * 20)
    for watched in (None, lambda: next(looks, False)):
        worker = executor.Executor(CPU)
        worker._stream = never  # pyright: ignore[reportAttributeAccessIssue]
        (done,) = together(1, lambda rank, worker=worker, watched=watched: worker.close(watched))
        assert done is False
    assert next(looks, None) is None, "as long as a monitor watches"


class Broken(Stream):
    """A stream of a GPU that has failed."""

    def query(self) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_where_a_gpu_has_failed_the_end_of_a_job_ends_its_monitor_and_aborts_its_mesh():
    said = list[str]()
    ending: Any = SimpleNamespace(detach=lambda: None)
    mesh: Any = SimpleNamespace(
        ranks=2, axes={"replica": SimpleNamespace()}, timeout_s=1800.0, lost=lambda waits: None, abort=said.append
    )
    worker = executor.Executor(CPU)
    worker._stream = Broken(threading.Event())  # pyright: ignore[reportAttributeAccessIssue]
    watch = monitor.Monitor(mesh, worker)
    try:
        close_all(ending, watch, worker, mesh, mesh)
        assert said == ["a rank ended in the middle of a step"]
        assert not watch._thread.is_alive()
    finally:
        watch.close()


def test_slow_ranks_are_not_lost(monkeypatch: pytest.MonkeyPatch):
    with silent_job(monkeypatch) as (running, _):
        first, second = running.runtimes
        first.open_step()
        hand_over(first, draw(SLOTS, 2, 0)[0])
        threading.Event().wait(2 * SILENT_S)
        second.open_step()
        hand_over(second, draw(SLOTS, 2, 0)[1])
        running.finish()


def test_no_thread_watches_where_waits_raise():
    before = threading.active_count()
    with job(PLAN, SLOTS, 1):
        assert threading.active_count() == before + 1, "the worker"


def test_a_monitor_ends_with_its_job(monkeypatch: pytest.MonkeyPatch):
    before = set(threading.enumerate())
    with silent_job(monkeypatch) as (running, _):
        running.step(draw(SLOTS, 2, 0))
        assert {thread.name for thread in set(threading.enumerate()) - before} == {"gradwire", "gradwire-monitor"}
    assert not {thread.name for thread in set(threading.enumerate()) - before}


def test_a_pause_counts_for_a_moment():
    mesh: Any = SimpleNamespace(ranks=2, axes={"replica": SimpleNamespace()}, timeout_s=1800.0)
    watch = monitor.Monitor(mesh, SimpleNamespace(waits=SimpleNamespace(seconds=lambda: 0.0)))
    watch.close()
    watch._pause = monotonic() - 20.0, 7.0
    assert watch.paused_s(60.0) == 7.0
    assert watch.paused_s(2.0) == 0.0, "it ended long ago, and is not the reason"
    watch._waits_since = monotonic() - 9.0
    assert watch.paused_s(2.0) >= 8.0, "the caller has woken before the thread"


STOPPED = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradwire as gw
from gradwire.runtime.failures import monitor
from gradwire.transports import process_group

monitor.WAITS_S, process_group.SILENT_S = 0.2, 5.0

class Played:  # the host's wait for a stream: it ends when the work is done or aborted
    def __init__(self, work, transport):
        self._work, self._transport = work, transport

    def wait(self):
        while not self._work.is_completed():
            if self._transport.aborted.wait(0.001):
                return
        self._work.wait()

class LikeNCCL(gw.ProcessGroup):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._queues, self.aborted = True, threading.Event()
        self._direct = False  # gloo never says that what goes from rank to rank is complete

    def start(self, op):
        return Played(super().start(op), self)

    def abort(self, reason):  # gloo itself would wait for the other rank
        self.aborted.set()

dist.init_process_group("gloo")
ddp = DistributedDataParallel(torch.nn.Linear(50, 50))
gw.attach(ddp, gw.TopK(0.1), transport=LikeNCCL.own())
try:
    for step in range(1000):
        ddp(torch.ones(2, 50)).sum().backward()
        if step == 3 and dist.get_rank() == 1:
            print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
except RuntimeError as error:
    print(error, flush=True)
os._exit(0)
"""


def test_a_process_that_stops_is_noticed_by_those_that_wait_for_it():
    _store, (first, second) = meeting_place(2)
    argv, one_thread = ["-c", STOPPED], {"OMP_NUM_THREADS": "1"}
    with (
        Forked(argv, env=first | one_thread, stdout=subprocess.PIPE) as survivor,
        Forked(argv, env=second | one_thread, stdout=subprocess.DEVNULL) as stopped,
    ):
        try:
            said, _ = survivor.communicate(timeout=150)
        finally:
            survivor.kill()
            stopped.kill()
    assert f"reducing ended: rank 1 (host {gethostname()}) was lost".encode() in said


PAUSED = """
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist
import gradwire as gw

dist.init_process_group("gloo", timeout=timedelta(seconds=4))
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(50, 50))
gw.attach(ddp, gw.TopK(0.1))
try:
    for step in range(1000):
        ddp(torch.ones(2, 50)).sum().backward()
        if step == 3:
            print("ready", flush=True)
            sys.stdin.readline()
except RuntimeError as error:
    print(" ".join(str(error).split()), flush=True)
os._exit(0)
"""


def test_a_process_that_was_stopped_and_goes_on_learns_that_the_others_went_on_without_it():
    _store, environments = meeting_place(2)
    with ExitStack() as stack:
        argv, pipes = ["-c", PAUSED], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        ranks = [
            stack.enter_context(Forked(argv, env=own | {"OMP_NUM_THREADS": "1"}, text=True, **pipes))
            for own in environments
        ]
        late = threading.Timer(WAIT_S, lambda: [rank.kill() for rank in ranks])
        late.start()
        stack.callback(late.cancel)
        for rank in ranks:
            assert rank.stdout.readline() == "ready\n"
        ranks[1].send_signal(signal.SIGSTOP)
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
        survived = ranks[0].stdout.read()
        ranks[1].send_signal(signal.SIGCONT)
        paused = ranks[1].stdout.read()
    assert f"rank 1 (host {gethostname()}) was lost" in survived
    assert re.search(rf"ended: rank 1 \(host {gethostname()}\) did not run for \d+ s", paused), paused
