"""Long runs under faults: ranks train, faults strike, and laws are checked on all that ranks report."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from time import monotonic
from typing import IO, Any

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from gradwire.lab.network.link import Link
from gradwire.lab.network.network import Network
from gradwire.lab.soak.elastic_rank import LAST_CALL_S
from gradwire.lab.soak.faults import TIMEOUT_S, Fault, faults
from gradwire.lab.soak.laws import Facts, Laws
from gradwire.lab.soak.outcome import Followed, Soaked
from gradwire.lab.soak.rank_processes import Heard, HostProcess, RankProcess
from gradwire.lab.soak.soaked_model import FRONT_ENDS, IN_PLACE

PATIENCE_S = TIMEOUT_S + LAST_CALL_S + 15.0
"""Time limit of a recovery: the group's timeout, a meeting, and some steps on a busy machine."""
EPISODE = 12
"""Faults with the same front end and plan."""
SLOW = Link.parse("1mbit")


class Soak:
    """Driver of a job on `hosts` and of its faults. The job goes on in place, or begins again from checkpoints in
    `home`."""

    def __init__(self, hosts: int, network: Network | None, seed: int, home: Path, log: IO[bytes]) -> None:
        self._hosts = hosts
        self._network = network
        self._home = home
        where = f"hosts, {network.link} links" if network else "ranks over loopback"
        self.came = Soaked(seed, f"{'2' if hosts == 2 else f'2 to {hosts}'} {where}")
        self._laws = Laws()
        self.came.broken = self._laws.broken
        self._heard: SimpleQueue[Heard] = SimpleQueue()
        # episodes, ranks and lives are counted: keys in the store are never used twice
        self._numbers = count()
        self._episode = -1
        self._size = 2
        self._ranks = 2
        self._lives, self._episode_ends = count(), 0
        # on loopback the store is this process's, so that no other takes its port; else a process's of the first host
        if network:
            self._store, self._address = None, (network.address(0), 29500)
        else:
            self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            self._address = ("127.0.0.1", self._store.port)
        # processes: all that may still run, and the ranks of this episode by host
        self._began, self._reports = monotonic(), list[str]()
        self._all: list[RankProcess] = []
        self._members: dict[int, RankProcess] = {}
        self._host_processes = [HostProcess(host, network, log, "gradwire.lab.soak.rank_main") for host in range(hosts)]

    def run(self, minutes: float, kinds: list[str], follow: Callable[[Followed], None]) -> None:
        """Strikes with one fault after another, for so many minutes after all processes have loaded."""
        # wait until every host can fork
        for host in self._host_processes:
            host.load()
        if not self._store:
            self._start("store", 0)
        self._began = monotonic()
        # one fault after another, while the ranks train
        for fault in faults(self.came.seed, kinds):
            if monotonic() - self._began > 60 * minutes:
                break
            if len(self.came.faults) >= self._episode_ends or not self._members:
                self._begin()
            if self._wait(fault.steps) is not None:
                follow(self._strike(fault))
            self.came.seconds = monotonic() - self._began

    def close(self) -> None:
        for rank in self._all:
            rank.end()
        for host in self._host_processes:
            host.close()

    # Processes

    def _start(self, what: str, host: int, **facts: Any) -> RankProcess:
        # those of before that have ended hold pipes
        for gone in [rank for rank in self._all if rank.ended and rank not in self._members.values()]:
            gone.end()
            self._all.remove(gone)
        name = f"{what} {next(self._numbers)}"
        rank = self._host_processes[host].start(name, self._heard, what=what, address=self._address, **facts)
        self._all.append(rank)
        return rank

    def _begin(self) -> None:
        """Ends all ranks, and has hosts train with the next plan: two of them, then one more, up to all."""
        self._episode += 1
        self._episode_ends = len(self.came.faults) + EPISODE
        # two ranks, then one more in each round of front ends
        self._size = self._ranks = 2 + self._episode // len(FRONT_ENDS) % (self._hosts - 1)
        for host in [*self._members]:
            self._members.pop(host).end()
        self._enter(range(self._size))

    def _enter(self, hosts: Iterable[int]) -> None:
        """Starts a rank on each of these hosts, which joins the job or begins it."""
        job, life = f"episode-{self._episode}", next(self._lives)
        facts = {"job": job, "turn": self._episode, "front_end": self._front_end, "folder": str(self._home / job)}
        for host in hosts:
            self._members[host] = self._start("rank", host, rank=host, ranks=self._ranks, life=life, **facts)

    def _begin_again(self) -> None:
        """Begins again from the checkpoint after all ranks have ended, each with an error."""
        while self._listen():
            pass
        silent = [rank.name for rank in self._members.values() if not rank.error]
        self._laws.broken += [f"{name} ended without an error" for name in silent]
        self._members.clear()
        self._enter(range(self._ranks))

    @property
    def _front_end(self) -> str:
        return FRONT_ENDS[self._episode % len(FRONT_ENDS)]

    @property
    def _in_place(self) -> bool:
        return self._front_end in IN_PLACE

    # Faults

    def _strike(self, fault: Fault) -> Followed:
        # some steps, then the fault
        self._listen_for(fault.delay_s)
        self._reports.clear()
        victim, at_s = [*self._members.values()][fault.victim % len(self._members)], monotonic() - self._began
        ends_job = not self._in_place and (fault.outlasts or fault.kind in ("kill", "resize"))
        self._laws.lost = victim.host if ends_job else None
        # what the fault must lead to is known before it strikes
        STRIKES[fault.kind](self, fault, victim)
        # two replicas have no majority
        may_end = ends_job or (not self._in_place and fault.kind == "corrupt")
        # until all have gone on
        seconds = self._wait(1, SEEN.get(fault.kind, ""), may_end)
        self._laws.lost = None
        what = "; ".join(dict.fromkeys(self._reports)) or "nothing"
        followed = Followed(fault.kind, self._front_end, self._episode, victim.name, at_s, seconds, what)
        self.came.faults.append(followed)
        return followed

    def _kill(self, fault: Fault, victim: RankProcess) -> None:
        del self._members[victim.host]
        victim.signal(signal.SIGKILL)
        if self._in_place:
            self._listen_for(fault.seconds)
            self._enter([victim.host])

    def _stop(self, fault: Fault, victim: RankProcess) -> None:
        if fault.outlasts:
            self._laws.excused.add(victim.name)
        victim.signal(signal.SIGSTOP)
        self._listen_for(fault.seconds)
        victim.signal(signal.SIGCONT)

    def _slow(self, fault: Fault, victim: RankProcess) -> None:
        if self._network is None:
            return victim.send(do="slow", seconds=fault.seconds)
        link = self._network.link
        self._network.set_link(SLOW)
        self._listen_for(fault.seconds)
        self._network.set_link(link)

    def _corrupt(self, fault: Fault, victim: RankProcess) -> None:
        victim.send(do=fault.kind, bit=fault.bit)

    def _resize(self, fault: Fault, victim: RankProcess) -> None:
        missing = set(range(self._size)) - self._members.keys()
        # a gap is filled at once, or by the next life of the job
        if missing and self._in_place:
            return self._enter([min(missing)])
        self._ranks = self._size if missing else max(2, self._size - 1)
        del self._members[victim.host]
        victim.send(do="leave")
        if self._in_place and self._size == 2:  # one alone does not go on
            self._enter([victim.host])

    # Reports of ranks

    def _wait(self, steps: int, seen: str = "", may_end: bool = False) -> float | None:
        """Seconds until all ranks have made so many more steps together and have reported `seen`; None where they do
        not. Where the job `may_end`, it does so on all ranks, and begins again."""
        start, number = monotonic(), len(self.came.faults)
        # steps are counted from here
        for rank in self._members.values():
            rank.made = 0
        while not (self._are_well(steps) and (not seen or any(seen in report for report in self._reports))):
            lost = [rank.name for rank in self._members.values() if rank.ended]
            # the whole job has ended, as it should: begin again
            if may_end and len(lost) == len(self._members):
                self._begin_again()
                may_end = False
            # a rank ended that should not have, or the time is over
            elif (lost and not may_end) or monotonic() - start > PATIENCE_S:
                why = f"{lost[0]} ended by itself" if lost else f"not all went on within {PATIENCE_S:.0f} s"
                self._laws.broken.append(f"fault {number}: {why}")
                for host in [*self._members]:
                    self._members.pop(host).end()
                return None
            self._listen()
        return monotonic() - start

    def _are_well(self, steps: int) -> bool:
        ranks = [*self._members.values()]
        together = len({rank.life for rank in ranks}) == 1 and ranks[0].ranks == len(ranks)
        return together and all(rank.made >= steps and not rank.error for rank in ranks)

    def _listen_for(self, seconds: float) -> None:
        until = monotonic() + seconds
        while monotonic() < until:
            self._listen()

    def _listen(self) -> bool:
        """Handles the next report; returns whether there was one."""
        try:
            rank, facts = self._heard.get(timeout=0.02)
        except Empty:
            return False
        # a report changes the rank's state, and is checked by the laws
        rank.hear(facts)
        if rank in self._members.values():
            self._laws.hear(rank.name, facts)
            self.came.steps += "step" in facts
            self._reports += _in_words(facts)
        return True


