"""The plan that suits the job: profiled, searched, tried, and tried again when the job changes."""

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from gradwire.communicators import AllGather, AllReduce, Communicator, ScatterReduce
from gradwire.compressors import BF16, FP32, QSGD, Cast, Codec, Compressor, MultiLevel, Rounds
from gradwire.controllers.base import Controller, Decision, Step
from gradwire.controllers.measure import Sample, contention, measure, slowest
from gradwire.layout import Slot
from gradwire.memory import NoMemory, Residual
from gradwire.plan import Group, Plan, default_memory
from gradwire.schedule import (
    Affine,
    Candidate,
    Found,
    Problem,
    Profile,
    Regime,
    SlotTime,
    Table,
    Timeline,
    Worker,
    baselines,
    search,
    theil_sen,
    timeline,
)

WARM, TIMED, TRACED = 3, 8, 8
SETTLE, TRIED, ROUNDS, DUELS, STILL_CLOSE = 2, 8, 3, 3, 1.1
WINDOW, PATIENCE, DRIFT = 40, 2, 1.25
MOST_TRIED, MOST_LEARNT, WORTH_TRYING, CLEARLY = 5, 3, 1.25, 0.97
MOST_IN_TURNS = (MOST_TRIED + 1 + MOST_LEARNT) * ROUNDS + 2 * DUELS
CHOOSING_STEPS = WARM + TIMED + TRACED + 3 + MOST_IN_TURNS * (SETTLE + TRIED + 1)
"""The most that a job takes to choose its plan; fewer where fewer plans are worth trying."""
FAR_APART = 8
"""So far apart are numbers of groups that say what a group costs; from nearer ones it is noise, and what is then
predicted of layer-by-layer plans so far off that they are never tried."""
PROBED_ELEMENTS = (1 << 14, 1 << 17, 1 << 19, 1 << 21)
EPS = 0.01


@dataclass(frozen=True)
class Aside:
    """So many steps without the engine."""

    steps: int


T = TypeVar("T")
Course = Generator[Plan | Aside | None, tuple[Step, float], T]
"""Yields what `decide` is to do; is sent the next step and the seconds that it took, or that the median of those took
that the engine stood aside for."""

_log = logging.getLogger("gradwire")


