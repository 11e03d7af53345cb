"""Who is blamed for the end of a job, by what the ranks' marks say; and what endings and meetings ask of the store."""

import json
import pickle
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from socket import gethostname
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any
from weakref import WeakMethod

import pytest

from gradwire.lab.launch.rank_failed import RankFailed
from gradwire.runtime.failures import failure_verdict
from gradwire.runtime.failures.failure_verdict import ExitReport, FailureVerdict, Verdict
from gradwire.runtime.failures.first_error import FirstError
from gradwire.runtime.failures.job_errors import ELSEWHERE, WAITING, AbsentRanks, PeerFailed, RankLeft, RankStatus
from gradwire.runtime.meeting import Disagreement, Meeting
from gradwire.transports import gathering
from gradwire.transports.threads import _Store
from tests.support.harness import raising, together

WELL = ExitReport(None, False, 0.0)
HOSTS = ["a", "b", "c"]


class Store(_Store):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Counter[str]()

    def set(self, key: str, value: str) -> None:
        self.asked["set"] += 1
        super().set(key, value)

    def get(self, key: str, timeout_s: float) -> str | None:
        self.asked["get"] += 1
        return super().get(key, timeout_s)

    def add(self, key: str, number: int) -> int:
        self.asked["add" if number else "look"] += 1
        return super().add(key, number)

    def check(self, keys: Sequence[str]) -> bool:
        self.asked["check"] += 1
        return super().check(keys)

    def delete(self, key: str) -> None:
        self.asked["delete"] += 1
        super().delete(key)


def ending_of(
    rank: int, store: Store, paused_s: float = 0.0, ranks: int = 3, abort: Any = None, silent: Collection[int] = (),
    timeout_s: float = 1.0, step_s: float | None = None,
) -> FailureVerdict:  # fmt: skip
    mesh: Any = SimpleNamespace(
        rank=rank, ranks=ranks, store=store, timeout_s=timeout_s, gives_up_s=timeout_s, needs_polling=True,
        abort=abort or (lambda reason: None), silent=silent,
    )  # fmt: skip
    progress: Any = SimpleNamespace(step_s=lambda: step_s, status=RankStatus) if step_s else None
    return FailureVerdict(mesh, lambda: HOSTS if ranks == 3 else [], lambda within_s: paused_s, lambda: progress)


def meeting_of(rank: int, store: Store, ranks: int) -> Meeting:
    mesh: Any = SimpleNamespace(rank=rank, ranks=ranks, store=store, timeout_s=60.0, failure=lambda: None)
    return Meeting(mesh)


def marked(store: Store, ranks: Collection[int]) -> None:
    """Leaves marks of ranks that were interrupted."""
    for rank in ranks:
        ending_of(rank, store)._leave_mark(WELL)


def blamed(
    marks: dict[int, ExitReport], paused_s: float, monkeypatch: pytest.MonkeyPatch, error: PeerFailed | None = None
) -> str:
    """By rank 0 of three, whose wait ended for a reason that names no rank, or by this error."""
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 0.1)
    store = Store()
    for rank, mark in marks.items():
        store.set(f"ended/{rank}", json.dumps(mark))
        store.add("ended", 1)
        if mark.fault:
            store.set("verdict", json.dumps(Verdict(mark.fault)))
    store.add("heard", len(marks))
    error = error or PeerFailed("reducing ended", "timed out")
    ending_of(0, store, paused_s).end(error)
    return str(error).removeprefix("reducing ended: ")


@pytest.mark.parametrize(
    ("marks", "paused_s", "why"),
    [
        ({1: WELL, 2: WELL}, 0.0, "timed out"),
        ({1: ExitReport("out of memory", False, 0.0), 2: WELL}, 18.0, "out of memory"),
        ({1: WELL}, 18.0, "rank 2 (host c) was lost"),
        ({1: WELL, 2: WELL}, 18.0, "rank 0 (host a) did not run for 18 s"),
        ({1: WELL, 2: ExitReport(None, False, 9.0)}, 7.0, "rank 2 (host c) did not run for 9 s"),
        ({1: WELL, 2: ExitReport(None, False, 0.4)}, 0.0, "timed out"),  # less than half of the others' time limit
        (
            {1: ExitReport(None, False, 0.0, detached=True, step=7), 2: WELL},
            0.0,
            "rank 1 (host b) has detached, or its process has ended, after 7 steps",
        ),
        (
            {1: ExitReport(None, True, 0.0), 2: ExitReport(None, False, 9.0)},
            0.0,
            "timed out",
        ),  # what ended it was a rank that left
        (
            {
                1: ExitReport(None, False, 0.0, True, 3, ELSEWHERE),  # it has detached when it had waited there
                2: ExitReport(None, False, 0.0, False, 3, WAITING, 1.0),
            },
            0.0,
            "rank 0 (host a), rank 1 (host b) did not reach the exchange of step 3 within 1 s; "
            f"they are between steps, {ELSEWHERE}",
        ),
        (
            {
                1: ExitReport(None, False, 0.0, False, 2, "in backward", 0.8),  # one step behind
                2: ExitReport(None, False, 0.0, False, 3, WAITING, 1.0),
            },
            0.0,
            "rank 0 (host a), rank 1 (host b) did not reach the exchange of step 3 within 1 s; "
            "they are between steps, in backward",
        ),
    ],
)
def test_who_is_blamed(marks: dict[int, ExitReport], paused_s: float, why: str, monkeypatch: pytest.MonkeyPatch):
    assert blamed(marks, paused_s, monkeypatch) == why


