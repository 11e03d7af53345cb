"""A rank's planning job: train under `Auto` until it has chosen, then trace steps with the chosen plan."""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.compressors import FP32
from gradwire.frontends import Handle, attach
from gradwire.frontends.options.given_rules import GivenRule, rules_of
from gradwire.lab.configuration import parse
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.launch.rank_job import Log, Peers, run_rank
from gradwire.lab.played_cluster import PlayedSpec
from gradwire.lab.workloads import Task
from gradwire.lab.workloads.make_task import make_task
from gradwire.lab.workloads.to_device import to_device
from gradwire.notation import read_rule, way_of
from gradwire.ops.host import on_host, synchronize
from gradwire.plans import Plan
from gradwire.schedule import Objective, Profile, Timeline
from gradwire.text_tensors import letters, text_of
from gradwire.transports import Mesh
from gradwire.tuner import CHOOSING_STEPS, Auto
from gradwire.tuner.candidate_plans import allowed, ways_by
from gradwire.tuner.step_times import MOST_UNRECORDED
from gradwire.tuner.trials import SETTLE, Tried
from gradwire.ways import Way

SHOWN = 5
"""Traced steps, of which the median is shown."""
IN_FORCE = 3
"""Steps after which a decision is in force."""
MOST_STEPS = CHOOSING_STEPS + IN_FORCE + MOST_UNRECORDED + SETTLE + SHOWN + 1
"""For the progress bar: fewer where fewer plans are tried, more where plans wait to be recorded."""
ALONE_STEPS = 6
"""Steps without messages that are timed, beside the first."""
Late = Callable[[int, torch.device], None]
"""Waits, in a step of this number, until the slowest rank has come."""
_ARGUMENT = re.compile(r"\w+=|([\d.]+(e-?\d+)?|\w+/[^:+]*)(\+|$)")
"""Matches text after a comma that is part of the same candidate: an option by name, a number, or a nested codec."""


@dataclass(frozen=True, kw_only=True)
class PlanSpec(PlayedSpec):
    """A planning job; without candidates, with Auto's own. `fidelity` and `objective` are Auto's."""

    candidates: list[str]
    fidelity: float | None = None
    objective: Objective = "progress"
    rules: list[str] = field(default_factory=list)
    """By layer, as PATTERN=WAY; the candidates are for the rest."""

    def controller(self) -> Auto:
        """Finds the plan. Raises ValueError for what none can be found by."""
        accepted = [candidate(text) for text in self.candidates]
        if accepted and FP32() not in accepted and self.objective == "progress":
            # the first plan, and the one to go back to
            accepted.append(FP32())
        if not self.rules:
            return Auto(accepted, self.fidelity, self.objective)
        rules = rules_of([*map(read_rule, self.rules), ("*", accepted)])
        return Auto(fidelity=self.fidelity, objective=self.objective, rules=rules)

    def check(self, ranks: int) -> None:
        """Raises ValueError where so many ranks find no plan: for one, which would train for ever, for what plans
        cannot be chosen by, and for a task without batches for all."""
        if ranks < 2:
            raise ValueError("1 rank sends nothing and needs no plan: give 2 or more hosts")
        self.controller()
        task = make_task(self.task, self.options)
        next(task.batches(0, ranks, self.seed))
        task.parameters()


@dataclass(frozen=True)
class Planned:
    """Result of a planning job."""

    plan: Plan
    """The chosen plan; native where nothing is clearly faster than DDP by itself."""
    shown: Plan
    """That of the timeline: the chosen one or, as DDP by itself has no spans, dense by Gradwire's hook."""
    profile: Profile
    """As it was measured before any plan was tried, of the candidates that it was chosen from."""
    tried: dict[Plan, Tried]
    """Each plan that was tried, beside the one that Auto chose."""
    gain: float
    """Seconds of a dense step over those of a step as chosen, before that."""
    timeline: Timeline
    """Of the median traced step, with all ranks."""
    decisions: list[str]
    """Auto's, in words."""

    def to_line(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_json(),
            "shown": self.shown.to_json(),
            "profile": self.profile.to_json(),
            "tried": [[plan.to_json(), *tried] for plan, tried in self.tried.items()],
            "gain": self.gain,
            "timeline": self.timeline.to_data(),
            "decisions": self.decisions,
        }

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> "Planned":
        return cls(
            Plan.from_json(line["plan"]),
            Plan.from_json(line["shown"]),
            Profile.from_json(line["profile"]),
            {Plan.from_json(plan): Tried(*tried) for plan, *tried in line["tried"]},
            line["gain"],
            Timeline.from_data(line["timeline"]),
            line["decisions"],
        )


def candidates(text: str) -> list[str]:
    """`bf16,qsgd:127,block=512,topk:0.01` cut into configurations, each of them checked.

    Raises ValueError for what is none, and for what the search cannot choose among."""
    # a part that looks like an argument belongs to the candidate before it
    found: list[str] = []
    for part in text.split(","):
        if found and _ARGUMENT.match(part):
            found[-1] += f",{part}"
        else:
            found.append(part)
    for each in found:
        candidate(each)
    return found


