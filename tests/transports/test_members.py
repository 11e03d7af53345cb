"""Processes that come and go agree on the next group, whoever comes late, gives up or dies meanwhile."""

import json
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from time import sleep

import pytest
import torch.distributed as dist

from gradwire.transports import members as module
from gradwire.transports.members import Claim, Members
from tests.support.harness import raising, together
from tests.support.ranks import served_store


@pytest.fixture(autouse=True)
def _of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has met is the process's, which tests share."""
    monkeypatch.setattr(Members, "beside_newcomers", False)


def members(store: dist.Store, count: int, at_least: int = 1, timeout_s: float = 10) -> list[Members]:
    """`at_least` as many as are to meet, for a thread may begin later than a last call."""
    return [Members(store, at_least, 0.2, timeout_s) for _ in range(count)]


def test_who_has_come_furthest_is_rank_0_and_newcomers_come_last():
    store = dist.HashStore()
    four = members(store, 4, at_least=4)
    first = raising(together(4, lambda r: four[r].meet(-1)))
    assert sorted(generation.rank for generation in first) == [0, 1, 2, 3]
    four[0].begun()
    four[0].at_least = four[2].at_least = 3
    three = [four[0], four[2], *members(store, 1, at_least=3)]
    assert not four[0].newcomers()
    second = raising(together(3, lambda r: three[r].meet([7, 8, -1][r])))
    assert [generation.rank for generation in second] == [1, 0, 2]
    assert [claim.steps for claim in second[0].claims] == [8, 7, -1]


def test_newcomers_alone_begin_nothing_and_hear_at_once_what_to_do(caplog):
    store = dist.HashStore()
    job, newcomers = members(store, 2, at_least=2), members(store, 2, timeout_s=1)
    raising(together(2, lambda r: job[r].meet(-1)))
    assert not caplog.messages
    for error in together(2, lambda r: newcomers[r].meet(-1)):
        assert "none of the job over this store, which they are to join; where that job has ended" in str(error)
    assert len(caplog.messages) == 2
    assert caplog.messages[0].endswith("begin over a store of its own, e.g. PrefixStore('second job', store)")


def test_who_missed_a_generation_comes_back_as_a_newcomer():
    store = dist.HashStore()
    three = members(store, 3, at_least=3)
    raising(together(3, lambda r: three[r].meet(-1)))
    for each in three[:2]:
        each.at_least = 2
    raising(together(2, lambda r: three[r].meet(5)))
    for each in three:
        each.at_least = 3
    third = raising(together(3, lambda r: three[r].meet([6, 6, 5][r])))
    assert third[2].rank == 2
    assert [claim.generation for claim in third[0].claims] == [2, 2, 1]


def test_newcomers_that_are_left_alone_do_not_begin_again():
    store = dist.HashStore()
    two = members(store, 2, at_least=2)
    raising(together(2, lambda r: two[r].meet(-1)))
    two[0].begun()
    two[1].at_least = 1
    with pytest.raises(RuntimeError, match="all processes that had the model are lost"):
        two[1].meet(-1)


class Killed(BaseException):
    pass


