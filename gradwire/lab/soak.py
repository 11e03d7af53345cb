"""Long runs under faults: ranks train, faults befall them, and laws are held against all that they say."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import IO, Any

from gradwire.lab.faults import TIMEOUT_S, Fault, faults
from gradwire.lab.launch import arguments, free_port
from gradwire.lab.link import Link
from gradwire.lab.network import Network
from gradwire.lab.soak_laws import Laws, Words
from gradwire.lab.soak_rank import FRONT_ENDS, QUIET_S

PATIENCE_S = TIMEOUT_S + QUIET_S + 20.0
"""Within this all ranks have gone on: the group's timeout, a meeting, and some steps on a busy machine."""
EPISODE = 25
"""Faults with the same plan."""
SLOW = Link.parse("1mbit")


@dataclass(frozen=True)
class Followed:
    """A fault that befell `victim` after `at_s` seconds; `seconds` after its end all ranks had gone on, None where they
    did not, and `what` was said meanwhile."""

    kind: str
    episode: int
    victim: str
    at_s: float
    seconds: float | None
    what: str


@dataclass
class Soaked:
    """What came of a run so far; `broken` are the laws that were."""

    seed: int
    place: str
    seconds: float = 0.0
    steps: int = 0
    faults: list[Followed] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


class Rank:
    """A process on a host, and where it stands: in which group, of how many, and how many steps it has made there since
    it was last asked."""

    def __init__(
        self, name: str, host: int, command: list[str], interface: str, heard: "SimpleQueue[Heard]", log: IO[bytes]
    ) -> None:
        self.name, self.host = name, host
        self.life, self.ranks, self.made, self.ready = "", 0, 0, False
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=_environment(interface)
        )
        self._reader = Thread(target=self._read, args=(heard,), daemon=True)
        self._reader.start()

    def _read(self, heard: "SimpleQueue[Heard]") -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            heard.put((self, json.loads(line)))
        heard.put((self, {"ended": True}))

    def tell(self, **words: Any) -> None:
        """Gives it a line."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kills it, and hears what it has said until then."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in filter(None, (self.process.stdin, self.process.stdout)):
            with suppress(BrokenPipeError):  # of a line that it did not read
                pipe.close()

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def hear(self, words: Words) -> None:
        """What it said of where it stands."""
        if "resumed" in words:
            self.life, self.ranks, self.made = words["life"], words["ranks"], 0
        self.made += "step" in words
        self.ready |= "ready" in words


Heard = tuple[Rank, Words]


def _environment(interface: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    own = {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {**os.environ, **own}


class Soak:
    """A job on `hosts`, and what befalls it."""

    def __init__(self, hosts: int, network: Network | None, seed: int, log: IO[bytes]) -> None:
        self._hosts, self._network, self._log = hosts, network, log
        self.came = Soaked(seed, f"{hosts} hosts, {network.link} links" if network else f"{hosts} ranks over loopback")
        self._laws = Laws()
        self.came.broken = self._laws.broken
        self._heard: SimpleQueue[Heard] = SimpleQueue()
        self._numbers, self._episode = count(), -1
        self._interface = network.interface if network else "lo"
        self._address = (network.address(0), "29500") if network else ("127.0.0.1", str(free_port()))
        self._began, self._said = monotonic(), list[str]()
        self._all: list[Rank] = []
        self._start("store", 0)
        self._members: dict[int, Rank] = {}
        self._spares = {host: self._start("rank", host) for host in range(hosts)}

    def run(self, minutes: float, kinds: list[str], follow: Callable[[Followed], None]) -> None:
        """Faults one after another, until the time is over, which begins when all processes have loaded."""
        for host in range(self._hosts):
            self._load(host)
        self._began = monotonic()
        for fault in faults(self.came.seed, kinds):
            if monotonic() - self._began > 60 * minutes:
                break
            if len(self.came.faults) >= (self._episode + 1) * EPISODE or not self._members:
                self._begin()
            if self._wait(fault.steps, lambda: True) is not None:
                follow(self._befall(fault))
            self.came.seconds = monotonic() - self._began

    def close(self) -> None:
        """Ends all processes."""
        for rank in self._all:
            rank.end()

    # Processes

    def _start(self, what: str, host: int) -> Rank:
        argv = ["-m", "gradwire.lab.soak_rank", what, *self._address]
        command = [sys.executable, *arguments(argv, self._network, host)]
        rank = Rank(f"{what} {next(self._numbers)}", host, command, self._interface, self._heard, self._log)
        self._all.append(rank)
        return rank

    def _begin(self) -> None:
        """Ends what is there, and has all hosts train with the next plan."""
        self._episode += 1
        for host in [*self._members]:
            self._members.pop(host).process.kill()
        for host in [*self._spares]:
            self._load(host)
        for host in [*self._spares]:
            self._enter(host)

    def _enter(self, host: int) -> None:
        """The host's spare process comes to the job, or begins it."""
        rank = self._members[host] = self._load(host)
        front_end = FRONT_ENDS[self._episode % len(FRONT_ENDS)]
        rank.tell(name=f"episode/{self._episode}", front_end=front_end, turn=self._episode)
        self._spares[host] = self._start("rank", host)

    def _load(self, host: int) -> Rank:
        """The host's spare process, once it has loaded torch."""
        rank = self._spares[host]
        while not rank.ready:
            if rank.process.poll() is not None:
                raise RuntimeError(f"{rank.name} ended before it began; ranks.log says why")
            self._listen()
        return rank

    # Faults

    def _befall(self, fault: Fault) -> Followed:
        self._listen_for(fault.delay_s)
        self._said.clear()
        victim, at_s = [*self._members.values()][fault.victim % len(self._members)], monotonic() - self._began
        STRIKES[fault.kind](self, fault, victim)
        seen = SEEN.get(fault.kind, "")
        seconds = self._wait(1, lambda: any(seen in said for said in self._said) if seen else True)
        what = "; ".join(dict.fromkeys(self._said)) or "nothing"
        followed = Followed(fault.kind, self._episode, victim.name, at_s, seconds, what)
        self.came.faults.append(followed)
        return followed

    def _kill(self, fault: Fault, victim: Rank) -> None:
        del self._members[victim.host]
        victim.signal(signal.SIGKILL)
        self._listen_for(fault.seconds)
        self._enter(victim.host)

    def _stop(self, fault: Fault, victim: Rank) -> None:
        victim.signal(signal.SIGSTOP)
        self._listen_for(fault.seconds)
        victim.signal(signal.SIGCONT)

    def _slow(self, fault: Fault, victim: Rank) -> None:
        if self._network is None:
            return victim.tell(do="slow", seconds=fault.seconds)
        link = self._network.link
        self._network.set_link(SLOW)
        self._listen_for(fault.seconds)
        self._network.set_link(link)

    def _spoil(self, fault: Fault, victim: Rank) -> None:
        victim.tell(do=fault.kind, word=fault.word)

    def _resize(self, fault: Fault, victim: Rank) -> None:
        if missing := set(range(self._hosts)) - self._members.keys():
            return self._enter(min(missing))
        del self._members[victim.host]
        victim.tell(do="leave")

    # What ranks say

    def _wait(self, steps: int, seen: Callable[[], bool]) -> float | None:
        """Seconds until all have made so many more steps together, and something was `seen`; None where they do not."""
        start, number = monotonic(), len(self.came.faults)
        for rank in self._members.values():
            rank.made = 0
        while not (self._are_well(steps) and seen()):
            lost = [rank.name for rank in self._members.values() if rank.process.poll() is not None]
            if lost or monotonic() - start > PATIENCE_S:
                why = f"{lost[0]} ended by itself" if lost else f"not all went on within {PATIENCE_S:.0f} s"
                self._laws.broken.append(f"fault {number}: {why}")
                for host in [*self._members]:
                    self._members.pop(host).process.kill()
                return None
            self._listen()
        return monotonic() - start

    def _are_well(self, steps: int) -> bool:
        ranks = [*self._members.values()]
        together = len({rank.life for rank in ranks}) == 1 and ranks[0].ranks == len(ranks)
        return together and all(rank.made >= steps for rank in ranks)

    def _listen_for(self, seconds: float) -> None:
        until = monotonic() + seconds
        while monotonic() < until:
            self._listen()

    def _listen(self) -> None:
        try:
            rank, words = self._heard.get(timeout=0.02)
        except Empty:
            return
        rank.hear(words)
        if rank not in self._members.values():
            return
        self._laws.hear(rank.name, words)
        self.came.steps += "step" in words
        self._said += _in_words(words)


