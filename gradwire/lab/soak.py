"""Long runs under faults: ranks train, faults befall them, and laws are held against all that they say."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import IO, Any

from gradwire.lab.faults import TIMEOUT_S, Fault, faults
from gradwire.lab.launch import free_port
from gradwire.lab.link import Link
from gradwire.lab.network import Network
from gradwire.lab.soak_laws import Laws, Words
from gradwire.lab.soak_processes import Heard, Host, Rank
from gradwire.lab.soak_rank import FRONT_ENDS, QUIET_S

PATIENCE_S = TIMEOUT_S + QUIET_S + 15.0
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


class Soak:
    """A job on `hosts`, and what befalls it."""

    def __init__(self, hosts: int, network: Network | None, seed: int, log: IO[bytes]) -> None:
        self._hosts, self._network = hosts, network
        where = f"hosts, {network.link} links" if network else "ranks over loopback"
        self.came = Soaked(seed, f"2 to {hosts} {where}")
        self._laws = Laws()
        self.came.broken = self._laws.broken
        self._heard: SimpleQueue[Heard] = SimpleQueue()
        self._numbers, self._episode, self._size = count(), -1, 2
        self._address = (network.address(0), 29500) if network else ("127.0.0.1", free_port())
        self._began, self._said = monotonic(), list[str]()
        self._all: list[Rank] = []
        self._members: dict[int, Rank] = {}
        self._places = [Host(host, network, log, "gradwire.lab.soak_rank") for host in range(hosts)]

    def run(self, minutes: float, kinds: list[str], follow: Callable[[Followed], None]) -> None:
        """Faults one after another, until the time is over, which begins when all processes have loaded."""
        for place in self._places:
            place.load()
        self._start("store", 0)
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
        for place in self._places:
            place.close()

    # Processes

    def _start(self, what: str, host: int, **told: Any) -> Rank:
        name = f"{what} {next(self._numbers)}"
        rank = self._places[host].start(name, self._heard, what=what, address=self._address, **told)
        self._all.append(rank)
        return rank

    def _begin(self) -> None:
        """Ends what is there, and has hosts train with the next plan: two of them, then one more, up to all."""
        self._episode += 1
        self._size = 2 + self._episode // len(FRONT_ENDS) % (self._hosts - 1)
        for host in [*self._members]:
            self._members.pop(host).end()
        for host in range(self._size):
            self._enter(host)

    def _enter(self, host: int) -> None:
        """A rank on the host comes to the job, or begins it."""
        told = {"job": f"episode/{self._episode}", "turn": self._episode}
        front_end = FRONT_ENDS[self._episode % len(FRONT_ENDS)]
        self._members[host] = self._start("rank", host, front_end=front_end, **told)

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
        if fault.outlasts:
            self._laws.excused.add(victim.name)
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
        if missing := set(range(self._size)) - self._members.keys():
            return self._enter(min(missing))
        del self._members[victim.host]
        victim.tell(do="leave")
        if self._size == 2:  # one alone does not go on
            self._enter(victim.host)

    # What ranks say

    def _wait(self, steps: int, seen: Callable[[], bool]) -> float | None:
        """Seconds until all have made so many more steps together, and something was `seen`; None where they do not."""
        start, number = monotonic(), len(self.came.faults)
        for rank in self._members.values():
            rank.made = 0
        while not (self._are_well(steps) and seen()):
            lost = [rank.name for rank in self._members.values() if rank.ended]
            if lost or monotonic() - start > PATIENCE_S:
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