STRIKES: dict[str, Callable[[Soak, Fault, RankProcess], None]] = {
    "kill": Soak._kill, "stop": Soak._stop, "slow": Soak._slow, "corrupt": Soak._corrupt, "overflow": Soak._corrupt,
    "resize": Soak._resize,
}  # fmt: skip
SEEN = {"corrupt": "differ", "overflow": "skipped"}
"""Reports of faults that must not pass unnoticed."""


def _in_words(facts: Facts) -> list[str]:
    parts = [f"all resumed, {facts['ranks']} ranks"] if "resumed" in facts else []
    parts += [f"parameters differ: {', '.join(facts['healed'])}"] if facts.get("healed") else []
    parts += ["a step was skipped"] if facts.get("taken") is False else []
    return parts + ([facts["error"]] if "error" in facts else [])


@contextmanager
def soaking(hosts: int, link: Link | None, seed: int, folder: Path) -> Iterator[Soak]:
    """Context of a run, whose processes end with it. Raises NetworkUnavailable where there can be no link."""
    with (
        (folder / "ranks.log").open("wb") as log,
        TemporaryDirectory(prefix="gradwire-soak-") as checkpoints,
        Network(hosts, link) if link else nullcontext() as network,
        closing(Soak(hosts, network, seed, Path(checkpoints), log)) as soak,
    ):
        yield soak