class Auto(Controller):
    """Finds the fastest plan from `candidates` while the job trains, and keeps it the fastest.

    It traces some dense steps, measures each candidate on the job's own network between two steps, searches the plan
    with the shortest predicted step, tries the best few in turn, and keeps the one that was fastest in reality: dense,
    where nothing beats it. When steps later take much longer or shorter than they did, it measures and searches anew.

    A candidate is a compressor, or a `Group` without slots that names memory and communicator as well. By default
    only such as need no tuning and no leap of faith: fp32, bf16, and 8 bits with a residual.

    Where nothing beats DDP without a hook, DDP reduces by itself (`alone`), and Auto looks only at how long steps take.

    `chosen` says whether it has settled on a plan, with which it expects steps of `expected_s`, where dense ones took
    `dense_s`; `profile`, `regime` and `found` are what the last search saw and found, `measured` the profile before
    tried plans had taught it anything; `decisions` tells what was done and why, as does the logger "gradwire".
    """

    numbers = 2

    def __init__(self, candidates: Sequence[Compressor | Group] = ()) -> None:
        self.candidates = list(candidates)
        if any(isinstance(_compressor(candidate), MultiLevel) for candidate in candidates):
            raise ValueError("MultiLevel() costs what the gradient makes it; name its sparsifier, such as TopK(0.1)")
        if candidates and not any(isinstance(_compressor(candidate), Cast) for candidate in candidates):
            self.candidates.insert(0, FP32())
        self.measured: Profile | None = None
        self.profile: Profile | None = None
        self.regime = Worker()
        self.found: Found | None = None
        self._dense_plan: Plan | None = None
        self.dense_s = float("inf")
        self.expected_s = 0.0
        self.chosen = self.alone = False
        self._last, self._now = 0.0, 0
        self._course: Course[None] | None = None

    def check(self, plan: Plan) -> None:
        if not _is_dense(plan):
            raise ValueError("Auto() begins with dense steps; use attach(ddp, candidates=[...]) and name yours there")

    def begin(self, plan: Plan) -> Plan:
        if _is_dense(plan):  # a user may replan to any
            self._dense_plan = plan
        return plan

    def observe(self, step: Step, numbers: Tensor) -> None:
        now = perf_counter()
        numbers[0], numbers[1] = now - self._last, 1
        self._last = now

    def decide(self, step: Step, sums: Tensor) -> Plan | None:
        self._now = step.number
        if self._course is None:
            self._course = self._run(step)
            todo = next(self._course)
        else:
            todo = self._course.send((step, float(sums[0] / sums[1])))
        self.aside = todo.steps if isinstance(todo, Aside) else 0
        return None if isinstance(todo, Aside) else todo

    def state_dict(self) -> dict[str, Tensor]:
        seconds = torch.tensor([self.expected_s, self.dense_s], dtype=torch.float64)
        return {"chosen": torch.tensor(self.chosen), "alone": torch.tensor(self.alone), "seconds": seconds}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.chosen, self.alone, self._course, self.aside = bool(state["chosen"]), bool(state["alone"]), None, 0
        self.expected_s, self.dense_s = state["seconds"].tolist()

    def _run(self, step: Step) -> Course[None]:
        if not self.chosen:
            assert self._dense_plan
            if step.plan != self._dense_plan:  # what a job tried when it was saved
                yield self._dense_plan
            self.dense_s = yield from _dense(step, WARM + TIMED)
            times, step = yield from self._traced(step, _quiet(self._dense_plan))
            yield from self._choose(step, times, self._dense_plan)
        while True:
            step = yield from self._watch(step)
            self.chosen = False
            dense = self._dense_plan if step.may_stand_aside else None
            if dense:  # meanwhile memories keep what they hold, which the engine's dense steps would send at once
                self.dense_s = yield from _dense(step, WARM + TIMED)
            times, step = yield from self._traced(step, _quiet(step.plan))
            yield from self._choose(step, times, dense)

    def _traced(self, step: Step, plan: Plan) -> Course[tuple["Times", Step]]:
        """What the next steps' compute takes on the slowest rank, with `plan`."""
        trace = step.record(TRACED)
        yield plan
        for _ in range(TRACED + 1):
            step, _ = yield None
        return Times.of(trace.timelines(), step.slots).on_slowest(step), step

    def _choose(self, step: Step, times: "Times", dense: Plan | None) -> Course[None]:
        """Measures, searches, tries, searches again with what was learnt, and leaves the fastest in force: `dense`,
        where nothing beats what it took."""
        self.regime = Worker(contention(step.transport, step.device))
        self.measured = self._measured(step, times)
        first = search(self.measured.problem(), self.regime, EPS)
        plans = self._agreed(step, shortlist(self.measured, first, self.regime, WORTH_TRYING))
        seconds, best = yield from _tournament(plans)
        profile, found = self._learn(plans, seconds, best)
        rivals = self._agreed(step, shortlist(profile, found, self.regime, STILL_CLOSE))
        if new := [plan for plan in rivals if plan not in plans][:MOST_LEARNT]:
            again, winner = yield from _tournament([plans[best], *new])
            others = [i for i in range(len(plans)) if i != best]
            slower = median(again[0]) / median(seconds[best])  # than when the others ran
            seconds = [*again, *([slower * second for second in seconds[i]] for i in others)]
            plans, best = [plans[best], *new, *(plans[i] for i in others)], winner
            self._learn(plans, seconds, best)
        if dense and WORTH_TRYING * median(seconds[best]) > self.dense_s:
            self._say(step, "no plan is much faster than dense steps were: the best and dense in turns")
            seconds[best], theirs = yield from _duel(step, plans[best], dense)
            plans, seconds, self.dense_s = [*plans, dense], [*seconds, theirs], median(theirs)
            if median(seconds[best]) >= CLEARLY * self.dense_s:
                best = len(plans) - 1
        self.expected_s, self.chosen = median(seconds[best]), True
        self.alone = step.may_stand_aside and plans[best] is dense
        self._tell(step, first, plans[best], seconds, best)
        yield plans[best]

    def _learn(self, plans: list[Plan], seconds: list[list[float]], best: int) -> tuple[Profile, Found]:
        """What tried plans teach: the profile, and what the search finds with it."""
        assert self.measured
        self.profile = learnt(self.measured, self.regime, plans, seconds, best)
        self.found = search(self.profile.problem(), self.regime, EPS)
        return self.profile, self.found

    def _measured(self, step: Step, times: "Times") -> Profile:
        """The profile of this job: every candidate on its own network, the slowest rank's seconds."""
        ordered = sorted(step.slots, key=lambda slot: times.ready_s[slot.name])
        sizes = [_first(ordered, elements) for elements in PROBED_ELEMENTS]
        pieces = [slots for i, slots in enumerate(sizes) if not i or slots != sizes[i - 1]]
        world = step.transport.world
        ways = [way for candidate in self.candidates or safe(world) for way in ways_of(candidate, world)]
        samples = [[measure(way, slots, step.transport, step.device) for slots in pieces] for way in ways]
        local = step.transport.local
        return Profile(
            slots=tuple(SlotTime(slot.name, tuple(slot.shape), times.ready_s[slot.name]) for slot in ordered),
            forward_s=times.forward_s,
            optimizer_s=times.optimizer_s,
            candidates=tuple(_candidate(*each, self.regime.lag) for each in zip(ways, samples, strict=True)),
            collectives=_collectives(ways, samples),
            ranks=step.ranks,
            gpus_per_host=local.world if local else 1,
            local=_local(samples) if local else {},
            device=step.device.type,
        )

    def _agreed(self, step: Step, plans: list[Plan]) -> list[Plan]:
        """Rank 0's plans, for all ranks: their profiles are equal, their arithmetic need not be."""
        text = "\0".join(plan.to_json() for plan in plans).encode()
        length = torch.tensor([len(text)], device=step.device)
        step.transport.from_first(length)
        letters = torch.zeros(int(length), dtype=torch.uint8, device=step.device)
        mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)[: len(letters)]
        letters[: len(mine)] = mine.to(step.device)
        step.transport.from_first(letters)
        return [Plan.from_json(line) for line in bytes(letters.tolist()).decode().split("\0")]

    def _watch(self, step: Step) -> Course[Step]:
        """Returns when steps have long taken another time than they did."""
        strange = 0
        while True:
            if self.alone and step.may_stand_aside:
                step, now = yield Aside(WINDOW)
            else:
                seconds = yield from _timed(WINDOW - 1)
                step, last = yield None
                now = median([*seconds, last])
            self.expected_s = self.expected_s or now
            strange = strange + 1 if max(now / self.expected_s, self.expected_s / now) > DRIFT else 0
            if strange == PATIENCE:
                expected = 1e3 * self.expected_s
                self._say(step, f"steps take {1e3 * now:.0f} ms, not {expected:.0f} ms any more: planning anew")
                return step

    def _tell(self, step: Step, found: Found, plan: Plan, seconds: list[list[float]], best: int) -> None:
        others = ", ".join(f"{1e3 * median(own):.0f}" for i, own in enumerate(seconds) if i != best)
        self._say(
            step,
            f"{'DDP by itself' if self.alone else words(plan)}: {1e3 * self.expected_s:.0f} ms a step "
            f"(at first {1e3 * found.step_s:.0f} ms was predicted for the best"
            + (f"; others took {others} ms" if others else "")
            + (f"; dense took {1e3 * self.dense_s:.0f} ms)" if isfinite(self.dense_s) else ")"),
        )

    def _say(self, step: Step, decision: str) -> None:
        self.decisions.append(Decision(self._now, decision))
        if step.transport.rank == 0:
            _log.info("step %d: %s", self._now, decision)


