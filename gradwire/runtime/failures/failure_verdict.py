"""The end of a job. Each rank that ends leaves a mark in the store, so a rank that leaves none is known to be lost."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple

from gradwire.runtime.failures.job_errors import ELSEWHERE, AbsentRanks, PeerFailed, RankLeft, RankStatus, rank_at
from gradwire.runtime.steps.rank_progress import RankProgress
from gradwire.transports import Mesh
from gradwire.transports.gathering import PATIENCE_S

NEARLY = 0.9
"""The part of the timeout after which a rank counts as having waited for all of it: clocks differ."""

OTHERS_S, POLL_S = 2.0, 0.05
"""How long to wait for the others' marks, beyond a step's time; and how often to look for them."""


class ExitReport(NamedTuple):
    """A rank's mark in the store: its report of its own end, with its `RankStatus`."""

    fault: str | None
    """The rank's own error, if it had one."""
    left: bool
    """It has left for another group."""
    paused_s: float
    """How long its process did not run, until a moment before."""
    detached: bool = False
    """It has detached, or its process has ended."""
    step: int = 0
    doing: str = ""
    exchanged_s: float = 0.0
    absent: Sequence[int] = ()
    """The ranks for which it waited in vain in a meeting."""


class Verdict(NamedTuple):
    """The reason for a job's end, on which the remaining ranks agree."""

    why: str | None
    """The reason; None where each keeps its own."""
    lost: Sequence[int] = ()
    """The ranks without a mark."""


