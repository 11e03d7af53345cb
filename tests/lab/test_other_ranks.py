"""The ranks beside a played one: how late each is, and which payloads it sends."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gradwire as gw
from gradwire import tuner
from gradwire.frontends.handle import Handle
from gradwire.lab.jobs import bench_job, plan_job
from gradwire.lab.jobs.bench_job import BenchSpec, bench
from gradwire.lab.jobs.plan_job import Planned, PlanSpec, _played, plan
from gradwire.lab.jobs.timed_model import TimedModel
from gradwire.lab.launch.rank_job import Peers
from gradwire.lab.other_ranks import OtherRanks
from gradwire.lab.play_spec import PlaySpec
from gradwire.lab.played_cluster import PlayedCluster
from gradwire.lab.workloads.make_task import make_task
from gradwire.runtime.trace import Trace
from gradwire.transports import Done, Mesh
from gradwire.transports.card import CPU
from gradwire.tuner.step_times import MOST_UNRECORDED
from gradwire.tuner.trials import SETTLE
from tests.lab import test_played

SPEC = PlaySpec.read("8@1gbit")


def test_the_slowest_rank_is_agreed_and_seeded() -> None:
    assert OtherRanks().behind(64, 0, 0) == 0.0
    assert OtherRanks(slow_rank=1.25).behind(64, 0, 7) == pytest.approx(0.25)
    own = [OtherRanks(jitter=0.1).behind(64, 0, step) for step in range(200)]
    assert own == [OtherRanks(jitter=0.1).behind(64, 0, step) for step in range(200)]
    assert own != [OtherRanks(jitter=0.1).behind(64, 1, step) for step in range(200)]
    # the largest of 63 normal draws is 2.3 deviations off, on average
    assert sum(own) / len(own) == pytest.approx(0.23, rel=0.1)
    assert min(own) >= 0.0
    few = [OtherRanks(jitter=0.1).behind(2, 0, step) for step in range(2000)]
    assert sum(few) / len(few) == pytest.approx(0.04, rel=0.1)


def test_ranks_that_meet_every_30_steps_wait_for_the_slowest_sum_of_30() -> None:
    """Jitter averages out in between; a rank that is always slow is 30 times as late."""
    rounds = [OtherRanks(jitter=0.1).behind(64, 0, step, 30) for step in range(100)]
    assert sum(rounds) / len(rounds) == pytest.approx(0.23 * 30**0.5, rel=0.1)
    assert OtherRanks(slow_rank=1.5).behind(64, 0, 0, 30) == pytest.approx(15)
    waited: list[float] = []
    played = PlayedCluster(replace(SPEC, others=OtherRanks(slow_rank=1.5)))
    played._slowest.carry = lambda seconds, *_: (waited.append(seconds), Done())[1]  # pyright: ignore
    for step in range(60):
        played.wait_for_slowest(0.01, 30, step, CPU)
    assert waited == [pytest.approx(0.15)] * 2


@pytest.mark.parametrize(
    "options", [{"jitter": -0.1}, {"jitter": inf}, {"slow_rank": 0.5}, {"slow_rank": float("nan")}]
)
def test_what_cannot_be_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="such as"):
        OtherRanks(**options)  # pyright: ignore[reportArgumentType]


def test_a_step_waits_for_the_slowest_rank() -> None:
    """For as long as it is behind, in seconds of this rank's own step; on a card of its own, so on any device."""
    waited: list[float] = []

    def carry(seconds: float, device: torch.device, arrive: Callable[[], None]) -> Done:
        waited.append(seconds)
        return Done()

    for others in (OtherRanks(), OtherRanks(slow_rank=1.5)):
        played = PlayedCluster(replace(SPEC, others=others))
        played._slowest.carry = carry  # pyright: ignore[reportAttributeAccessIssue]
        played.wait_for_slowest(0.04, 1, 0, CPU)
    assert waited == [pytest.approx(0.02)]


def test_batches_take_turns_where_payloads_are_to_differ() -> None:
    compressors = gw.Interleaved(gw.TopK(0.1), gw.TopK(0.2), 3), gw.ACPSGD(4)
    different = PlayedCluster(replace(SPEC, others=OtherRanks(different=True)))
    assert PlayedCluster(SPEC).begin(compressors) == 1
    assert different.begin(compressors) == 4 * 6 + 1
    assert different.begin([]) == 5