@dataclass(frozen=True)
class Times:
    """What a step's compute takes: when after backward began each slot is ready, and the rest."""

    ready_s: dict[str, float]
    forward_s: float
    optimizer_s: float

    @classmethod
    def of(cls, timelines: Sequence[Timeline], slots: Sequence[Slot]) -> "Times":
        """The medians over the steps."""
        ready: dict[str, list[float]] = {slot.name: [] for slot in slots}
        forward: list[float] = []
        optimizer: list[float] = []
        for spans in [step.spans for step in timelines]:
            began = max(span.end_s for span in spans if span.lane == "forward")
            forward.append(began)
            optimizer.append(sum(s.end_s - s.start_s for s in spans if s.lane == "optimizer"))
            for span in spans:
                if span.lane == "backward" and span.slots:
                    ready[span.slots[0]].append(span.end_s - began)
        last_s = max(median(seconds) for seconds in ready.values() if seconds)  # a parameter may get no gradient
        ready_s = {name: median(seconds) if seconds else last_s for name, seconds in ready.items()}
        return cls(ready_s, median(forward), median(optimizer))

    def on_slowest(self, step: Step) -> "Times":
        """The slowest rank's, slot by slot."""
        numbers = [self.forward_s, self.optimizer_s, *self.ready_s.values()]
        forward_s, optimizer_s, *ready_s = slowest(numbers, step.transport, step.device)
        return Times(dict(zip(self.ready_s, ready_s, strict=True)), forward_s, optimizer_s)


