"""A rank's step-time job: configurations in turns, so that a drift of the machine hits them all."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, Self

from gradwire.compressors import Compressor
from gradwire.lab.configuration import parse
from gradwire.lab.curve import StepCurve
from gradwire.lab.jobs.measured_model import MeasuredModel
from gradwire.lab.jobs.timed_model import TimedModel, curve_s
from gradwire.lab.launch.rank_job import Log, Peers, run_rank
from gradwire.lab.played_cluster import PlayedCluster, PlayedSpec
from gradwire.lab.results import Totals
from gradwire.lab.workloads.make_task import make_task
from gradwire.schedule import Timeline
from gradwire.tuner import Auto
from gradwire.tuner.candidate_plans import ways_by

TURN_S = 30.0
"""Seconds of the curve, and of the steps, of a turn on a played cluster, if more than one step fits in."""
OF_TURN = "of turn"
"""The share of a turn that is done, in lines between those of timed steps; "seconds" beside it is about how long one
turn of every configuration takes together."""


@dataclass(frozen=True, kw_only=True)
class BenchSpec(PlayedSpec):
    """Configurations to time on one task, `steps` steps at a time, of local steps whole rounds. Raises ValueError for
    less than one."""

    configurations: list[str]
    """As texts."""
    steps: int
    """To time at a time."""
    repeats: int
    """Turns of each configuration."""
    autocast: str | None = None
    """bf16 or fp16."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.repeats < 1:
            raise ValueError(f"{self.repeats} x {self.steps} steps cannot be timed: give 1 or more of both")


@dataclass(frozen=True)
class TimedSteps:
    """Rank 0's timings of one configuration in one repeat, warm-up left out; totals are of these steps."""

    configuration: str
    repeat: int
    step_ms: list[float]
    totals: Totals
    curve: StepCurve | None = None
    """On a played cluster."""
    timeline: Timeline | None = None
    """Of one more step there, in the first repeat, where Gradwire reduces every step."""

    def to_line(self) -> dict[str, Any]:
        return asdict(self) | {"timeline": self.timeline and self.timeline.to_data()}

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> Self:
        curve = StepCurve.from_line(line["curve"]) if line["curve"] else None
        timeline = Timeline.from_data(line["timeline"]) if line["timeline"] else None
        totals = Totals(**line["totals"])
        return cls(line["configuration"], line["repeat"], line["step_ms"], totals, curve, timeline)


def bench(spec: BenchSpec, peers: Peers, log: Log) -> None:
    """Times every configuration `spec.repeats` times, each time on a fresh model; `log` gets a `TimedSteps` each and,
    on a played cluster, lines with OF_TURN before.

    Raises RuntimeError where a configuration leaves replicas that differ."""
    task = make_task(spec.task, spec.options)
    played = spec.played()
    peers = played.peers(peers) if played else peers
    # the same batches again and again, mostly one: loading data is not what is timed
    stream = task.batches(peers.rank, peers.world, spec.seed)
    batches = [next(stream)]
    alone_s = 0.0
    configurations = [parse(text) for text in spec.configurations]

    def tell(done: float, step_s: float) -> None:
        log({OF_TURN: done, "seconds": sum(curve_s(step_s, each.every, TURN_S) for each in configurations)})

    for repeat in range(spec.repeats):
        # configurations take turns, so that a slow minute of the machine hits all of them
        for index, configuration in enumerate(configurations):
            model, options = task.build_model(spec.seed), (spec.seed, spec.shard, spec.autocast)
            with MeasuredModel(model, configuration, peers, *options) as replica:
                timed = TimedModel(replica, task, batches)
                # the other ranks first: beside them a plan is chosen, too
                if played:
                    batches += islice(stream, max(0, played.begin(_compressors(replica)) - len(batches)))
                # without communication no rank waits for others
                if played and not configuration.silent:
                    timed.late = partial(played.wait_for_slowest, alone_s, replica.every)
                timed.settle()
                if played:
                    curve, step_ms, totals = _play(played, timed, spec.steps, tell)
                else:
                    curve, (step_ms, totals) = None, timed.time(spec.steps)
                timeline = timed.timeline() if played and repeat == 0 else None
                if not configuration.silent:
                    replica.hash()
                # a plan is chosen once
                configurations[index] = configuration.settled(replica.plan)
            alone_s = median(step_ms) / 1e3 if configuration.silent else alone_s
            log(TimedSteps(configuration.text, repeat, step_ms, totals, curve, timeline).to_line())


def _compressors(replica: MeasuredModel) -> list[Compressor]:
    """Those of the plan or, where one is to be chosen, of all candidates."""
    match replica.controller:
        case Auto() as choosing:
            return [way.compressor for way in ways_by(choosing.rules, replica.peers.world)]
        case _:
            return [group.compressor for group in replica.plan.groups] if replica.plan else []


def _play(
    played: PlayedCluster, timed: TimedModel, steps: int, tell: Callable[[float, float], None]
) -> tuple[StepCurve, list[float], Totals]:
    """The curve of a model's steps, and the milliseconds of as many as are wanted, or as fit in a turn; `tell`: see
    `TimedModel.curve`."""
    curve = timed.curve(played, TURN_S, tell)
    fitting = max(1, int(TURN_S / played.step_s(curve)))
    return curve, *timed.time(min(steps, fitting), warm_up=1)


if __name__ == "__main__":
    run_rank(bench, BenchSpec)
