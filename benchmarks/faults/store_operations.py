"""How often do ranks ask the store, when they meet, when they watch each other, and when one of them dies?

    python benchmarks/faults/store_operations.py [--ranks 64] [--simulated 4096]

So many processes, forked from one that has imported torch, run Gradwire's own meeting, monitor and ending over a real
TCPStore; collectives are played, for what they send does not go through the store. Every call of a process's client is
counted. One process is killed; all others have to name it. Then the same code runs on threads with a played clock and a
store that takes 200 us for each question, for more ranks than a machine can have processes. Writes
benchmarks/results/store_operations.json and prints a Markdown table.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

sys.path.append(str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

import gradwire as gw
from benchmarks.faults.played_store import Clock, PlayedStore
from benchmarks.faults.simulated_loss import simulated_loss
from benchmarks.shared.provenance import save
from benchmarks.shared.tables import markdown
from gradwire.runtime import meeting
from gradwire.runtime.failures.monitor import period_s
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.meeting import Meeting
from gradwire.runtime.runtime import Runtime
from gradwire.slots import Slot
from gradwire.transports import gathering, process_group
from gradwire.transports.transport import Done

WATCH_S, ASK_S, ANSWER_S = 10.0, 3.0, 200e-6
PLAYED_TIME = [(meeting, "monotonic", "now"), (gathering, "monotonic", "now"), (gathering, "sleep", "sleep")]
"""The functions by which a meeting knows the time and waits, and those of a `Clock` in their place."""
MODEL = {f"layers.{n}.weight": torch.empty(64, 64) for n in range(16)}


class Counting:
    """A store that counts the calls of its client."""

    def __init__(self, store: Any, asked: Counter[str]) -> None:
        self._store, self._asked = store, asked
        self.timeout = store.timeout

    def clone(self) -> "Counting":
        return Counting(self._store.clone(), self._asked)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._store, name)

        def counted(*arguments: Any) -> Any:
            self._asked[name] += 1
            return call(*arguments)

        return counted


class Played(gw.ProcessGroup):
    """A group over NCCL whose collectives are over at once."""

    def start(self, op: Any) -> Done:
        return Done()

    def open(self, device: torch.device) -> None:
        pass


class Group(dist.ProcessGroup):
    """As torch's over NCCL, to `Played`."""

    _device_types = ("cuda",)  # pyright: ignore
    options = SimpleNamespace(_timeout=timedelta(seconds=60))  # pyright: ignore

    def _get_backend(self, device: torch.device) -> Any:
        error = SimpleNamespace(name="SUCCESS")
        return SimpleNamespace(options=self.options, name=lambda: "nccl", get_error=lambda: error)

    def abort(self) -> None: ...

    def shutdown(self) -> None: ...


def one_rank(rank: int, ranks: int, port: int, start: Callable[[str], None]) -> dict[str, Any]:
    """The calls of a rank by what it was doing; `start` returns when all ranks come to the same."""
    asked, found = Counter[str](), dict[str, Any]()
    store = Counting(dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60)), asked)
    transport = Played(Group(rank, ranks), "gradwire/1", store)

    def count(what: str) -> None:
        found[what] = dict(asked)
        asked.clear()

    # meet
    start("attach")
    asked.clear()
    slots = [Slot.of(name, tensor) for name, tensor in MODEL.items()]
    plan = gw.Plan((gw.Group(tuple(MODEL), gw.TopK(0.01), gw.Residual(), gw.AllGather()),))
    runtime = Runtime(lambda: plan, slots, gw.Mesh.of(transport), torch.device("cpu"), JobOptions())
    count("attach()")
    # a call that all make together
    start("replan")
    count("")
    runtime.install(plan)
    count("replan()")
    # watch, while this rank waits for the others
    runtime._executor.waits.task = lambda begins: None
    runtime._executor.waits.step_begins()
    start("watch")
    count("")
    time.sleep(WATCH_S)
    count("watch")
    # a rank is lost
    start("loss")
    count("")
    if rank == ranks // 3:
        os.kill(os.getpid(), signal.SIGKILL)
    since = time.monotonic()
    while runtime.error is None:
        time.sleep(0.05)
    found["heard"], found["error"] = time.monotonic() - since, str(runtime._first_error.wait_for_blame())
    found["ended"] = time.monotonic() - since
    count("loss")
    # as many questions as the store answers
    start("speed")
    count("")
    until = time.monotonic() + ASK_S
    while time.monotonic() < until:
        store.add("speed", 1)
    count("speed")
    return found