class FailureVerdict:
    """The end of one rank's job.

    1. A rank that fails leaves its mark, then closes its connections, which ends the collectives of all others.
    2. Each of them does the same. A rank that computes meanwhile notices at the step's end: when no mark has come for
       the time of a step, all ranks that are left have one.
    3. The first rank that was interrupted is the judge. It waits for the marks of all ranks but those that its monitor
       has found silent, and leaves a verdict. The others wait for the verdict alone, so each asks the store a few
       times, however many ranks there are. If it does not come, the first to have waited in vain becomes the judge.
    4. A rank with an error of its own has left that as the verdict. Else the judge blames the first of these that there
       are: ranks without a mark, which are lost, found by bisection; a rank that has detached; the rank that was paused
       for the longest time, if the others have given it up; the ranks for which others waited in a step's exchange
       until the timeout. If the store is gone, a rank names rank 0, or the store's host, and itself where it was
       paused.
    5. The store may be in rank 0's process, which therefore ends last, when the others have heard the verdict.
    """

    def __init__(
        self, mesh: Mesh, hosts: Callable[[], Sequence[str]], paused_s: Callable[[float], float],
        progress: Callable[[], RankProgress | None],
    ) -> None:  # fmt: skip
        self._mesh = mesh
        self._hosts = hosts
        self._paused_s = paused_s
        self._progress = progress
        self._ended = False
        self._marks = 0
        self._round = 0

    def end(self, error: BaseException) -> None:
        """Ends this rank's part with an error, which gets its reason."""
        detached, self._ended = self._ended, True
        reason = str(error) or type(error).__name__
        if not isinstance(error, Exception):
            reason = f"{self._named([self._mesh.rank])} ended with {type(error).__name__}: {error}"
        # where no thread watches, a rank that computes leaves no mark: one that did not come is not known to be lost
        watched = not isinstance(error, AbsentRanks) or self._mesh.needs_polling
        mark = self._mark()
        match error:
            case PeerFailed() if detached:
                # the others know that this rank has gone: only end what it still waits for
                self._abort(reason)
            case PeerFailed() if watched:
                # another rank is the cause: leave a mark, then find out which, and let rank 0 hear that it may go
                mark = mark._replace(absent=error.ranks)
                self._end_all(mark, reason)
                self._leave_store(self._mesh.ranks - 1 - self._blame(error, mark))
            case RankLeft():
                # the user of this rank has ended its part
                self._end_all(mark._replace(left=True), reason)
                self._leave_store(0)
            case _:
                # this rank is the cause: its fault is the verdict at once
                self._end_all(mark._replace(fault=reason), reason)
                self._leave_store(self._mesh.ranks - 1)

    def _end_all(self, mark: ExitReport, reason: str) -> None:
        """Leaves this rank's mark, before anything that may take long, then ends all ranks' collectives."""
        # the mark first: once connections are closed, the others look for it
        with suppress(RuntimeError):  # the store is gone
            self._leave_mark(mark)
            if mark.fault:
                self._mesh.store.set("verdict", json.dumps(Verdict(mark.fault)))
        # then all collectives under way end, here and on the other ranks
        self._abort(reason)

    def _abort(self, reason: str) -> None:
        with suppress(Exception):  # whatever else is broken
            self._mesh.abort(reason)

    def detach(self) -> None:
        """Ends this rank's part without an error, where its user detaches or its process ends."""
        if not self._ended and self._mesh.ranks > 1:
            self._ended = True
            with suppress(RuntimeError):  # the store is gone
                self._leave_mark(self._mark()._replace(detached=True))

    def _leave_mark(self, mark: ExitReport) -> None:
        self._mesh.store.set(f"ended/{self._mesh.rank}", json.dumps(mark))
        self._marks = self._mesh.store.add("ended", 1)

    def _leave_store(self, others: int) -> None:
        """Returns on rank 0 when so many others have heard the verdict, on any other rank at once."""
        with suppress(RuntimeError):  # the store is gone
            # the store may be in rank 0's process: it goes last
            if self._mesh.rank:
                self._mesh.store.add("heard", 1)
            else:
                self._wait(lambda: self._mesh.store.add("heard", 0), others)

    def _wait(self, count: Callable[[], int], wanted: int) -> None:
        """Returns when a count is what is wanted, or has not grown for the time of a step."""
        seen, until = -1, 0.0
        while (now := count()) < wanted and (now > seen or monotonic() < until):
            if now > seen:
                seen, until = now, monotonic() + self._patience_s
            sleep(POLL_S)

    @property
    def _patience_s(self) -> float:
        progress = self._progress()
        return min(self._mesh.timeout_s, OTHERS_S + (progress.step_s() if progress else 0.0))

    def _blame(self, error: PeerFailed, mark: ExitReport) -> int:
        """Gives the error the reason on which all agree; returns how many ranks are lost."""
        rank = self._mesh.rank
        try:
            # one rank judges; the others wait for its verdict, and where it does not come, the first of them judges
            while not (verdict := self._judge() if self._first() else self._judged()):
                self._round += 1
        except RuntimeError:
            gone = f"{f'{self._named([0])}, or ' if rank else ''}the store's host,"
            # where this rank was stopped, the others may have given it up and ended
            paused = self._paused({rank: mark}, min(self._mesh.gives_up_s, PATIENCE_S) / 2)
            verdict = Verdict(f"{paused}, and {gone} is gone" if paused else f"{gone} was lost")
        # the others ended the job before this rank left its mark
        if rank in verdict.lost:
            verdict = Verdict(self._paused({rank: mark}) or verdict.why, verdict.lost)
        if verdict.why:
            error.blame(verdict.why)
        return len(verdict.lost)

    def _first(self) -> bool:
        """Whether this rank is to judge: the first one that was interrupted, then the first that waited in vain."""
        return self._mesh.store.add(f"judge/{self._round}", 1) == 1

    def _judged(self) -> Verdict | None:
        """Another rank's verdict; None where no mark comes any more and it is not there: that rank was lost, too."""
        while not (verdict := self._heard(2 * self._patience_s)):
            before, self._marks = self._marks, self._mesh.store.add("ended", 0)
            if self._marks == before:
                return None
        return verdict

    def _heard(self, patience_s: float = 0.0) -> Verdict | None:
        """The verdict, once it is there; None where it is not in time."""
        text = self._mesh.store.get("verdict", patience_s)
        return Verdict(*json.loads(text)) if text else None

    def _judge(self) -> Verdict:
        """Looks at the marks once all are there, or time is over, and leaves the verdict."""
        # wait until every rank but the silent ones has left a mark, or none has for the time of a step
        store, ranks = self._mesh.store, self._mesh.ranks
        self._wait(self._known, ranks)
        # another rank judged, or a rank has a fault
        if verdict := self._heard():
            return verdict
        # a rank without a mark is lost; only where there is none, it matters what the marks say
        if lost := self._unmarked(range(ranks)):
            why = f"{self._named(lost)} {'was' if len(lost) == 1 else 'were'} lost"
        else:
            why = self._reason([ExitReport(*json.loads(store.get(f"ended/{rank}", 0) or "")) for rank in range(ranks)])
        # the verdict, for the ranks that wait for it
        store.set("verdict", json.dumps(verdict := Verdict(why, lost)))
        return verdict

    def _known(self) -> int:
        """How many ranks have left a mark, or are silent; all where there is a verdict."""
        if self._heard():
            return self._mesh.ranks
        # the count first: a silent rank whose mark comes in between is not counted twice
        marks = self._mesh.store.add("ended", 0)
        return marks + sum(len(self._unmarked([rank])) for rank in self._mesh.silent)

    def _unmarked(self, ranks: Sequence[int]) -> list[int]:
        """The ranks without a mark. The store is asked once for all; where one lacks it, once for each half, and so
        on."""
        if not ranks or self._mesh.store.check([f"ended/{rank}" for rank in ranks]):
            return []
        half = len(ranks) // 2
        return [*self._unmarked(ranks[:half]), *self._unmarked(ranks[half:])] if half else list(ranks)

    def _reason(self, marks: Sequence[ExitReport]) -> str | None:
        """The reason, from the marks of all ranks; None where a rank has left, as its user asked."""
        if any(mark.left for mark in marks):
            return None
        by_rank, timeout_s = dict(enumerate(marks)), self._mesh.gives_up_s
        # of ranks that did not come, which each error names: what has kept them, if that is known
        if absent := {rank for mark in marks for rank in mark.absent}:
            by_rank, timeout_s = {rank: by_rank[rank] for rank in absent}, min(timeout_s, PATIENCE_S)
            return self._detached(by_rank) or self._paused(by_rank, timeout_s / 2)
        return self._detached(by_rank) or self._paused(by_rank, timeout_s / 2) or self._late(by_rank)

    def _detached(self, marks: Mapping[int, ExitReport]) -> str | None:
        gone = [rank for rank, mark in marks.items() if mark.detached and mark.doing != ELSEWHERE]
        if not gone:
            return None
        after = f", after {steps} steps" if (steps := marks[gone[0]].step) else ""
        return f"{self._named(gone)} has detached, or its process has ended{after}"

    def _paused(self, marks: Mapping[int, ExitReport], at_least_s: float = 0.0) -> str | None:
        """Blames the rank that was paused for the longest time, if for more than `at_least_s`."""
        rank = max(marks, key=lambda rank: marks[rank].paused_s)
        seconds = marks[rank].paused_s
        return f"{self._named([rank])} did not run for {seconds:.0f} s" if seconds > at_least_s else None

    def _late(self, marks: Mapping[int, ExitReport]) -> str | None:
        """Blames the ranks for which others have waited in the exchange of a step until their time was over."""
        timeout_s, step = self._mesh.timeout_s, max(mark.step for mark in marks.values())
        # no rank has waited for as long as the timeout, so that is not the reason
        if max(mark.exchanged_s for mark in marks.values()) < timeout_s * NEARLY:
            return None
        late = sorted(rank for rank, mark in marks.items() if mark.step < step or mark.exchanged_s < timeout_s / 2)
        if not late:
            return f"in step {step} each rank waits for another message; make the same calls in the same order on all"
        doing = ", ".join(dict.fromkeys(marks[rank].doing for rank in late))
        them = "it is" if len(late) == 1 else "they are"
        return f"{self._named(late)} did not reach the exchange of step {step} within {timeout_s:.0f} s; {them} {doing}"

    def _mark(self) -> ExitReport:
        progress = self._progress()
        step, doing, exchanged_s = progress.status() if progress else RankStatus()
        return ExitReport(None, False, self._paused_s(self._patience_s), False, step, doing, exchanged_s)

    def _named(self, ranks: Sequence[int]) -> str:
        hosts = self._hosts()
        return ", ".join(rank_at(rank, hosts[rank] if hosts else "") for rank in ranks)
