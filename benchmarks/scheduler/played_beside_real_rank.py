"""A rank of `played_beside_real.py`: steps among real ranks and on a played card, in turns in one process."""

from contextlib import ExitStack
from dataclasses import dataclass

from gradwire.lab.configuration import parse
from gradwire.lab.jobs.bench_job import TURN_S, BenchSpec
from gradwire.lab.jobs.measured_model import MeasuredModel
from gradwire.lab.jobs.timed_model import TimedModel
from gradwire.lab.launch.rank_job import Log, Peers, run_rank
from gradwire.lab.workloads.make_task import make_task


@dataclass(frozen=True, kw_only=True)
class BesideSpec(BenchSpec):
    """Configurations to time among real and among played ranks."""

    curved: bool
    """Whether curves are measured as well."""


def beside(spec: BesideSpec, peers: Peers, log: Log) -> None:
    """Times `spec.steps` steps of both kinds, `spec.repeats` times; `log` gets a line for each configuration."""
    task, played = make_task(spec.task, spec.options), spec.played()
    assert played
    batches = [next(task.batches(peers.rank, peers.world, spec.seed))]
    kinds = {"real": peers, "played": played.peers(peers)}
    for configuration in map(parse, spec.configurations):
        with ExitStack() as stack:
            timed: dict[str, TimedModel] = {}
            for kind, ranks in kinds.items():
                model = MeasuredModel(task.build_model(spec.seed), configuration, ranks, spec.seed)
                timed[kind] = TimedModel(stack.enter_context(model), task, batches)
            curve = timed["played"].curve(played, TURN_S).to_line() if spec.curved else None
            step_ms: dict[str, list[float]] = {kind: [] for kind in kinds}
            for repeat in range(spec.repeats):
                for kind in list(kinds)[:: 1 if repeat % 2 else -1]:
                    step_ms[kind] += timed[kind].time(spec.steps, warm_up=2)[0]
        log({"configuration": configuration.text, "step_ms": step_ms, "curve": curve})


if __name__ == "__main__":
    run_rank(beside, BesideSpec)