def processes(ranks: int) -> tuple[list[dict[str, Any]], float]:
    """The results of so many processes."""
    reads = []
    port_reads, port_writes = os.pipe()
    for rank in range(ranks):
        mine, theirs = os.pipe()
        if os.fork() == 0:
            port = int(os.read(port_reads, 5))
            barrier = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=120))

            def start(what: str, barrier: Any = barrier) -> None:
                wanted = ranks - (what == "speed")
                barrier.add(f"start/{what}", 1)
                while barrier.add(f"start/{what}", 0) < wanted:
                    time.sleep(0.2)
                time.sleep(0.5)

            os.write(theirs, json.dumps(one_rank(rank, ranks, port, start)).encode() + b"\n")
            os._exit(0)
        os.close(theirs)
        reads.append(mine)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(port_writes, f"{store.port:5}".encode() * ranks)
    texts = [os.fdopen(each).read() for each in reads]
    found = [json.loads(text) for text in texts if text]
    return found, sum(own["speed"]["add"] for own in found) / ASK_S


def simulated(ranks: int) -> dict[str, float]:
    """The questions a rank of a meeting and of a loss, and the seconds until the loss is noticed and all have named
    it."""
    clock = Clock()
    store = PlayedStore(clock, ANSWER_S)

    def meet(rank: int) -> None:
        mesh: Any = SimpleNamespace(rank=rank, ranks=ranks, store=store, timeout_s=600.0, failure=lambda: None)
        Meeting(mesh).gather({"plan": "p" * 1000})

    with ExitStack() as stack:
        for module, name, played in PLAYED_TIME:
            stack.enter_context(patch.object(module, name, getattr(clock, played)))
        clock.run([partial(meet, rank) for rank in range(ranks)])
    loss = simulated_loss(ranks, ANSWER_S)
    assert loss.said == {f"reducing ended: rank {ranks // 3} was lost"}
    return {
        "meeting": store.asked / ranks, "met_s": clock.now(), "ending": loss.asked / ranks,
        "noticed_s": loss.noticed_s, "named_s": max(loss.named_s),
    }  # fmt: skip


def calls_of(found: list[dict[str, Any]], what: str) -> dict[str, float]:
    """How often a rank calls each method of its client, in the mean."""
    total = sum((Counter(own[what]) for own in found), Counter[str]())
    return {name: round(count / len(found), 2) for name, count in total.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--simulated", type=int, default=4096)
    given = parser.parse_args()
    if given.ranks < 2:
        parser.error("one dies and the others name it: give --ranks 2 or more")
    found, per_s = processes(given.ranks)
    lost = given.ranks // 3
    assert len(found) == given.ranks - 1
    assert all(f"rank {lost} " in own["error"] and " lost" in own["error"] for own in found), found[0]["error"]
    rows = {
        what: sorted(sum(own[what].values()) for own in found) for what in ("attach()", "replan()", "watch", "loss")
    }
    cells = [[what, f"{sum(counts) / len(counts):.1f}", f"{counts[-1]}"] for what, counts in rows.items()]
    print(markdown((f"{given.ranks} processes", "calls a rank", "most of one rank"), cells))
    watched = sum(rows["watch"]) / WATCH_S * given.ranks / len(found)
    played = simulated(given.simulated)
    beats = given.simulated / period_s(given.simulated)
    heard, ended = (max(own[what] for own in found) for what in ("heard", "ended"))
    print(f"watching: {watched:.0f} a second of all ranks; the store answers {per_s:.0f}")
    print(f"the loss: known on all after {heard:.1f} s, with the name after {ended:.1f} s")
    means = ", ".join(f"{name} {value:.1f}" for name, value in played.items())
    print(f"{given.simulated} ranks, simulated: {means}, {beats:.0f} beats a second")
    save(
        "store_operations.json", ranks=given.ranks, rows=rows, watched_per_s=watched, answered_per_s=per_s,
        silent_s=process_group.SILENT_S, heard_s=heard, ended_s=ended, simulated_ranks=given.simulated,
        simulated=played | {"beats a second": beats}, calls={what: calls_of(found, what) for what in rows},
    )  # fmt: skip


if __name__ == "__main__":
    main()
