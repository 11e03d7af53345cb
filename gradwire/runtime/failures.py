"""How a job ends. Each rank that ends leaves a mark in the store, so those that leave none are known to be lost."""

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple

from gradwire.transports import Mesh


def ranks_named(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    names = ", ".join(map(str, ranks[:5])) + (", ..." if len(ranks) > 5 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def rank_at(rank: int, host: str) -> str:
    """A rank in words, with its host where that is known."""
    return f"rank {rank} (host {host})" if host else f"rank {rank}"


def forget_frames(error: BaseException | None) -> None:
    """Gives up the local variables of all calls that an error, and what caused it, came through."""
    while error:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


BETWEEN = "between steps"


class RankStatus(NamedTuple):
    """A rank's `step`, counted from 0: the one that it is in, or that it would begin next; what it is `doing`, in
    words; and for how long it has exchanged gradients of that step, 0 where none of it has begun."""

    step: int = 0
    doing: str = BETWEEN
    exchanged_s: float = 0.0


NEARLY = 0.9
"""Of the timeout: who has waited for so much of it has waited for all of it, on any clock."""
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
    """A rank's report of its end: its own fault, if there was one; whether it has left for another group; for how long
    it did not run, lately; whether it has detached, or its process ended; and its `RankStatus`."""

    fault: str | None
    left: bool
    paused_s: float
    detached: bool = False
    step: int = 0
    doing: str = ""
    exchanged_s: float = 0.0


class Ending:
    """The end of one rank's job.

    1. A rank that fails closes its connections, which ends the collectives of all others, and leaves its mark.
    2. Each of them does the same. So all who are left have a mark after the time of a step, for who computes meanwhile
       hears of it at the step's end. `step_s` is how long one takes, `hosts` names every rank's.
    3. Who was interrupted waits for the marks until then. A rank that has a fault of its own says so in its mark, and
       is blamed at once; else those without a mark are lost. Where the store is gone, it went with rank 0, or with its
       own host. Where all have one, it was a rank that has detached; or that did not run for the longest: stopped, it
       comes back to a job that has ended, for the others went on without it; or that was late: the others have waited
       for it in the exchange of a step as long as they do.
    4. The store may be in rank 0's process, which therefore goes on when the others have heard.
    """

    def __init__(
        self, mesh: Mesh, hosts: Callable[[], Sequence[str]], step_s: Callable[[], float],
        paused_s: Callable[[], float], place: Callable[[], RankStatus] = RankStatus,
    ) -> None:  # fmt: skip
        self._mesh, self._hosts, self._step_s, self._paused_s = mesh, hosts, step_s, paused_s
        self._place, self._ended = place, False

    def end(self, error: BaseException) -> None:
        """This rank ends with an error, which is told who is to blame."""
        self._ended = True
        fault = str(error) or type(error).__name__ if isinstance(error, Exception) else self._exit(error)
        with suppress(Exception):  # whoever waits is told, whatever else is broken
            self._mesh.abort(fault)
        match error:
            case Interrupted():
                self._say("ended", self._mark())
                self._part(self._others - self._blame(error))
            case Left():
                self._say("ended", self._mark()._replace(left=True))
                self._part(set())
            case _:
                self._say("ended", self._mark()._replace(fault=fault))
                self._part(self._others)

    def detach(self) -> None:
        """This rank takes no part any more, as its user or the end of its process wants it."""
        if not self._ended and self._mesh.ranks > 1:
            self._ended = True
            self._say("ended", self._mark()._replace(detached=True))

    def _exit(self, error: BaseException) -> str:
        return f"{self._named([self._mesh.rank])} ended with {type(error).__name__}: {error}"

    def _part(self, left: set[int]) -> None:
        """This rank goes on; rank 0 when those that are left have heard."""
        if self._mesh.rank:
            self._say("heard", self._mark())
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
            marks[self._mesh.rank] = self._mark()
            if why := self._detached(marks) or self._paused(marks) or self._late(marks):
                error.blame(why)
        return lost

    def _detached(self, marks: Mapping[int, Mark]) -> str | None:
        gone = [rank for rank, mark in marks.items() if mark.detached]
        if not gone:
            return None
        return f"{self._named(gone)} has detached, or its process has ended, after {marks[gone[0]].step} steps"

    def _paused(self, marks: Mapping[int, Mark]) -> str | None:
        rank = max(marks, key=lambda rank: marks[rank].paused_s)
        seconds = marks[rank].paused_s
        return f"{self._named([rank])} did not run for {seconds:.0f} s" if seconds else None

    def _late(self, marks: Mapping[int, Mark]) -> str | None:
        """Who others have waited for in the exchange of a step until their time was over."""
        timeout_s, step = self._mesh.timeout_s, max(mark.step for mark in marks.values())
        if max(mark.exchanged_s for mark in marks.values()) < timeout_s * NEARLY:
            return None
        late = [rank for rank, mark in marks.items() if mark.step < step or mark.exchanged_s < timeout_s / 2]
        if not late:
            return f"in step {step} each rank waits for another message; make the same calls in the same order on all"
        doing = ", ".join(dict.fromkeys(marks[rank].doing for rank in late))
        them = "it is" if len(late) == 1 else "they are"
        return f"{self._named(late)} did not reach the exchange of step {step} within {timeout_s:.0f} s; {them} {doing}"

    def _mark(self) -> Mark:
        step, doing, exchanged_s = self._place()
        return Mark(None, False, self._paused_s(), False, step, doing, exchanged_s)

    def _say(self, word: str, mark: Mark) -> None:
        with suppress(RuntimeError):  # the store is gone
            self._mesh.store.set(f"{word}/{self._mesh.rank}", json.dumps(mark))

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
