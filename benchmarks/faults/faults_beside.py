"""The same faults under plain DDP, torchft's DDP and Gradwire.

    python benchmarks/faults/faults_beside.py [--repeats 3]

Three ranks over loopback train a small model with a timeout of 15 s. After 15 steps one of them gets a fault:

- kill: it is killed, and a new process joins once the others have gone on;
- stop: it is stopped for 18 s;
- corrupt: a bit of one of its parameters flips;
- overflow: its loss is not finite, so the loop skips the optimizer's step, because the mean gradient is not finite.

Gradwire sends TopK 5 % and calls `handle.verify(heal=True)` after each step. Needs torchft (`pip install torchft`).
Writes benchmarks/results/faults_beside.json: seconds until the ranks that should go on have made three more steps, or
their errors.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch.distributed as dist
from torchft.coordination import LighthouseServer  # pyright: ignore

from benchmarks.faults.fault_table import COLUMNS, SYSTEMS, lines_of
from benchmarks.faults.faults_beside_rank import TIMEOUT_S
from benchmarks.shared.provenance import save
from benchmarks.shared.tables import markdown
from gradwire.lab.soak.rank_processes import Heard, HostProcess, RankProcess

FAULTS = ("kill", "stop", "corrupt", "overflow")
RANKS, STOP_S, PATIENCE_S = 3, TIMEOUT_S + 3, 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    host = HostProcess(0, None, sys.stderr.buffer, "benchmarks.faults.faults_beside_rank")
    host.load()
    rows: list[dict[str, Any]] = []
    for fault in FAULTS:
        for repeat in range(given.repeats):
            for system in SYSTEMS:
                rows.append(Trial(host, store.port, system, fault, repeat).run())
                print(rows[-1], flush=True)
    host.close()
    print(markdown(COLUMNS, lines_of(rows)))
    save("faults_beside.json", ranks=RANKS, timeout_s=TIMEOUT_S, stop_s=STOP_S, patience_s=PATIENCE_S, rows=rows)


def lighthouse() -> LighthouseServer:
    """The server at which torchft's replicas meet."""
    return LighthouseServer("127.0.0.1:0", min_replicas=2, join_timeout_ms=2000)


class Trial:
    """One job and one fault."""

    def __init__(self, host: HostProcess, port: int, system: str, fault: str, repeat: int) -> None:
        self._host, self._fault, self._system, self._repeat = host, fault, system, repeat
        self._lighthouse = lighthouse() if system == "torchft" else None
        self._facts = {
            "port": port, "job": f"{fault}/{repeat}/{system}", "ranks": RANKS, "system": system,
            "lighthouse": self._lighthouse.address() if self._lighthouse else "",
        }  # fmt: skip
        self._heard = SimpleQueue[Heard]()
        self._steps: dict[str, int] = {}
        self._errors: dict[str, str] = {}
        self._models: dict[tuple[str, int], set[str]] = {}
        self._done = self._healed = False
        self._finite = True
        self._wakes_at = float("inf")
        self._ranks = [self._start(rank) for rank in range(RANKS)]

    def run(self) -> dict[str, Any]:
        """Trains, injects the fault, and returns the row of the results."""
        assert self._wait(lambda: self._made(self._ranks, 15)), self._errors
        self._models.clear()
        others, struck_at = self._strike(), monotonic()
        before = dict(self._steps)
        went_on = self._wait(lambda: all(self._steps[rank.name] >= before[rank.name] + 3 for rank in others), others)
        seconds, ended = monotonic() - struck_at, any(rank.ended for rank in others)
        back = self._return() if went_on or self._fault == "stop" else None
        if went_on and self._fault == "corrupt":
            self._models.clear()
            last = max(self._steps.values())
            self._wait(lambda: self._made(others, last + 20), others)
        for rank in self._ranks:
            rank.end()
        self._hear_all()
        if self._lighthouse:
            self._lighthouse.shutdown()
        equal = all(len(models) == 1 for models in self._models.values())
        return {
            "system": self._system, "fault": self._fault, "repeat": self._repeat, "went_on": went_on, "ended": ended,
            "seconds": seconds, "back": back, "equal": equal, "finite": self._finite, "healed": self._healed,
            "errors": self._errors,
        }  # fmt: skip

    def _start(self, rank: int) -> RankProcess:
        return self._host.start(f"{rank}", self._heard, rank=rank, **self._facts)

    def _strike(self) -> list[RankProcess]:
        """Injects the fault; the ranks that should go on."""
        victim = self._ranks[1]
        match self._fault:
            case "kill":
                victim.signal(signal.SIGKILL)
            case "stop":
                victim.signal(signal.SIGSTOP)
                self._wakes_at = monotonic() + STOP_S
            case _:
                victim.send(do=self._fault)
                assert self._wait(lambda: self._done), self._errors
                return self._ranks
        return [self._ranks[0], self._ranks[2]]

    def _return(self) -> bool | None:
        """True if the lost rank, or a new process in its place, makes steps with the others again."""
        if self._fault == "kill":
            self._ranks.append(self._start(RANKS))
            return self._wait(lambda: str(RANKS) in self._steps)
        if self._fault == "stop":
            made = self._steps["1"]
            return self._wait(lambda: self._steps["1"] > made + 1, self._ranks[1:2])
        return None

    def _made(self, ranks: Sequence[RankProcess], steps: int) -> bool:
        return all(self._steps.get(rank.name, 0) >= steps for rank in ranks)

    def _wait(self, seen: Callable[[], bool], alive: Sequence[RankProcess] = ()) -> bool:
        """True if `seen()` becomes true within PATIENCE_S, and before any of the ranks `alive` ends."""
        until = monotonic() + PATIENCE_S
        while not seen():
            if monotonic() > until or any(rank.ended for rank in alive):
                return False
            if monotonic() > self._wakes_at:
                self._ranks[1].signal(signal.SIGCONT)
                self._wakes_at = float("inf")
            sleep(0.01)
            self._hear_all()
        return True

    def _hear_all(self) -> None:
        with suppress(Empty):
            while True:
                rank, words = self._heard.get_nowait()
                self._hear(rank.name, words)

    def _hear(self, name: str, words: dict[str, Any]) -> None:
        if "error" in words:
            self._errors[name] = words["error"].split("\n")[0]
        self._healed |= "healed" in words
        self._done |= "did" in words
        self._finite &= words.get("finite", True)
        if "step" in words:
            self._steps[name] = words["step"]
            self._models.setdefault((words["life"], words["step"]), set()).add(words["model"])


if __name__ == "__main__":
    main()
