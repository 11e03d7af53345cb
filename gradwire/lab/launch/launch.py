"""Start the ranks of a job on this machine, over loopback or on an emulated network, and wait for them."""

import logging
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, PContext, SignalException, Std, start_processes
from torch.distributed.elastic.multiprocessing.api import RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

import gradwire
from gradwire.lab.launch.rank_failed import RankFailed
from gradwire.lab.network import nsenter
from gradwire.lab.network.network import Network

_NSENTER = Path(nsenter.__file__)
_POLL_S = 0.05
"""How often the ranks are looked at."""
_GRACE_S = 5
"""Seconds for which ranks may end by themselves once they are asked to."""
_STDERR_LINES = 30
"""Lines of a failed rank's standard error that are kept."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_LOST_PEER = re.compile(r"closed by peer|reset by peer|Broken pipe|Connection refused|remote process exited")

# It reports each rank that it ends; RankFailed has what matters of that.
logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)


def launch(
    argv: list[str],
    ranks: int,
    *,
    network: Network | None = None,
    env: dict[str, str] | None = None,
    timeout_s: float | None = None,
) -> None:
    """Run `python *argv` (such as `["-m", "package.module", "--flag"]`) as `ranks` processes; wait for all.

    The ranks are spread over the network's hosts in blocks, as torchrun does, or share loopback. Each
    gets the variables that `torch.distributed`'s env:// initialization reads, GLOO_SOCKET_IFNAME, one
    OpenMP thread unless the user chose otherwise, this process's import path, and `env`. Their stdout
    is this process's; of their stderr only rank 0's is shown. No rank outlives this process. Call from the main thread.

    Raises RankFailed when a rank fails (the others are ended), TimeoutError after `timeout_s`, and
    ValueError when the ranks do not divide evenly among the hosts.
    """
    hosts = network.hosts if network else 1
    if ranks < 1 or ranks % hosts:
        raise ValueError(f"{ranks} ranks on {hosts} hosts: give a positive multiple of the number of hosts")
    # on loopback the store is this process's, so that no other takes its port; an emulated host has ports of its own
    store = None if network else TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = _shared_environment() | _meeting_place(network, store) | (env or {})
    # each rank enters its host, and dies with this process
    try:
        with tempfile.TemporaryDirectory(prefix="gradwire-") as log_dir, _restored_signal_handlers() as handlers:
            context = start_processes(
                name="rank",
                entrypoint=sys.executable,
                args={rank: arguments(argv, network, rank * hosts // ranks) for rank in range(ranks)},
                envs={rank: shared | _rank_environment(rank, ranks, ranks // hosts) for rank in range(ranks)},
                logs_specs=DefaultLogsSpecs(log_dir, redirects=Std.ERR),
            )
            # from here on the first signal ends the ranks, in order
            _end_at_the_first_signal(handlers)
            _wait(context, timeout_s)
    except SignalException as stopped:
        # the ranks are gone: now do what this process does by itself
        signal.raise_signal(stopped.sigval)
        # it ignores the signal, and the job is not done
        raise


def arguments(argv: list[str], network: Network | None, host: int) -> tuple[str, ...]:
    """Arguments for Python to run `python *argv` on a host, in a process that dies with this one."""
    namespaces = network.namespaces(host) if network else []
    # -P: a checkout in the working folder, which may not be built, is not taken for the package that is installed
    return ("-P", str(_NSENTER), str(os.getpid()), *namespaces, "--", sys.executable, "-P", *argv)


def import_path() -> str:
    """PYTHONPATH for ranks: they import what this process can, such as a user's model beside the script that was
    started. Those with another package `gradwire` come last: parts of the user's may lie in a checkout's folder."""
    own = [os.path.realpath(folder) for folder in gradwire.__path__]

    def has_another(path: str) -> bool:
        # of folders that this user may not enter, as of those that are not there, os.path says no
        there = os.path.join(path, "gradwire")
        return os.path.isfile(os.path.join(there, "__init__.py")) and os.path.realpath(there) not in own

    return os.pathsep.join(sorted((path or os.getcwd() for path in sys.path), key=has_another))


def _meeting_place(network: Network | None, store: TCPStore | None) -> dict[str, str]:
    """Where ranks meet: at a store of the launcher's, or of rank 0's on its emulated host."""
    if store:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        return place | {"GLOO_SOCKET_IFNAME": "lo"}
    assert network
    return {"MASTER_ADDR": network.address(0), "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": network.interface}


def _shared_environment() -> dict[str, str]:
    return {
        "PYTHONPATH": import_path(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        # c10d warns, at every start, that emulated hosts have no names
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }


def _rank_environment(rank: int, ranks: int, ranks_per_host: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank % ranks_per_host),
        "LOCAL_WORLD_SIZE": str(ranks_per_host),
    }


def _end_at_the_first_signal(handlers: dict[signal.Signals, Any]) -> None:
    """Raise SignalException once; those that follow, as `timeout` sends two, do not disturb the end of the ranks. What
    was ignored before is so again: SIGHUP under nohup, SIGINT in a script's background."""

    def end(number: int, frame: object) -> None:
        # ignore all signals that follow
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise SignalException(f"got signal {number}", signal.Signals(number))

    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_IGN if handler == signal.SIG_IGN else end)


@contextmanager
def _restored_signal_handlers() -> Iterator[dict[signal.Signals, Any]]:
    """Take back the handlers that `start_processes` sets for good. Gives those of before."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield handlers
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(context: PContext, timeout_s: float | None) -> None:
    """Show rank 0's standard error meanwhile. Torch would by a thread, for which Python waits when it exits, and which
    goes on for ever where a signal comes while the ranks are ended."""
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    with open(context.stderrs[0], errors="replace") as stderr:
        try:
            # until all have ended, one has failed, or the time is over
            while (result := context.wait(0)) is None and time.monotonic() < until:
                _show(stderr)
                time.sleep(_POLL_S)
        finally:
            _close(context)
            _show(stderr)
    if result is None:
        raise TimeoutError(f"the ranks still ran after {timeout_s:g} s and were ended")
    if result.is_failed():
        raise _first_failure(result)


def _show(stderr: TextIO) -> None:
    sys.stderr.write(stderr.read())
    sys.stderr.flush()


def _close(context: Any) -> None:
    """End the ranks that still run, and close the files that torch leaves open for those that do not."""
    context.close(timeout=_GRACE_S)
    for handler in context.subprocess_handlers.values():
        if handler._stderr:
            handler._stderr.close()


def _first_failure(result: RunProcsResult) -> RankFailed:
    """The failed rank to blame: not one that was ended for it, nor one that lost its peer."""
    # the rank whose end is least explained by another's
    stderrs = {rank: _tail(Path(result.stderrs[rank])) for rank in result.failures}

    def innocence(failure: ProcessFailure) -> tuple[bool, bool]:
        return failure.exitcode == -signal.SIGTERM, bool(_LOST_PEER.search(stderrs[failure.local_rank]))

    failure = min(result.failures.values(), key=innocence)
    return RankFailed(failure.local_rank, failure.exitcode, stderrs[failure.local_rank])


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").rstrip().splitlines()[-_STDERR_LINES:])