def dies_in_its_wait(monkeypatch: pytest.MonkeyPatch, member: Members) -> None:
    """The member's claim is on the list, and its process is gone."""

    def wait(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(member, "_wait", wait)
    with pytest.raises(Killed):
        member.meet(-1)


def test_a_process_that_dies_while_it_waits_to_join_is_not_waited_for(monkeypatch):
    two = members(store := dist.HashStore(), 2, at_least=2)
    raising(together(2, lambda r: two[r].meet(-1)))
    dies_in_its_wait(monkeypatch, *members(store, 1))
    assert two[0].newcomers()
    second = raising(together(2, lambda r: two[r].meet(5)))
    assert [len(generation.claims) for generation in second] == [2, 2]
    assert not two[0].newcomers()


def test_who_gives_up_takes_its_claim_back():
    two = members(store := dist.HashStore(), 2, at_least=2)
    raising(together(2, lambda r: two[r].meet(-1)))
    with pytest.raises(TimeoutError):
        members(store, 1, timeout_s=0.1)[0].meet(-1)
    assert not two[0].newcomers()
    three = [*two, *members(store, 1)]
    for each in three:
        each.at_least = 3
    third = raising(together(3, lambda r: three[r].meet([5, 5, -1][r])))
    assert [generation.rank for generation in third][2] == 2


def test_where_too_few_of_a_list_are_left_all_wait_on_as_what_they_were(monkeypatch, caplog):
    three = members(store := dist.HashStore(), 3, at_least=3)
    raising(together(3, lambda r: three[r].meet(-1)))
    dead, newcomer = members(store, 2, at_least=3)
    dies_in_its_wait(monkeypatch, dead)
    caplog.clear()

    def meet(rank: int) -> object:
        if rank == 2:  # it comes when the first list has come to nothing
            sleep(1)
        return [*three[:2], newcomer][rank].meet([5, 6, -1][rank])

    later = raising(together(3, meet))
    assert [generation.rank for generation in later] == [1, 0, 2]
    assert [claim.generation for claim in later[0].claims] == [1, 1, 0]
    assert len(caplog.messages) == 1  # the newcomer's


def test_who_has_the_model_goes_before_a_newcomer_that_never_got_it():
    two = members(store := dist.HashStore(), 2, at_least=2)
    raising(together(2, lambda r: two[r].meet(-1)))
    two[0].begun()
    late, survivor = two
    (newcomer,) = members(store, 1, at_least=2)
    raising(together(2, lambda r: [survivor, newcomer][r].meet([100, -1][r])))
    third = raising(together(2, lambda r: [late, newcomer][r].meet([100, -1][r])))
    assert [generation.rank for generation in third] == [0, 1]
    assert third[0].claims[0].steps == 100


def test_too_few_are_an_error():
    with pytest.raises(TimeoutError, match="1 process came within 1 s, and at least 2 are wanted"):
        members(dist.HashStore(), 1, at_least=2, timeout_s=1)[0].meet(-1)


def as_time_passes(monkeypatch: pytest.MonkeyPatch, happens: Mapping[float, Callable[[], object]]) -> None:
    """Each look of a member takes 0.1 s of its clock, by which other processes do so and so."""
    times = [0.0]

    def look(seconds: float) -> None:
        times.append(round(times[-1] + 0.1, 1))
        happens.get(times[-1], int)()

    monkeypatch.setattr(module, "monotonic", lambda: times[-1])
    monkeypatch.setattr(module, "sleep", look)


@pytest.mark.parametrize(("at_least", "listed"), [(1, "3"), (4, "4")])
def test_a_list_is_closed_once_enough_have_come_and_none_for_a_while(
    at_least: int, listed: str, monkeypatch: pytest.MonkeyPatch
):
    member = Members(dist.HashStore(), at_least, 1.0, 60.0)
    comes = partial(member._store.add, "1/count", 1)
    as_time_passes(monkeypatch, {0.8: comes, 1.6: comes, 3.0: comes})
    comes()
    member._wait(1, 60.0)
    assert member._store.get("1/closed", 0) == listed


def test_of_two_that_close_a_list_the_first_counts(monkeypatch: pytest.MonkeyPatch):
    member = Members(dist.HashStore(), 1, 1.0, 60.0)
    member._store.add("1/count", 1)
    as_time_passes(monkeypatch, {})
    monkeypatch.setattr(member, "_follows", lambda number: not member._store.set("1/closed", "7"))
    member._wait(1, 60.0)
    assert member._store.get("1/closed", 0) == "7"


@pytest.mark.parametrize("generation", [None, "[0]", "[]"], ids=["not known yet", "begun", "void"])
def test_who_comes_as_a_list_is_closed_begins_nothing_beside_it(
    generation: str | None, monkeypatch: pytest.MonkeyPatch
):
    member = Members(dist.HashStore(), 1, 1.0, 5.0)
    add = member._store.add
    as_time_passes(monkeypatch, {})

    def closed_meanwhile(key: str, amount: int) -> int:
        # it has found the list open, and is about to come
        if (key, amount) == ("1/count", 1):
            add("1/count", 1)
            member._store.set("1/closed", "1")
            if generation:
                member._store.set("1/generation", generation)
        return add(key, amount)

    monkeypatch.setattr(member._store, "add", closed_meanwhile)
    if generation == "[]":
        assert member.meet(-1).number == 2
    else:
        with pytest.raises(TimeoutError, match="1 process came within 5 s, and none of the job"):
            member.meet(-1)


def test_a_process_knows_that_it_has_the_model_and_others_have_not_until_training_begins():
    member = Members(dist.HashStore(), 1, 1.0, 60.0)
    for place, steps in enumerate((7, -1)):
        member._store.set(f"1/claim/{place}", json.dumps(asdict(Claim(0, steps))))
    beside = list[bool]()
    for there, place in ([0], 0), ([0, 1], 1), ([0, 1], 0):
        member._of(1, there, place)
        beside.append(Members.beside_newcomers)
    member.begun()
    assert [*beside, Members.beside_newcomers] == [False, False, True, False]


def test_a_store_that_answers_no_more_ends_the_wait_for_others():
    """Its client waits for ever where the server's host is frozen or cut off."""
    with served_store() as (server, port):
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=2))
        (member,) = members(store, 1, at_least=2, timeout_s=60)
        threading.Timer(0.5, server.send_signal, [signal.SIGSTOP]).start()
        (error,) = together(1, lambda rank: member.meet(-1))
    assert str(error) == f"the store at 127.0.0.1:{port} does not answer"