def candidate(text: str) -> Way:
    """One candidate: a compressor, or with the memory and communicator that it names."""
    read = parse(text)
    if not read.compressor or read.grouping or read.rules or read.controller or read.local:
        raise ValueError(f"{text!r} is no candidate: write compressor[:value,...][+memory][+communicator], as in fp32")
    return way_of(read.compressor, read.memory, read.communicator)


def plan(spec: PlanSpec, peers: Peers, log: Log) -> None:
    """Trains until a plan is found; `log` gets a line for each step, and at last a `Planned`. The measured step is that
    of the ranks that run."""
    task = make_task(spec.task, spec.options)
    running = peers
    controller = spec.controller()
    peers, late = _played(spec, task, controller, running)
    ddp = DistributedDataParallel(task.build_model(spec.seed).to(peers.device), process_group=peers.group)
    dense: list[GivenRule] = [(pattern, FP32()) for pattern, _ in map(read_rule, spec.rules)]
    handle = attach(ddp, FP32(), rules=dense, controller=controller, transport=peers.transport, seed=spec.seed)
    steps = _steps(task, ddp, peers, spec.seed, late)
    # try plans
    for number, _ in enumerate(steps, 1):
        log({"step": number, "doing": "trying plans" if controller.found else "measuring dense steps"})
        if controller.chosen:
            break
    # let the chosen one come into force
    for _ in range(IN_FORCE):
        next(steps)
    chosen = _plan(handle)
    tried = {plan: own for trials in controller.tried for plan, own in trials.relative_to(chosen).items()}
    gain = controller.dense_s / controller.expected_s
    if chosen.native:
        # DDP by itself cannot be traced: dense steps by our hook are, for illustration
        assert controller.dense_plan
        handle.replan(controller.dense_plan)
    # show it as it then runs: on a GPU it is still to be recorded
    for _ in range(SETTLE + (0 if on_host(peers.device) else MOST_UNRECORDED)):
        next(steps)
    # trace
    trace = handle.trace(SHOWN)
    for _ in range(SHOWN + 1):
        next(steps)
    assert controller.measured
    log(
        Planned(
            chosen,
            _plan(handle),
            allowed(controller.measured, spec.fidelity),
            tried,
            gain,
            _median_step(trace.timelines(), running),
            [decision.decision for decision in controller.decisions],
        ).to_line()
    )
    handle.detach()


def _punctual(step: int, device: torch.device) -> None:
    """No rank is behind."""


def _played(spec: PlanSpec, task: Task, controller: Auto, running: Peers) -> tuple[Peers, Late]:
    """The ranks as this one sees them, and the function that waits for the slowest one."""
    if not (played := spec.played()):
        return running, _punctual
    peers = played.peers(running)
    played.begin(way.compressor for way in ways_by(controller.rules, peers.world))
    # how long a rank computes, where some compute longer
    alone_s = 0.0
    if played.late:
        model, took = task.build_model(spec.seed).to(peers.device), list[float]()
        steps = _steps(task, model, peers, spec.seed)
        for _ in range(ALONE_STEPS):
            start = time.perf_counter()
            next(steps)
            took.append(time.perf_counter() - start)
        alone_s = median(took[1:])
    return peers, partial(played.wait_for_slowest, alone_s, 1)


def _steps(task: Task, model: nn.Module, peers: Peers, seed: int, late: Late = _punctual) -> Iterator[None]:
    """Trains step by step."""
    optimizer = Recipe().make_optimizer(task, model.parameters())
    for number, batch in enumerate(task.batches(peers.rank, peers.world, seed)):
        late(number, peers.device)
        optimizer.zero_grad()
        task.training_loss(model, to_device(batch, peers.device)).backward()
        optimizer.step()
        # kernels run behind the training thread: wait for them
        synchronize(peers.device)
        yield


def _plan(handle: Handle) -> Plan:
    assert handle.plan
    return handle.plan


def _median_step(timelines: list[Timeline], peers: Peers) -> Timeline:
    """The median step by the slowest rank's seconds, with the spans of all ranks; each rank's clock starts at 0."""
    # every rank's spans of every traced step
    mine = json.dumps([timeline.to_data() for timeline in timelines])
    ranks = [json.loads(text) for text in _gathered(mine, peers)]
    # the step of all ranks together
    steps = [Timeline.from_data([span for rank in ranks for span in rank[step]]) for step in range(len(timelines))]
    return sorted(steps, key=lambda timeline: timeline.step_s)[len(steps) // 2]


def _gathered(text: str, peers: Peers) -> list[str]:
    """Every rank's text, on all ranks."""
    mesh, mine = Mesh.of(peers.transport), letters(text)
    # texts of different lengths, padded to the longest
    lengths = mesh.gather(torch.tensor([len(mine)], device=peers.device)).flatten().tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=peers.device)
    padded[: len(mine)] = mine
    return [text_of(row[:length]) for row, length in zip(mesh.gather(padded), lengths, strict=True)]


if __name__ == "__main__":
    run_rank(plan, PlanSpec)