def test_ranks_that_all_wait_for_each_other_are_told_so():
    marks = dict.fromkeys(range(3), ExitReport(None, False, 0.0, False, 3, WAITING, 1.0))
    assert str(ending_of(0, Store())._late(marks)).startswith("in step 3 each rank waits for another message; make the")


@pytest.mark.parametrize(
    ("marks", "paused_s", "why"),
    [
        ({1: WELL, 2: WELL}, 18.0, "rank 1 did not come to verify() within 60 s"),
        ({1: WELL, 2: ExitReport(None, False, 18.0)}, 0.0, "rank 1 did not come to verify() within 60 s"),
        ({1: ExitReport(None, False, 18.0), 2: WELL}, 20.0, "verify() ended: rank 1 (host b) did not run for 18 s"),
        ({1: ExitReport(None, False, 0.4), 2: WELL}, 0.0, "rank 1 did not come to verify() within 60 s"),
    ],
)
def test_a_rank_that_did_not_come_is_named_whoever_was_paused(
    marks: dict[int, ExitReport], paused_s: float, why: str, monkeypatch: pytest.MonkeyPatch
):
    error = AbsentRanks("verify()", "rank 1 did not come to verify() within 60 s", [1])
    assert blamed(marks, paused_s, monkeypatch, error) == why


def test_errors_go_to_other_processes():
    """A pool of processes waits for ever for an error that it cannot read."""
    blamed = PeerFailed("reducing ended", "timed out")
    blamed.blame("rank 1 was lost")
    absent = AbsentRanks("verify()", "rank 1 did not come to verify() within 60 s", [1])
    for error in (blamed, absent, Disagreement("ranks differ in seed", "seed"), RankFailed(1, 3, "it was shot")):
        read = pickle.loads(pickle.dumps(error))
        assert (type(read), str(read), vars(read)) == (type(error), str(error), vars(error))


def test_a_refusal_raises_the_error_that_came_before():
    class Job:
        def end(self, error: BaseException) -> None: ...

    first = FirstError(WeakMethod((job := Job()).end))
    first.fail(PeerFailed("reducing ended", "rank 1 was lost"))
    with pytest.raises(PeerFailed, match="rank 1 was lost"):
        first.refuse("a backward pass has failed")
    with pytest.raises(RuntimeError, match="a backward pass has failed"):
        FirstError(WeakMethod(job.end)).refuse("a backward pass has failed")


def test_a_rank_that_leaves_says_so_and_its_end_by_an_error_is_the_only_one():
    """A second mark, as its process ends, would stand for a rank that has left none."""
    store = Store()
    leaves, fails = (ending_of(rank, store) for rank in (1, 2))
    leaves.end(RankLeft("rank 1 has left the job"))
    fails.end(RuntimeError("no memory"))
    for ending in leaves, fails:
        ending.detach()
    assert json.loads(store.get("ended/1", 0))[:4] == [None, True, 0.0, False]
    assert json.loads(store.get("ended/2", 0))[:4] == ["no memory", False, 0.0, False]
    assert store.add("ended", 0) == 2


def test_rank_0_stays_after_its_own_error_until_the_others_have_heard_it(monkeypatch: pytest.MonkeyPatch):
    """Its process may have the store."""
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 8.0)
    store, heard = Store(), list[str]()

    def hears(rank: int) -> None:
        error = PeerFailed("reducing ended", "timed out")
        ending_of(rank, store).end(error)
        heard.append(str(error))

    for rank in 1, 2:
        threading.Timer(0.3, hears, [rank]).start()
    ending_of(0, store, timeout_s=60.0).end(RuntimeError("no memory"))
    assert heard == ["reducing ended: no memory"] * 2