def safe(world: int) -> list[Compressor | Group]:
    """What needs no tuning and no leap of faith: fp32, bf16, and 8 bits with a residual."""
    return [FP32(), BF16(), *(replace(way, memory=Residual()) for way in ways_of(QSGD(), world))]


def ways_of(candidate: Compressor | Group, world: int) -> list[Group]:
    """The ways to send that a candidate stands for: a compressor's own memory, and each communicator that may win."""
    if isinstance(candidate, Group):
        return [replace(candidate, slots=())]
    memory = NoMemory() if isinstance(candidate, Cast) else default_memory(candidate)
    if isinstance(candidate, Rounds) or (isinstance(candidate, Codec) and candidate.summable):
        return [Group((), candidate, memory, AllReduce())]
    communicators: list[Communicator] = [AllGather()]
    if world > 2 and isinstance(candidate, Codec) and candidate.divisible:
        communicators.append(ScatterReduce())
    return [Group((), candidate, memory, communicator) for communicator in communicators]


def shortlist(profile: Profile, found: Found, regime: Regime, worth: float) -> list[Plan]:
    """What is worth trying: the best plan; the best candidate alone in DDP's buckets, for where computing beside
    backward costs more than the model knows; and, nearest first, each candidate alone in its best buckets and layer
    by layer, for where it costs less, of which the model says that they take at most `worth` times as long."""
    problem = profile.problem()
    options = range(len(problem.options))
    alone = [_alone(problem, regime, option) for option in options]
    best = min(options, key=lambda option: alone[option].step_s)
    rivals = [*alone, *(baselines.layer_wise(problem, regime, option) for option in options)]
    close = sorted((r for r in rivals if r.step_s < worth * found.step_s), key=lambda rival: rival.step_s)
    plans = [profile.plan(each.groups) for each in [found, baselines.buckets(problem, regime, best), *close]]
    return [plan for i, plan in enumerate(plans) if plan not in plans[:i]][:MOST_TRIED]


def learnt(
    profile: Profile, regime: Worker, plans: Sequence[Plan], seconds: Sequence[Sequence[float]], best: int
) -> Profile:
    """The profile, so that it predicts what steps with these `plans` took, with the `best` exactly: nobody measures
    beforehand what threads cost that wake each other and share caches. What grows with the number of groups is taken
    for encoding, the rest for the time around backward."""
    took_s = np.array([median(own) for own in seconds])
    groups = np.array([len(plan.groups) for plan in plans])
    if groups.max() - groups.min() >= FAR_APART:
        excess_s = took_s - [timeline(profile, plan, regime).step_s for plan in plans]
        group_s = theil_sen(groups, excess_s).cost.per_unit
        dearer = (replace(candidate, encode=candidate.encode.plus(group_s)) for candidate in profile.candidates)
        profile = replace(profile, candidates=tuple(dearer))
    optimizer_s = profile.optimizer_s + took_s[best] - timeline(profile, plans[best], regime).step_s
    forward_s = max(0.0, profile.forward_s + min(0.0, optimizer_s))
    return replace(profile, optimizer_s=max(0.0, optimizer_s), forward_s=forward_s)


def words(plan: Plan) -> str:
    """The plan in a few words."""
    names = list(dict.fromkeys(f"{group.compressor} by {group.communicator}" for group in plan.groups))
    return f"{len(plan.groups)} groups of {', '.join(names)}"


def _alone(problem: Problem, regime: Regime, option: int) -> Found:
    tried = [baselines.best_buckets(problem, regime, option), baselines.one_group(problem, regime, option)]
    return min(tried, key=lambda found: found.step_s)


def _tournament(plans: Sequence[Plan]) -> Course[tuple[list[list[float]], int]]:
    """The seconds of steps with each plan, which take turns, and which is fastest of those that ran to the end; who
    falls far behind drops out."""
    seconds: list[list[float]] = [[] for _ in plans]
    alive, best = list(range(len(plans))), 0
    for _ in range(ROUNDS):
        for i in alive:
            seconds[i] += yield from _tried(plans[i])
        best = min(alive, key=lambda i: median(seconds[i]))
        alive = [i for i in alive if median(seconds[i]) < STILL_CLOSE * median(seconds[best])]
        if len(alive) == 1:
            break
    return seconds, best


