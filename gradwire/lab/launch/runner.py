"""Runners of jobs: on ranks that are started for each job, or on the ranks that this process is one of."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.launch import launch
from gradwire.lab.launch.rank_job import Log, Peers, Spec, meet
from gradwire.lab.network.network import Network
from gradwire.lab.results import append, read_lines
from gradwire.lab.workloads import own
from gradwire.launched import is_launched

Job = Callable[[Any, Peers, Log], None]
_POLL_S = 0.2
# GPUs of one machine would otherwise go around the emulated link
_NCCL_OVER_THE_LINK = {
    "NCCL_SOCKET_IFNAME": Network.interface,
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
}


class Runner(ABC):
    """Runs one job after the other in the same cluster."""

    @abstractmethod
    def run(self, job: Job, spec: Spec, lines: Path, follow: Log) -> None:
        """Runs `job` on every rank. What rank 0 logs goes into the file `lines` and to `follow`, which rank 0 calls, or
        the process that started the ranks. Raises RankFailed, or what the job raises."""

    @contextmanager
    def led(self) -> Iterator[None]:
        """A context for what only the leading process does before the ranks run a job. Where it raises, all ranks that
        were started beforehand end."""
        yield

    def agreed(self, make: Callable[[], Path]) -> Path:
        """The folder that the leading process makes, on all ranks: others might choose another name."""
        return make()


@contextmanager
def runner(cluster: LabCluster) -> Iterator[Runner]:
    """Context with a runner on the cluster. Raises NetworkUnavailable where a link may not be made."""
    if is_launched():
        # this process is a rank of a job that runs
        with meet(cluster.device) as peers:
            yield _Joined(peers)
        return
    # else ranks are started, on emulated hosts where there is a link
    with Network(cluster.hosts, cluster.link) if cluster.link else nullcontext() as network:
        yield _Launcher(cluster, network)


class _Joined(Runner):
    """Runs jobs on the ranks that were started beforehand, of which this process is one."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers

    def run(self, job: Job, spec: Spec, lines: Path, follow: Log) -> None:
        def log(line: dict[str, Any]) -> None:
            append(lines, line)
            follow(line)

        # as in the fresh processes that the other runner starts
        own.begin_anew()
        job(spec, self.peers, log if self.peers.rank == 0 else lambda line: None)

    @contextmanager
    def led(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.peers.text_of_first("failed")
            raise
        # rank 0 says why
        if self.peers.text_of_first(""):
            sys.exit(1)

    def agreed(self, make: Callable[[], Path]) -> Path:
        with self.led():
            folder = make()
        return Path(self.peers.text_of_first(str(folder)))


class _Launcher(Runner):
    """Starts fresh processes for every job, each running the job's module."""

    def __init__(self, cluster: LabCluster, network: Network | None) -> None:
        self.cluster, self.network = cluster, network

    def run(self, job: Job, spec: Spec, lines: Path, follow: Log) -> None:
        # the job as a file; results come back as lines of another
        spec_path = lines.with_name("spec.json")
        spec.write(spec_path)
        interface = [self.network.interface] if self.network else []
        arguments = ["-m", job.__module__, str(spec_path), str(lines), self.cluster.device, *interface]
        env = _NCCL_OVER_THE_LINK if self.network else {}
        with _following(lines, follow):
            launch(arguments, self.cluster.ranks, network=self.network, env=env)


@contextmanager
def _following(lines: Path, follow: Log) -> Iterator[None]:
    """Calls `follow`, on a thread, with each line that is appended to the file `lines` meanwhile."""
    ended, known = Event(), lines.stat().st_size if lines.exists() else 0

    def tail() -> None:
        # once more after the ranks have ended
        offset, last_look = known, False
        while not last_look:
            last_look = ended.wait(_POLL_S)
            for line, after in read_lines(lines, offset):
                offset = after
                follow(line)

    with ThreadPoolExecutor(1) as pool:
        tailing = pool.submit(tail)
        try:
            yield
        finally:
            ended.set()
        tailing.result()
