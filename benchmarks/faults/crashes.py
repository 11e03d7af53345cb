"""Crashes while a job saves: does everything on disk load, or is it refused as a whole?

    python benchmarks/faults/crashes.py [--crashes 200] [--ranks 2] [--megabytes 4]

Every rank saves its state to a file of its own after each step, under the same name, and one more process saves the
states of all ranks to one file. At a random moment all processes are killed. The ranks' files must then be of the same
step, with every bit that was saved, or `gradwire.reshard`, which reads all of them, must refuse them. The file of all
ranks must always load.

Only processes are killed, not the host: this does not test whether a disk keeps synced data.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch

import gradwire as gw
from benchmarks.shared.provenance import save
from gradwire.checkpoint import StateDict, gather, pack, unpack
from gradwire.plans import NATIVE
from gradwire.state_description import About

LONGEST_S = 0.3
EVERYONE = "everyone.pt"


def main() -> None:
    """Writes crashes.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--crashes", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = Crashes(Path(folder), given.ranks, int(given.megabytes * 2**18)).times(given.crashes)
    print(found)
    save("crashes.json", ranks=given.ranks, megabytes=given.megabytes, **found)


class Crashes:
    """A job whose ranks each save a state of `numel` numbers to a folder."""

    def __init__(self, folder: Path, ranks: int, numel: int) -> None:
        self._folder, self._ranks, self._numel = folder, ranks, numel

    def times(self, crashes: int) -> dict[str, int]:
        """Counts of crashes after which the files were whole, and refused. Raises AssertionError on anything else."""
        chance, found = random.Random(0), Counter[str](crashes=crashes, whole=0, refused=0, in_mid_file=0)
        self._save_all(0)
        for rank in range(self._ranks):
            self._save_own(rank, 0)
        for _ in range(crashes):
            self._crash(chance.uniform(0, LONGEST_S), self._newest() + 1)
            found["in_mid_file"] += any(self._folder.glob(".*.partial"))
            found["whole" if self._is_whole() else "refused"] += 1
        return dict(found)

    def _crash(self, after_s: float, first: int) -> None:
        """Kills all processes `after_s` seconds after they start to save, from step `first` on."""
        saves = [lambda step, rank=rank: self._save_own(rank, step) for rank in range(self._ranks)]
        children = [_forked(save, first) for save in (*saves, self._save_all)]
        time.sleep(after_s)
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)

    def _is_whole(self) -> bool:
        """True if the ranks' files load, False if they are refused. Asserts that the file of all ranks loads."""
        everyone = self._read(EVERYONE)
        assert _equal(everyone, self._everyones(_step(everyone)))
        states = [self._read(f"{rank}.pt") for rank in range(self._ranks)]
        for rank, state in enumerate(states):
            assert _equal(state, self._own(rank, _step(state)))
        try:
            loaded = gw.reshard(states, self._ranks)
        except ValueError:
            return False
        return all(_equal(state, self._own(rank, _step(states[0]))) for rank, state in enumerate(loaded))

    def _newest(self) -> int:
        return max(_step(self._read(path.name)) for path in self._folder.glob("*.pt"))

    def _save_own(self, rank: int, step: int) -> None:
        gw.save(self._own(rank, step), self._folder / f"{rank}.pt")

    def _save_all(self, step: int) -> None:
        gw.save(self._everyones(step), self._folder / EVERYONE)

    def _everyones(self, step: int) -> StateDict:
        return gather([self._own(rank, step) for rank in range(self._ranks)])

    def _own(self, rank: int, step: int) -> StateDict:
        """A rank's state after a step, different for each rank and step."""
        drawn = torch.rand(self._numel, generator=torch.Generator().manual_seed(step * self._ranks + rank))
        return pack({"weight": {"residual": drawn}}, {}, step, About(rank, self._ranks, NATIVE.to_json()))

    def _read(self, name: str) -> StateDict:
        return torch.load(self._folder / name, weights_only=True)


def _forked(save_step: Callable[[int], None], first: int) -> int:
    """Forks a process that saves step after step until it is killed; its process id."""
    if child := os.fork():
        return child
    try:
        for step in count(first):
            save_step(step)
    finally:
        os._exit(1)


def _step(state: StateDict) -> int:
    return unpack(state).step


def _equal(one: StateDict, other: StateDict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[key]) for key, tensor in one.items())


if __name__ == "__main__":
    main()