STRIKES: dict[str, Callable[[Soak, Fault, Rank], None]] = {
    "kill": Soak._kill, "stop": Soak._stop, "slow": Soak._slow, "corrupt": Soak._spoil, "overflow": Soak._spoil,
    "resize": Soak._resize,
}  # fmt: skip
SEEN = {"corrupt": "differ", "overflow": "skipped"}
"""What is said of faults that must not pass unseen."""


def _in_words(words: Words) -> list[str]:
    said = [f"all resumed, {words['ranks']} ranks"] if "resumed" in words else []
    said += [f"parameters differ: {', '.join(words['healed'])}"] if words.get("healed") else []
    said += ["a step was skipped"] if words.get("taken") is False else []
    return said + ([words["error"]] if "error" in words else [])


@contextmanager
def soaking(hosts: int, link: Link | None, seed: int, folder: Path) -> Iterator[Soak]:
    """A job that is ended afterwards, whatever happens. Raises NetworkUnavailable where there can be no link."""
    with (folder / "ranks.log").open("wb") as log:
        if link is None:
            yield from _closed(Soak(hosts, None, seed, log))
        else:
            with Network(hosts, link) as network:
                yield from _closed(Soak(hosts, network, seed, log))


def _closed(soak: Soak) -> Iterator[Soak]:
    try:
        yield soak
    finally:
        soak.close()