@pytest.mark.parametrize(("others", "waits"), [(OtherRanks(different=True), False), (OtherRanks(slow_rank=1.5), True)])
def test_planning_has_the_same_other_ranks(others: OtherRanks, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[tuple[bool, int]] = []
    monkeypatch.setattr(
        PlayedCluster, "wait_for_slowest", lambda self, alone_s, every, step, device: waited.append((alone_s > 0, step))
    )
    options = [f"function={test_played.__file__}:make"]
    play = replace(SPEC, others=others)
    spec = PlanSpec(task="own", options=options, seed=0, candidates=["acpsgd:4"], play=play)
    running = Peers(0, 1, CPU, gw.SizeRecorder(world=2))
    peers, late = _played(spec, make_task("own", options), spec.controller(), running)
    late(3, CPU)
    assert (peers.world, waited) == (8, [(waits, 3)])
    between = Mesh.of(peers.transport).replica
    assert isinstance(between, gw.Played)
    # payloads of ACP-SGD have two forms in turn
    assert (between.others.period if between.others else None) == (None if waits else 2)


def test_ddp_by_itself_is_planned_and_predicted_as_it_was_measured_before_any_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No plan is worth its thread, and what trials teach is absurd."""
    monkeypatch.setattr(tuner.trials, "CLEARLY", 0.0)
    monkeypatch.setattr(tuner.trials, "FAR", inf)
    monkeypatch.setattr(tuner.candidate_plans, "calibrated", lambda profile, *_: replace(profile, forward_s=1e3))
    options = [f"function={test_played.__file__}:make"]
    spec = PlanSpec(task="own", options=options, seed=0, candidates=["bf16"], play=PlaySpec.read("4@10gbit"))
    lines: list[dict[str, Any]] = []
    plan(spec, Peers(0, 1, CPU, gw.SizeRecorder(world=1)), lines.append)
    planned = Planned.from_line(lines[-1])
    assert planned.plan == gw.NATIVE
    assert {group.compressor for group in planned.shown.groups} == {gw.FP32()}
    assert planned.tried.keys() > {gw.NATIVE}
    assert {"encode", "wire"} <= {span.lane for span in planned.timeline.spans}
    assert planned.profile.forward_s < 1e3


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_chosen_plan_is_shown_once_it_is_recorded(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it is from its seventh step on: steps took twice as long in the picture as in the decision."""
    begun: list[int] = []
    before: list[int] = []
    trace = Handle.trace

    def traced(handle: Handle, steps: int) -> Trace:
        before.append(begun[-1] + 1)
        return trace(handle, steps)

    monkeypatch.setattr(
        PlayedCluster, "wait_for_slowest", lambda self, alone_s, every, step, device: begun.append(step)
    )
    monkeypatch.setattr(Handle, "trace", traced)
    monkeypatch.setattr(plan_job, "on_host", lambda device: not on_gpu)
    options = [f"function={test_played.__file__}:make"]
    spec = PlanSpec(task="own", options=options, seed=0, candidates=["bf16"], play=SPEC)
    lines: list[dict[str, Any]] = []
    plan(spec, Peers(0, 1, CPU, gw.SizeRecorder(world=1)), lines.append)
    choosing = sum("step" in line for line in lines)
    assert before == [choosing + plan_job.IN_FORCE + SETTLE + on_gpu * MOST_UNRECORDED]


@pytest.mark.parametrize(("budget_s", "expected"), [(0.0, [5, 8]), (1e9, [40, 64])])
def test_where_steps_are_long_few_are_made(
    budget_s: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each configuration made 41 for its curve, however long they took, before a budget counted."""
    monkeypatch.setattr(bench_job, "TURN_S", budget_s)
    taken: list[TimedModel] = []
    step = TimedModel._step
    monkeypatch.setattr(TimedModel, "_step", lambda timed: (taken.append(timed), step(timed)))
    options = [f"function={test_played.__file__}:make"]
    names = {"configurations": ["nocomm", "dense"], "steps": 20, "repeats": 1, "play": SPEC}
    spec, lines = BenchSpec(task="own", options=options, seed=0, **names), list[dict[str, Any]]()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        bench(spec, Peers(0, 1, CPU, gw.SizeRecorder(world=1)), lines.append)
    finally:
        dist.destroy_process_group()
    # two, one at each point and two that are timed; nocomm has one point
    assert [*Counter(taken).values()] == expected
    made = 20 if budget_s else 1
    assert [len(line.get("step_ms", [])) for line in lines] == [0, made, 0, 0, 0, 0, made]
    done = [line[bench_job.OF_TURN] for line in lines if "step_ms" not in line]
    assert done[1:] == sorted(done[1:])


class _Settled(Exception):
    pass


@pytest.mark.parametrize("configuration", ["auto", "topk:0.1@planned"])
def test_a_plan_is_chosen_beside_the_ranks_that_it_is_timed_beside(
    configuration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was chosen beside ranks that are never late and send what this one does."""
    seen: list[tuple[bool, bool]] = []
    late: list[int] = []
    monkeypatch.setattr(PlayedCluster, "wait_for_slowest", lambda *given: late.append(1))

    def settle(timed: TimedModel) -> None:
        timed.late(0, CPU)
        between = Mesh.of(timed._replica.peers.transport).replica
        seen.append((bool(late), isinstance(between, gw.Played) and between.others is not None))
        raise _Settled

    monkeypatch.setattr(TimedModel, "settle", settle)
    play = replace(SPEC, others=OtherRanks(different=True, slow_rank=1.5))
    options = [f"function={test_played.__file__}:make"]
    spec = BenchSpec(task="own", options=options, seed=0, configurations=[configuration], steps=1, repeats=1, play=play)
    with pytest.raises(_Settled):
        bench(spec, Peers(0, 1, CPU, gw.SizeRecorder(world=1)), lambda line: None)
    assert seen == [(True, True)]
