"""Ranks that are killed or frozen: no other one hangs, and each is told why it ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.lab.launch import free_port


def told_to_survivors(job: str, world: int, lost: int, how: signal.Signals) -> list[str]:
    """What the other ranks were told when one was sent a signal in the middle of training."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world), "PATH": ""}
    shared |= {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.processes.victims", job]
    ranks = [
        subprocess.Popen(command, env=shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    try:
        for rank in ranks:
            assert rank.stdout
            assert rank.stdout.readline() == "trains\n"
        os.kill(ranks[lost].pid, how)
        return [rank.communicate(timeout=90)[0] for rank in ranks if rank is not ranks[lost]]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            assert rank.stdout
            rank.stdout.close()


@pytest.mark.parametrize(
    ("job", "how", "lost"),
    [
        ("topk", signal.SIGKILL, 0),
        ("topk", signal.SIGKILL, 1),
        ("topk", signal.SIGSTOP, 0),
        ("fp16", signal.SIGSTOP, 0),
        ("gravac", signal.SIGSTOP, 1),
    ],
)
def test_no_survivor_hangs(job: str, how: signal.Signals, lost: int):
    """The store's host, rank 0, or another one."""
    for told in told_to_survivors(job, 3, lost, how):
        assert "a rank was lost" in told
