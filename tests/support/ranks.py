"""Processes that run a script as torchrun would have them, forked from the warm Python, on this machine's loopback."""

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch.distributed as dist

from tests.support.warm import ROOT, Forked

GRACE_S = 10.0
"""So long after a rank has failed the others may still say why they did."""


def run_ranks(
    argv: Sequence[str], world: int, *, imports: Sequence[str] = (), cwd: Path = ROOT, timeout_s: float = 300
) -> str:
    """Runs `python *argv` on so many ranks. Returns what they printed to standard output, one rank after the other.

    The store is this process's, so that no rank has to be the last. Fails with what all ranks printed to standard error
    where one has failed, or still runs after `timeout_s`."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    return _run([shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)],
                argv, imports, cwd, timeout_s)  # fmt: skip


def run_python(argv: Sequence[str], *, imports: Sequence[str] = (), cwd: Path = ROOT, timeout_s: float = 300) -> str:
    """Runs `python *argv` in one process that is no rank; the same otherwise."""
    return _run([{}], argv, imports, cwd, timeout_s)


def _run(
    environments: list[dict[str, str]], argv: Sequence[str], imports: Sequence[str], cwd: Path, timeout_s: float
) -> str:
    always = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        written = [(Path(folder) / f"{rank}.out", Path(folder) / f"{rank}.err") for rank in range(len(environments))]
        processes = []
        for own, (out, err) in zip(environments, written, strict=True):
            files = {"stdout": stack.enter_context(out.open("w")), "stderr": stack.enter_context(err.open("w"))}
            processes.append(Forked(argv, imports, env=always | own, cwd=cwd, **files))
        _wait(processes, timeout_s)
        errors = [f"rank {rank}: {err.read_text()[-8000:]}" for rank, (_, err) in enumerate(written)]
        output = "".join(out.read_text() for out, _ in written)
    codes = [process.returncode for process in processes]
    assert not any(codes), "\n".join([f"exit codes {codes}", *errors])
    return output


def _wait(processes: list[Forked], timeout_s: float) -> None:
    """Until all have ended, or one has failed and the others have had time to; kills those that then still run."""
    until, failed = time.monotonic() + timeout_s, False
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        if not failed and any(process.returncode for process in processes):
            failed, until = True, min(until, time.monotonic() + GRACE_S)
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.wait()