def test_where_a_rank_has_left_its_error_no_other_waits_for_a_mark():
    store, error = Store(), PeerFailed("reducing ended", "timed out")
    store.set("verdict", json.dumps(Verdict("no memory")))
    ending_of(1, store).end(error)
    assert str(error) == "reducing ended: no memory"
    assert store.asked["look"] == 0


def test_a_rank_that_computes_for_as_long_as_a_step_takes_is_not_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 0.1)
    store, error = Store(), PeerFailed("reducing ended", "timed out")
    marked(store, [2])
    threading.Timer(0.5, marked, (store, [0])).start()
    ending_of(1, store, timeout_s=60.0, step_s=20.0).end(error)
    assert str(error) == "reducing ended: timed out"


def test_the_others_are_told_before_an_abort_that_does_not_return():
    """As NCCL's may not until the group's timeout."""
    store, returns = Store(), threading.Event()
    ending = ending_of(1, store, abort=lambda reason: returns.wait())
    thread = threading.Thread(target=ending.end, args=(PeerFailed("reducing ended", "timed out"),), daemon=True)
    thread.start()
    assert store.get("ended/1", 5) is not None
    returns.set()
    thread.join()


@pytest.mark.parametrize("ranks", [2, 16, 64])
def test_an_ending_asks_the_store_a_few_times_a_rank(ranks: int, monkeypatch: pytest.MonkeyPatch):
    """Rank 1 is lost; all others have to find that out. Looks are by time: the first rank's, and rank 0's."""
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 1.0)
    monkeypatch.setattr(failure_verdict, "POLL_S", 0.05)
    store, errors = Store(), [PeerFailed("reducing ended", "timed out") for _ in range(ranks)]
    left = [rank for rank in range(ranks) if rank != 1]
    began = monotonic()
    raising(together(len(left), lambda at: ending_of(left[at], store, ranks=ranks).end(errors[left[at]])))
    assert {str(errors[rank]) for rank in left} == {"reducing ended: rank 1 was lost"}
    looks = store.asked.pop("look")
    assert looks <= (monotonic() - began) / failure_verdict.POLL_S + ranks
    assert store.asked["check"] <= 2 * ranks.bit_length(), "the judge asks for the missing mark by halves"
    assert store.asked.total() <= 5 * ranks + 2 * ranks.bit_length() + looks, "and it reads no mark"


def test_no_rank_is_lost_while_marks_still_come(monkeypatch: pytest.MonkeyPatch):
    """As of thousands of ranks, whose marks a store takes longer for than one rank may."""
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 2.0)
    monkeypatch.setattr(failure_verdict, "POLL_S", 0.05)
    store, ranks = Store(), 30
    errors = [PeerFailed("reducing ended", "timed out") for _ in range(ranks)]

    def ends(at: int) -> None:
        sleep(0.1 * at)
        ending_of(at, store, ranks=ranks, timeout_s=2.0).end(errors[at])

    began = monotonic()
    raising(together(ranks - 1, ends))
    assert {str(error) for error in errors[:-1]} == {f"reducing ended: rank {ranks - 1} was lost"}
    assert store.asked["get"] <= (monotonic() - began) / failure_verdict.POLL_S + 4 * ranks, "one rank judges"


def test_the_judge_does_not_wait_for_a_rank_that_its_monitor_has_found_silent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 8.0)
    store, error = Store(), PeerFailed("reducing ended", "a rank was lost (2)")
    marked(store, [1, 3])
    ending = ending_of(0, store, ranks=4, silent={2}, timeout_s=60.0)
    threading.Timer(0.2, lambda: store.add("heard", 2)).start()
    began = monotonic()
    ending.end(error)
    assert str(error) == "reducing ended: rank 2 was lost"
    assert monotonic() - began < 4


def test_the_judge_waits_for_a_living_rank_where_the_silent_one_has_left_a_mark(monkeypatch: pytest.MonkeyPatch):
    """As many marks as without the silent one are there then, and one that is not lost is still to come."""
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 8.0)
    store, error = Store(), PeerFailed("reducing ended", "timed out")
    marked(store, [1, 2])
    threading.Timer(0.3, lambda: marked(store, [3])).start()
    store.add("heard", 3)
    ending_of(0, store, ranks=4, silent={2}, timeout_s=60.0).end(error)
    assert str(error) == "reducing ended: timed out"


