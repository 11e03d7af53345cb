"""How a job ends. Each rank that ends leaves a mark in the store, so those that leave none are known to be lost."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple

from gradwire.runtime.naming import rank_at
from gradwire.transports import Mesh

OTHERS_S, POLL_S = 2.0, 0.05
"""How long the others' marks are waited for, beside a step; and how often they are looked for meanwhile."""


class ReductionError(RuntimeError):
    """A group could not be reduced; the message names the group and the rank at fault."""


class Interrupted(ReductionError):
    """Something ended through no fault of this rank; why, is known once all others that are left have ended too."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self._what = what

    def blame(self, why: str) -> None:
        """It is known now."""
        self.args = (f"{self._what}: {why}",)


class Left(RuntimeError):
    """This rank goes, as it was told to."""


class Mark(NamedTuple):
    """What a rank says of its end: its own fault, if there was one; whether it has left; and for how long it did not
    run, lately."""

    fault: str | None
    left: bool
    paused_s: float


class Ending:
    """The end of one rank's job.

    1. A rank that fails closes its connections, which ends the collectives of all others, and leaves its mark.
    2. Each of them does the same. So all who are left have a mark after the time of a step, for who computes meanwhile
       hears of it at the step's end. `step_s` is how long one takes, `hosts` names every rank's.
    3. Who was interrupted waits for the marks until then. A rank that has a fault of its own says so in its mark, and
       is blamed at once; else those without a mark are lost. Where the store is gone, it went with rank 0, or with its
       own host. Where nobody is lost and nobody has left, it was who did not run for the longest: stopped, it comes
       back to a job that has ended, for the others went on without it.
    4. The store may be in rank 0's process, which therefore goes on when the others have heard.
    """

    def __init__(
        self, mesh: Mesh, hosts: Callable[[], Sequence[str]], step_s: Callable[[], float],
        paused_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self._mesh, self._hosts, self._step_s, self._paused_s = mesh, hosts, step_s, paused_s

    def end(self, error: BaseException) -> None:
        """This rank ends with an error, which is told who is to blame."""
        with suppress(Exception):  # whoever waits is told, whatever else is broken
            self._mesh.abort(str(error))
        match error:
            case Interrupted():
                self._say("ended", None)
                self._part(self._others - self._blame(error))
            case Left():
                self._say("ended", None, left=True)
                self._part(set())
            case _:
                self._say("ended", str(error))
                self._part(self._others)

    def _part(self, left: set[int]) -> None:
        """This rank goes on; rank 0 when those that are left have heard."""
        if self._mesh.rank:
            self._say("heard", None)
        else:
            self._said("heard", left)

    @property
    def _others(self) -> set[int]:
        return set(range(self._mesh.ranks)) - {self._mesh.rank}

    def _blame(self, error: Interrupted) -> set[int]:
        """Tells the error what the others' marks say; the ranks that are lost."""
        marks, store_is_there = self._said("ended", self._others)
        if fault := next((mark.fault for mark in marks.values() if mark.fault), None):
            error.blame(fault)
            return set()
        lost = self._others - marks.keys()
        if 0 in lost and not store_is_there:
            error.blame(f"{self._named([0])}, or the store's host, was lost")
        elif lost:
            error.blame(f"{self._named(sorted(lost))} {'was' if len(lost) == 1 else 'were'} lost")
        elif not any(mark.left for mark in marks.values()):
            pauses = {rank: mark.paused_s for rank, mark in marks.items()} | {self._mesh.rank: self._paused_s()}
            rank = max(pauses, key=pauses.__getitem__)
            if pauses[rank]:
                error.blame(f"{self._named([rank])} did not run for {pauses[rank]:.0f} s")
        return lost

    def _say(self, word: str, fault: str | None, left: bool = False) -> None:
        with suppress(RuntimeError):  # the store is gone
            self._mesh.store.set(f"{word}/{self._mesh.rank}", json.dumps(Mark(fault, left, self._paused_s())))

    def _said(self, word: str, ranks: set[int]) -> tuple[dict[int, Mark], bool]:
        """The marks, by rank, of those who have said a word: all of them, or until time is over or one has a fault.
        And whether the store is still there."""
        marks: dict[int, Mark] = {}
        until = monotonic() + min(self._mesh.timeout_s, OTHERS_S + self._step_s())
        try:
            while ranks - marks.keys() and not any(mark.fault for mark in marks.values()) and monotonic() < until:
                for rank in ranks - marks.keys():
                    if (said := self._mesh.store.get(f"{word}/{rank}", 0)) is not None:
                        marks[rank] = Mark(*json.loads(said))
                sleep(POLL_S)
        except RuntimeError:
            return marks, False
        return marks, True

    def _named(self, ranks: Sequence[int]) -> str:
        hosts = self._hosts()
        return ", ".join(rank_at(rank, hosts[rank] if hosts else "") for rank in ranks)
