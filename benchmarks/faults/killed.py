"""One of four replicas is killed at a random moment.

    python benchmarks/faults/killed.py [--steps 300] [--seeds 3] [--kills 3]

Each seed is trained without a fault, then `--kills` times with one: `kill -9` of any rank at a random moment of steps
20 to 60 %; when the others have made a step, a new process joins. After every step the models of all ranks must be
bit-equal, the newcomer's from its first step on. Writes benchmarks/results/killed.json:
held-out losses, and seconds until the survivors had made their next step.
"""

import argparse
import random
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from time import monotonic, sleep

sys.path.append(str(Path(__file__).parents[2]))

import torch.distributed as dist

from benchmarks.faults.killed_rank import QUIET_S, TIMEOUT_S
from benchmarks.shared.provenance import save
from benchmarks.shared.tables import markdown, middle, span
from gradwire.lab.soak.rank_processes import Heard, HostProcess, RankProcess

RANKS, PATIENCE_S, A_STEP_S = 4, 90.0, 0.05


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3, help="trainings of a seed with a fault")
    given = parser.parse_args()
    if min(given.seeds, given.kills) < 1:
        parser.error("give 1 or more: --seeds, --kills")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    host = HostProcess(0, None, sys.stderr.buffer, "benchmarks.faults.killed_rank")
    host.load()
    rows = []
    for seed in range(given.seeds):
        for kill in (None, *range(given.kills)):
            rows.append(Training(host, store.port, seed, kill, given.steps).run())
            print(rows[-1], flush=True)
    host.close()
    print(markdown(("trainings", "held-out loss", "s until training goes on"), table(rows)))
    save("killed.json", steps=given.steps, ranks=RANKS, timeout_s=TIMEOUT_S, quiet_s=QUIET_S, rows=rows)


def table(rows: Sequence[dict]) -> list[list[str]]:
    whole, killed = ([row for row in rows if (row["kill"] is None) == is_whole] for is_whole in (True, False))
    return [
        ["uninterrupted", span((row["loss"] for row in whole), ".4f"), ""],
        ["one of four killed", span((row["loss"] for row in killed), ".4f"), middle(row["seconds"] for row in killed)],
    ]


class Training:
    """One training of four ranks, of which one may be killed."""

    def __init__(self, host: HostProcess, port: int, seed: int, kill: int | None, steps: int) -> None:
        self._chance = random.Random(f"{seed} {kill}")
        self._seed, self._kill = seed, kill
        self._at = None if kill is None else int(self._chance.uniform(0.2, 0.6) * steps)
        self._facts = {"seed": seed, "steps": steps, "port": port, "job": f"{seed}/{kill}"}
        self._host, self._heard = host, SimpleQueue[Heard]()
        self._killed: RankProcess | None = None
        self._struck_at, self._went_on_s = 0.0, 0.0
        self._models: dict[tuple[str, int], str] = {}
        self._losses: dict[str, float] = {}
        self._stepped: set[str] = set()
        self._newcomer: RankProcess | None = None
        self._joined = False
        self._ranks = [self._start(f"rank {number}") for number in range(RANKS)]

    def run(self) -> dict:
        """The row of the results. Raises AssertionError if models differ, and queue.Empty if training hangs."""
        while len(self._losses) < len(self._ranks):
            rank, words = self._heard.get(timeout=PATIENCE_S)
            if rank in self._ranks:
                self._hear(rank, words)
        for rank in self._ranks:
            rank.end()
        assert len(set(self._losses.values())) == 1, self._losses
        assert self._joined == (self._kill is not None), "the newcomer came when training was over"
        loss = next(iter(self._losses.values()))
        return {"seed": self._seed, "kill": self._kill, "at": self._at, "loss": loss, "seconds": self._went_on_s}

    def _start(self, name: str) -> RankProcess:
        return self._host.start(name, self._heard, at_least=RANKS - 1, **self._facts)

    def _hear(self, rank: RankProcess, words: dict) -> None:
        if "loss" in words:
            self._losses[rank.name] = words["loss"]
        if "error" in words:
            print(f"  {rank.name}: {words['error']}", flush=True)
        if "step" not in words:
            return
        assert self._models.setdefault((words["life"], words["step"]), words["model"]) == words["model"]
        if self._at is not None and self._killed is None and words["step"] >= self._at:
            self._strike()
        elif self._killed and words["ranks"] < RANKS and not self._newcomer:
            self._stepped.add(rank.name)
            if len(self._stepped) == RANKS - 1:
                self._went_on_s = monotonic() - self._struck_at
                self._newcomer = self._start("newcomer")
                self._ranks.append(self._newcomer)
        self._joined |= rank is self._newcomer

    def _strike(self) -> None:
        sleep(self._chance.uniform(0, A_STEP_S))
        self._killed = self._ranks.pop(self._chance.randrange(RANKS))
        self._killed.signal(signal.SIGKILL)
        self._struck_at = monotonic()


if __name__ == "__main__":
    main()