def test_where_the_judge_is_lost_one_other_judges_for_longer_than_a_steps_patience(monkeypatch: pytest.MonkeyPatch):
    """All of them at once would hold up the store, and so each other."""
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 2.0)
    store, errors = Store(), [PeerFailed("reducing ended", "timed out") for _ in range(16)]
    store.add("judge/0", 1)
    judges = list[int]()
    judge = FailureVerdict._judge

    def counted(ending: FailureVerdict) -> Verdict:
        judges.append(ending._mesh.rank)
        sleep(0.3)
        return judge(ending)

    monkeypatch.setattr(FailureVerdict, "_judge", counted)
    raising(together(15, lambda rank: ending_of(rank, store, ranks=16, timeout_s=2.0).end(errors[rank])))
    assert {str(error) for error in errors[:-1]} == {"reducing ended: rank 15 was lost"}
    assert len(judges) == 1


@pytest.mark.parametrize("missing", [[0], [5], [63], [8, 9, 10, 11], [1, 30, 62]])
def test_marks_that_are_missing_are_found_by_halves(missing: list[int]):
    store = Store()
    marked(store, set(range(64)) - set(missing))
    store.asked.clear()
    assert ending_of(0, store, ranks=64)._unmarked(range(64)) == missing
    assert store.asked.total() == store.asked["check"] <= 13 * len(missing)


def test_a_rank_that_comes_when_the_others_went_on_without_it_says_why_it_was_late(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 0.05)
    store, late = Store(), PeerFailed("reducing ended", "timed out")
    for rank in 1, 2:
        ending_of(rank, store).end(PeerFailed("reducing ended", "timed out"))
    ending_of(0, store, paused_s=18.0).end(late)
    assert str(late) == "reducing ended: rank 0 (host a) did not run for 18 s"


@pytest.mark.parametrize(
    ("paused_s", "why"),
    [
        (18.0, "rank 2 (host c) did not run for 18 s, and rank 0 (host a), or the store's host, is gone"),
        (0.1, "rank 0 (host a), or the store's host, was lost"),
    ],
)
def test_a_rank_that_wakes_when_all_others_have_ended_says_that_it_was_stopped(paused_s: float, why: str):
    class Gone(Store):
        def add(self, key: str, number: int) -> int:
            raise RuntimeError("the store does not answer")

    error = PeerFailed("reducing ended", "timed out")
    ending_of(2, Gone(), paused_s).end(error)
    assert str(error) == f"reducing ended: {why}"


@pytest.mark.parametrize("ranks", [2, 16, 64])
def test_a_meeting_asks_the_store_four_times_a_rank_and_reads_what_is_equal_once(ranks: int):
    store, facts = Store(), {"call": "attach()", "plan": "p" * 1000}

    def meets(rank: int) -> list[Any]:
        meeting = meeting_of(rank, store, ranks)
        return [*meeting.gather(facts), *meeting.hosts]

    began = monotonic()
    for met in raising(together(ranks, meets)):
        assert met == [facts] * ranks + [gethostname()] * ranks
    # a rank that waits longer than a second asks again
    assert store.asked.total() <= (4 + (monotonic() - began) / gathering.PAUSE_S) * ranks + 1
    assert len(store.get("meeting/1/everyone", 0)) < 2000 + 20 * ranks


def test_many_meetings_leave_the_texts_of_rank_0_at_the_last_one():
    """As a training that calls verify() or skip() for weeks."""
    store = Store()

    def meets(rank: int) -> None:
        meeting = meeting_of(rank, store, 3)
        for number in range(20):
            assert meeting.gather({"call": str(number)}) == [{"call": str(number)}] * 3

    raising(together(3, meets))
    assert store._words.keys() == {"meeting/20/0", "meeting/20/everyone"}


def test_a_store_that_cannot_delete_ends_no_meeting():
    """Some stores of torch cannot, and one whose process ends just then need not: all have read what they need."""

    class Keeping(Store):
        def delete(self, key: str) -> None:
            raise RuntimeError("not supported")

    store = Keeping()

    def meets(rank: int) -> None:
        meeting = meeting_of(rank, store, 2)
        for number in range(3):
            assert meeting.gather({"call": str(number)}) == [{"call": str(number)}] * 2

    raising(together(2, meets))


def test_rank_0_does_not_wait_for_a_rank_that_has_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failure_verdict, "OTHERS_S", 1.0)
    store = Store()
    ending_of(2, store).end(RankLeft("rank 2 has left the job"))
    ending_of(0, store)._leave_mark(WELL)
    ending_of(1, store).end(PeerFailed("reducing ended", "a reason"))
    store.asked.clear()
    ending_of(0, store)._leave_store(2)
    assert store.asked["look"] == 1
