"""Ranks that are killed or frozen: no other one hangs, and each names the reason."""

import signal
import subprocess
from contextlib import ExitStack
from socket import gethostname

import pytest

from tests.support.ranks import ended_ranks, held_port
from tests.support.warm import Forked


def errors_of_survivors(job: str, world: int, lost: int, how: signal.Signals | None) -> list[str]:
    """The errors of the other ranks when one was sent a signal, if any, in the middle of training."""
    argv, pipe = ["-m", "tests.processes.victims", job], subprocess.PIPE
    with ExitStack() as stack:
        # the store is in rank 0's process
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(stack.enter_context(held_port())), "PATH": ""}
        shared |= {"WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
        ranks = list[Forked]()
        for number in range(world):
            ranks.append(stack.enter_context(Forked(argv, env=shared | {"RANK": str(number)}, stdout=pipe, text=True)))
            stack.callback(ranks[-1].kill)
        for rank in ranks:
            assert rank.stdout
            assert rank.stdout.readline() == "trains\n"
        if how is not None:
            ranks[lost].send_signal(how)
        return [rank.communicate(timeout=90)[0] for rank in ranks if rank is not ranks[lost]]


@pytest.mark.parametrize(
    ("job", "how", "lost"),
    [
        ("topk", signal.SIGKILL, 0),
        ("topk", signal.SIGKILL, 1),
        ("topk", signal.SIGSTOP, 0),
        pytest.param("fp16", signal.SIGSTOP, 0, marks=pytest.mark.long),
        pytest.param("gravac", signal.SIGSTOP, 1, marks=pytest.mark.long),
    ],
)
def test_no_survivor_hangs(job: str, how: signal.Signals, lost: int):
    """The store's host, rank 0, or another one."""
    or_the_stores = ", or the store's host," if lost == 0 else ""
    for error in errors_of_survivors(job, 3, lost, how):
        assert f" ended: rank {lost} (host {gethostname()}){or_the_stores} was lost\n" in error


@pytest.mark.long
def test_a_call_of_all_ranks_names_the_lost_one_and_not_one_that_computes():
    for error in errors_of_survivors("verify", 3, 1, signal.SIGKILL):
        assert f" ended: rank 1 (host {gethostname()}) was lost\n" in error


def test_a_rank_that_fails_is_not_lost():
    """Rank 1 is the one that fails."""
    for error in errors_of_survivors("fails", 3, 1, None):
        assert "failed on rank 1: ArithmeticError: too much\n" in error
        assert " lost" not in error


@pytest.mark.parametrize(
    ("front_end", "world", "collective"),
    [
        ("DDP", 3, 15),
        *(pytest.param("DDP", 3, at, marks=pytest.mark.long) for at in (16, 17, 18, 19)),
        *(pytest.param("optimizer", 3, at, marks=pytest.mark.long) for at in (15, 16, 17, 18, 19)),
        *(pytest.param("FSDP2", 2, at, marks=pytest.mark.long) for at in (15, 16, 17, 18, 19)),
    ],
)
def test_what_survivors_save_is_a_whole_steps(front_end: str, world: int, collective: int):
    """A step takes a few collectives, and rank 1 is killed at one of them."""
    argv = ["-m", "tests.processes.lost_steps", front_end, str(collective)]
    for rank, ended in enumerate(ended_ranks(argv, world)):
        assert rank == 1 or ended.out.startswith("True True "), (ended.out, ended.err[-2000:])
