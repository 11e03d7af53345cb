"""Signs of life in a store, by a played clock: who is silent, and what watching costs where ranks are many."""

import heapq
from collections import Counter
from itertools import count

import pytest

from gradwire.runtime.failures.monitor import period_s
from gradwire.transports.heartbeat import Heartbeat, raise_alarm
from gradwire.transports.process_group import silent_s


class Store(Counter[str]):
    """Counts what is asked of it; each answer takes `answer_s` of a clock that all who ask share."""

    def __init__(self, answer_s: float = 0.0) -> None:
        super().__init__()
        self.now, self.asked, self.answer_s = 0.0, 0, answer_s

    def add(self, key: str, number: int) -> int:
        self.asked += 1
        self.now += self.answer_s
        self[key] += number
        return self[key]

    def set_all(self, keys: list[str], value: str) -> None:
        self.asked += 1
        for key in keys:
            self[key] = int(value)


def hearts(store: Store, world: int) -> list[Heartbeat]:
    return [Heartbeat(store, rank, world, lambda: store.now) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3, 4, 7])
def test_a_rank_is_silent_when_its_beats_stop(world: int):
    store = Store()
    ranks = hearts(store, world)
    found: dict[int, set[int]] = {}
    for second in range(40):
        store.now = float(second)
        for rank, heart in enumerate(ranks):
            if (rank != 1 or second < 5) and (silent := heart.silent(10.0)) is not None:
                found.setdefault(second, set()).add(silent)
    assert min(found) in (15, 16)
    assert found.keys() == set(range(min(found), 40))
    assert set.union(*found.values()) == {1}


def test_a_rank_that_never_beat_is_silent_and_none_while_no_rank_waits():
    store = Store()
    heart, _ = hearts(store, 2)
    for second in range(12):
        store.now = float(second)
        assert heart.silent(10.0, waits=second < 5) is None
    for second in range(12, 15):
        store.now = float(second)
        assert heart.silent(10.0) is None, "the wait begins anew"
    heart = hearts(store, 2)[0]
    silent = []
    for second in range(15, 27):
        store.now = float(second)
        silent.append(heart.silent(10.0))
    assert silent == [None] * 11 + [1]


def test_a_rank_that_was_itself_stopped_calls_no_other_one_lost():
    """Nor does one whose store did not answer for as long."""
    store = Store()
    heart, _ = hearts(store, 2)
    assert heart.silent(10.0) is None
    store.now = 30.0
    assert heart.silent(10.0) is None
    store.now = 34.0
    assert heart.silent(10.0) is None


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_alarm_reaches_all_ranks_at_their_next_beat(world: int):
    store = Store()
    ranks = hearts(store, world)
    for heart in ranks:
        heart.silent(10.0)
        assert not heart.alarmed
    asked = store.asked
    raise_alarm(store, world)
    assert store.asked - asked == 1
    for heart in ranks:
        assert heart.silent(10.0) is None
        assert heart.alarmed or world == 1


@pytest.mark.parametrize("world", [2, 64, 256])
def test_a_beat_asks_the_store_as_often_whatever_the_number_of_ranks(world: int):
    store = Store()
    for heart in hearts(store, world):
        heart.silent(10.0)
    assert store.asked == world


def played(world: int, axes: int, answer_s: float, dies: float) -> tuple[list[float], set[int], float]:
    """When ranks called another one lost, whom, and for which part of the time the store was busy: all wait all the
    time, and one dies, which half of the others' partners find out. They look along so many axes; one is played."""
    store, moments, named = Store(answer_s), [], set[int]()
    ranks, free, busy = hearts(store, world), 0.0, 0.0
    pause = period_s(world * axes)
    patience, order = silent_s(pause), count()
    queue = [(pause * rank / world, next(order), rank) for rank in range(world)]
    heapq.heapify(queue)
    while queue and queue[0][0] < (until := dies + patience + 8):
        at, _, rank = heapq.heappop(queue)
        if rank == world // 3 and at > dies:
            continue
        store.now = max(at, free)  # its question waits for those before it
        if (lost := ranks[rank].silent(patience)) is not None:
            moments.append(store.now)
            named.add(lost)
        busy, free = busy + answer_s, store.now
        heapq.heappush(queue, (store.now + pause, next(order), rank))
    return moments, named, busy / until


@pytest.mark.parametrize(("world", "axes"), [(2, 1), (384, 1), (4096, 1), (8192, 2)])
def test_at_thousands_of_ranks_no_living_one_is_lost_and_a_dead_one_is_found(world: int, axes: int):
    """At 200 us for each answer of the one store. Watching all others, living ranks were called lost from 384 on."""
    moments, named, busy = played(world, axes, 200e-6, dies=20.0)
    assert named == {world // 3}
    pause = period_s(world * axes)
    assert 0.0 < moments[0] - 20.0 < silent_s(pause) + 1.1 * pause + 1.1
    assert busy < 0.85