def _duel(step: Step, plan: Plan, dense: Plan) -> Course[tuple[list[float], list[float]]]:
    """The seconds of steps with `plan`, and those of dense ones, in turns: what came first was another moment."""
    own: list[float] = []
    theirs: list[float] = []
    for _ in range(DUELS):
        yield dense
        theirs.append((yield from _dense(step, SETTLE + TRIED)))
        own += yield from _tried(plan)
    return own, theirs


def _quiet(plan: Plan) -> Plan:
    """The same for every slot, in as few groups as can be, behind the one that is complete when backward ends: so it
    leaves backward alone, for networks and encoding cost CPU time, and nobody says whose."""
    ways = dict.fromkeys(replace(group, slots=()) for group in reversed(plan.groups))
    slots = {
        way: [slot for group in plan.groups if replace(group, slots=()) == way for slot in group.slots] for way in ways
    }
    return Plan(tuple(replace(way, slots=tuple(own)) for way, own in slots.items()))


def _is_dense(plan: Plan) -> bool:
    return all(isinstance(group.compressor, Cast) for group in plan.groups)


def _dense(step: Step, steps: int) -> Course[float]:
    """The median seconds of dense steps: DDP's own, where it can do without the engine."""
    if step.may_stand_aside:
        return (yield Aside(steps))[1]
    return median((yield from _timed(steps))[SETTLE:])


def _tried(plan: Plan) -> Course[list[float]]:
    """Seconds of steps with `plan`, once it has settled."""
    yield plan
    return (yield from _timed(SETTLE + TRIED))[SETTLE:]


def _timed(steps: int) -> Course[list[float]]:
    """Seconds of the next steps."""
    seconds: list[float] = []
    for _ in range(steps):
        _, second = yield None
        seconds.append(second)
    return seconds


def _compressor(candidate: Compressor | Group) -> Compressor:
    return candidate.compressor if isinstance(candidate, Group) else candidate


def _first(slots: Sequence[Slot], elements: int) -> list[Slot]:
    """The first slots with so many elements together, or all; of two or more dimensions where there are such."""
    large = [slot for slot in slots if len(slot.shape) > 1] or list(slots)
    taken: list[Slot] = []
    for slot in large:
        taken.append(slot)
        if sum(each.numel for each in taken) >= elements:
            break
    return taken


def _candidate(way: Group, samples: Sequence[Sample], lag: float) -> Candidate:
    """What memories give up is subtracted beside the next forward pass, which loses `lag` times as much."""
    sizes = np.array([float(sample.elements) for sample in samples])
    encode = np.array([sample.encode_s for sample in samples])
    decode = np.array([sample.decode_s + lag * sample.close_s for sample in samples])
    return Candidate(way, Table.of(sizes, encode), Table.of(sizes, decode))


def _collectives(ways: Sequence[Group], samples: Sequence[Sequence[Sample]]) -> dict[str, Affine | Table]:
    """Seconds against bytes sent, by communicator: from codecs, whose messages are large and small, where there are."""
    costs: dict[str, Affine | Table] = {}
    for name in {way.communicator.name for way in ways}:
        own = [(way, row) for way, row in zip(ways, samples, strict=True) if way.communicator.name == name]
        codecs = [(way, row) for way, row in own if isinstance(way.compressor, Codec)]
        costs[name] = _line([(sample.wire_bytes, sample.wire_s) for _, row in codecs or own for sample in row])
    return costs


def _local(samples: Sequence[Sequence[Sample]]) -> dict[str, Affine | Table]:
    """Seconds inside a host against bytes of the gradient; the two collectives share them."""
    cost = _line([(4 * sample.elements, sample.local_s / 2) for row in samples for sample in row])
    return {"sum": cost, "broadcast": cost}


def _line(points: Sequence[tuple[float, float]]) -> Affine:
    """Through measured (bytes, seconds); flat where a small model gave one size only."""
    sizes, seconds = torch.tensor(points, dtype=torch.float64).T
    return (
        theil_sen(sizes.numpy(), seconds.numpy()).cost if sizes.unique().numel() > 1 else Affine(float(seconds.max()))
    )
