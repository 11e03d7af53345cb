"""Processes that run a script as torchrun would have them, forked from the warm Python, on this machine's loopback."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch.distributed as dist

from tests.support.warm import ROOT, Forked

TIMEOUT_S = 300.0
GRACE_S = 10.0
"""So long after a rank has failed the others may still say why they did."""


class Ended(NamedTuple):
    """A process's exit code, and what it printed to standard output and standard error."""

    code: int
    out: str
    err: str


def run_ranks(argv: Sequence[str], world: int, *, imports: Sequence[str] = (), cwd: Path = ROOT) -> str:
    """Runs `python *argv` on so many ranks. Returns what they printed to standard output, one rank after the other.

    The store is this process's, so that no rank has to be the last. Fails with what all ranks printed to standard error
    where one has failed, or still runs after TIMEOUT_S."""
    _store, environments = meeting_place(world)
    return _succeeded(_run(environments, argv, imports, cwd))


def run_python(argv: Sequence[str], *, imports: Sequence[str] = (), cwd: Path = ROOT) -> str:
    """Runs `python *argv` in one process that is no rank; the same otherwise."""
    return _succeeded(_run([{}], argv, imports, cwd))


def ended_ranks(
    argv: Sequence[str], world: int, *, imports: Sequence[str] = (), env: Mapping[str, str] = MappingProxyType({})
) -> list[Ended]:
    """How each of so many ranks that run `python *argv` has ended; some may fail."""
    _store, environments = meeting_place(world)
    return _run([{**own, **env} for own in environments], argv, imports, ROOT)


def meeting_place(world: int) -> tuple[dist.TCPStore, list[dict[str, str]]]:
    """A store, and the ranks' variables by which they find it."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    return store, [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


SERVES = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@contextmanager
def served_store() -> Iterator[tuple[Forked, int]]:
    """A process that serves a store, as long as the context lasts, and its port."""
    with Forked(["-c", SERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            yield server, int(server.stdout.readline())
        finally:
            server.kill()


def _succeeded(ranks: list[Ended]) -> str:
    codes = [ended.code for ended in ranks]
    assert not any(codes), "\n".join(
        [f"exit codes {codes}", *(f"rank {rank}: {ended.err[-8000:]}" for rank, ended in enumerate(ranks))]
    )
    return "".join(ended.out for ended in ranks)


def _run(environments: list[dict[str, str]], argv: Sequence[str], imports: Sequence[str], cwd: Path) -> list[Ended]:
    always = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        written = [(Path(folder) / f"{rank}.out", Path(folder) / f"{rank}.err") for rank in range(len(environments))]
        processes = []
        for own, (out, err) in zip(environments, written, strict=True):
            files = {"stdout": stack.enter_context(out.open("w")), "stderr": stack.enter_context(err.open("w"))}
            processes.append(Forked(argv, imports, env=always | own, cwd=cwd, **files))
        _wait(processes)
        texts = [(out.read_text(), err.read_text()) for out, err in written]
    return [Ended(process.returncode, *own) for process, own in zip(processes, texts, strict=True)]


def _wait(processes: list[Forked]) -> None:
    """Until all have ended, or one has failed and the others have had time to; kills those that then still run."""
    until, failed = time.monotonic() + TIMEOUT_S, False
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        if not failed and any(process.returncode for process in processes):
            failed, until = True, min(until, time.monotonic() + GRACE_S)
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.wait()


@contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """torch.distributed of this process alone; its store is a file in the folder."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def held_port() -> Iterator[int]:
    """A TCP port of this machine that no other caller gets meanwhile, for a process that listens there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's stores have it, which may listen then
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
