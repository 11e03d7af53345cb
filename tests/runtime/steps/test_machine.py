"""The step protocol, pure: with any timing, absent gradients, failures and new plans, all ranks issue one sequence."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.runtime.steps.machine import Arrivals, Machine
from gradwire.script import IN_FLIGHT, Entry, script

CHANCES = st.integers(0, 1 << 32).map(Random)


@dataclass(frozen=True)
class Step:
    """Groups of slots, the collectives that each takes, and which of the groups take part."""

    members: tuple[tuple[int, ...], ...]
    rounds: tuple[int, ...]
    active: tuple[int, ...]

    @property
    def slots(self) -> list[int]:
        return [slot for group in self.active for slot in self.members[group]]


@st.composite
def steps(draw: st.DrawFn, slots: int) -> Step:
    order = draw(st.permutations(range(slots)))
    cuts = sorted(draw(st.sets(st.integers(1, slots - 1))) if slots > 1 else ())
    bounds = [0, *cuts, slots]
    members = tuple(tuple(order[a:b]) for a, b in pairwise(bounds))
    rounds = tuple(draw(st.integers(1, 4)) for _ in members)
    active = draw(st.sets(st.integers(0, len(members) - 1), min_size=1))
    return Step(members, rounds, tuple(sorted(active)))


@st.composite
def jobs(draw: st.DrawFn) -> list[Step]:
    """Steps of one job; each may follow another plan."""
    slots = draw(st.integers(1, 9))
    return draw(st.lists(steps(slots), min_size=1, max_size=4))


@dataclass
class Rank:
    """A rank whose two threads are driven by hand: gradients come in an order of its own, and complete groups wait in a
    queue until the worker looks at them."""

    chance: Random
    fails_at: int | None = None
    machine: Machine = field(default_factory=Machine)
    issued: list[tuple[int, Entry]] = field(default_factory=list)
    queue: list[tuple[int, list[int]]] = field(default_factory=list)
    completed: Counter = field(default_factory=Counter)
    absent: dict[int, list[int]] = field(default_factory=dict)
    held: Entry | None = None
    ended: int = 0
    failed: bool = False

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(lambda group, absent: self.queue.append((group, list(absent))))

    def open(self, step: Step) -> None:
        self.arrivals.follow(step.members, sum(map(len, step.members)))
        self.machine.begin(step.active, step.rounds)
        self.completed.clear()
        self.to_come = self.chance.sample(step.slots, len(step.slots))
        self.without = {slot for slot in step.slots if self.chance.random() < 0.3}

    def backward(self) -> bool:
        """One more gradient comes, or is known to be absent."""
        if not self.to_come:
            return False
        slot = self.to_come.pop()
        (self.arrivals.mark_absent if slot in self.without else self.arrivals.mark_ready)(slot)
        return True

    def work(self, network: "Network") -> bool:
        """The worker takes a complete group, or goes on with its script; whether anything happened."""
        if self.failed:
            return False
        took = bool(self.queue)
        if took:
            group, self.absent[group] = self.queue.pop(0)
            self.completed[group] += 1
            self.machine.complete(group)
        command = self.held or self.machine.next()
        self.held = None
        if command is None:
            ends = self.machine.end()
            self.ended += ends
            return took or ends
        if command.turn and not network.done(self.ended, Entry(command.group, command.turn - 1)):
            self.held = command
            return took
        assert command.turn or self.completed[command.group], "a group was encoded before its gradients were there"
        if len(self.issued) == self.fails_at:
            self.fail()
            network.lost = True
            return True
        self.issued.append((self.ended, command))
        network.start(self, self.ended, command)
        return True

    def fail(self) -> None:
        self.failed = True
        self.machine.fail()
        assert self.machine.next() is None
        assert not self.machine.end()


class Network:
    """A collective is done when all ranks have started it; one that is lost takes all with it."""

    def __init__(self, world: int) -> None:
        self._world, self._started = world, Counter()
        self.lost = False

    def start(self, rank: Rank, step: int, entry: Entry) -> None:
        self._started[step, entry] += 1

    def done(self, step: int, entry: Entry) -> bool:
        return self._started[step, entry] == self._world


def play(ranks: list[Rank], step: Step, network: Network, chance: Random) -> None:
    """Threads take turns at random until none can go on; those that hear that one is lost fail as well."""
    for rank in ranks:
        rank.open(step)
    idle: set[int] = set()
    while len(idle) < len(ranks):
        at = chance.randrange(len(ranks))
        rank = ranks[at]
        moved = rank.backward() if chance.random() < 0.5 else rank.work(network)
        if not moved and network.lost and not rank.failed and not rank.queue and not rank.to_come:
            rank.fail()
        moved = moved or rank.backward() or rank.work(network)
        idle = set() if moved else idle | {at}


@given(jobs(), st.integers(1, 4), CHANCES)
@settings(deadline=None, max_examples=100)
def test_all_ranks_issue_one_sequence_and_every_step_ends(job: list[Step], world: int, chance: Random):
    ranks, network = [Rank(Random(chance.random())) for _ in range(world)], Network(world)
    for number, step in enumerate(job):
        play(ranks, step, network, chance)
        for rank in ranks:
            assert rank.ended == number + 1
            assert rank.completed == Counter(step.active), "a group was complete twice, or never"
            for group in step.active:
                assert set(rank.absent[group]) == rank.without & set(step.members[group])
    wanted = [(number, entry) for number, step in enumerate(job) for entry in script(step.active, step.rounds)]
    assert all(rank.issued == wanted for rank in ranks)


@given(jobs(), st.integers(2, 4), st.integers(0, 30), CHANCES)
@settings(deadline=None, max_examples=100)
def test_a_failure_ends_the_job_on_all_ranks_or_comes_after_its_end(
    job: list[Step], world: int, fails_at: int, chance: Random
):
    ranks, network = [Rank(Random(chance.random())) for _ in range(world)], Network(world)
    ranks[chance.randrange(world)].fails_at = fails_at
    for step in job:
        play(ranks, step, network, chance)
        if network.lost:
            break
    entries = sum(len(script(step.active, step.rounds)) for step in job)
    assert network.lost == (fails_at < entries)
    if not network.lost:
        assert all(rank.ended == len(job) for rank in ranks)
        return
    issued = max((rank.issued for rank in ranks), key=len)
    for rank in ranks:
        assert rank.issued == issued[: len(rank.issued)], "what was issued before the failure is one sequence"
        assert rank.failed or rank.ended == max(other.ended for other in ranks), "a rank waits for ever"


@given(jobs())
def test_a_script_has_every_turn_once_in_order_and_few_groups_in_flight(job: list[Step]):
    for step in job:
        entries = script(step.active, step.rounds)
        assert Counter(entries) == Counter(
            Entry(group, turn) for group in step.active for turn in range(step.rounds[group] + 1)
        )
        assert [entry.group for entry in entries if not entry.turn] == list(step.active)
        for at, (group, turn) in enumerate(entries):
            if turn:
                assert entries.index(Entry(group, turn - 1)) < at
                continue
            begun = {entry.group for entry in entries[:at]}
            in_flight = begun - {entry.group for entry in entries[:at] if entry.turn == step.rounds[entry.group]}
            assert len(in_flight) <= IN_FLIGHT


def test_a_group_that_is_started_pushes_the_oldest_one_on():
    """With two rounds each, the second round of a group, turn 1, follows the first of the next, turn 0."""
    assert script(range(4), [2] * 4) == [
        (0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (3, 0), (2, 1), (1, 2), (3, 1), (2, 2), (3, 2),
    ]  # fmt: skip


@given(jobs(), CHANCES)
def test_arrivals_know_what_is_missing(job: list[Step], chance: Random):
    told: list[int] = []
    arrivals = Arrivals(lambda group, absent: told.append(group))
    for step in job:
        arrivals.follow(step.members, sum(map(len, step.members)))
        told.clear()
        left = chance.sample(step.slots, len(step.slots))
        while left:
            assert arrivals.missing(step.active) == sorted(left)
            assert not arrivals.all_there(step.active)
            arrivals.mark_ready(left.pop())
        assert arrivals.all_there(step.active)
        assert sorted(told) == list(step.active)
