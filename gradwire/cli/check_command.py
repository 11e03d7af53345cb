"""`gradwire simulate --play`: predicted steps beside those of the same plans as they are played."""

import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from gradwire.cli.bench_command import headed, time_turns
from gradwire.cli.console import mistakes, show_and_write
from gradwire.cli.option_groups import Play, PricedTraining, ProfiledJob
from gradwire.cli.run_setup import run_folder, writing_to
from gradwire.cli.scheduler_commands import read_job
from gradwire.cli.wanted import described
from gradwire.lab.configuration import Configuration, check_plans
from gradwire.lab.experiments.training import Training
from gradwire.lab.jobs.bench_job import BenchSpec, TimedSteps
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.runner import runner
from gradwire.lab.names import NOCOMM, PLAN, TIMED_STEPS, TURNS
from gradwire.lab.play_spec import PlaySpec
from gradwire.lab.workloads.make_task import make_task
from gradwire.report import check_report
from gradwire.report.computed_on import doubt, this_machines
from gradwire.report.report_files import write_json
from gradwire.report.timing import summarize
from gradwire.report.training_cost import TrainingCost
from gradwire.schedule.simulate import Outcome, simulate


def check(
    job: str,
    play: Play,
    objective: Any,
    trained: ProfiledJob,
    seed: int,
    device: str,
    priced: PricedTraining,
    out: Path,
) -> None:
    """Predicts a job's steps on a cluster to play, and plays the same plans. Shows what a training costs if that is
    asked for."""
    with mistakes():
        if not (trained.task or trained.model):
            raise ValueError(f"--play trains what {job} was measured on: give its --task or --model")
        profile, chosen = read_job(job, objective)
        played, cost = PlaySpec.read(**vars(play), typed=True), TrainingCost.of(**vars(priced), device=device)
        running = LabCluster(1, device=device)
        training = described(**vars(trained))
        outcomes = list(simulate(profile, played.cluster, plan=chosen))
        # refuse before anything is played
        planned = [Configuration(each.way, plan=each.plan) for each in outcomes]
        check_plans(planned, lambda: make_task(training.task, training.options).build_model(seed))
    with runner(running) as ranks:
        home = ranks.agreed(lambda: run_folder(out, "simulate"))
        with writing_to(home):
            spec = _spec(training, played, [_saved(each, home) for each in outcomes], seed)
            title = f"{Path(job).stem} on {this_machines(device)}: {played}"
            time_turns(
                spec, ranks, partial(_show, home, title, doubt(device, play.gpus_per_host), outcomes, cost), "playing"
            )


def _spec(training: Training, played: PlaySpec, plans: list[str], seed: int) -> BenchSpec:
    return BenchSpec(
        task=training.task,
        options=list(training.options),
        configurations=[NOCOMM, *plans],
        steps=TIMED_STEPS,
        repeats=TURNS,
        seed=seed,
        play=played,
    )


def _saved(outcome: Outcome, home: Path) -> str:
    """The plan of a way, as a configuration; its file may be trained with."""
    path = home / f"{re.sub(r'[^a-zA-Z0-9_.=]+', '-', outcome.way).strip('-')}.json"
    assert outcome.plan
    outcome.plan.save(path)
    return f"{PLAN}{path}"


def _show(
    home: Path,
    title: str,
    doubt: str,
    outcomes: list[Outcome],
    cost: TrainingCost | None,
    samples: list[TimedSteps],
    stopped: str,
) -> None:
    alone, *timings = summarize(samples)
    predicted = [("no communication", outcomes[0].alone_s), *((each.way, each.step_s) for each in outcomes)]
    rows = [
        check_report.Checked(way, 1e3 * step_s, timing.step_ms.median)
        for (way, step_s), timing in zip(predicted, [alone, *timings], strict=False)
    ]
    title = headed(title, stopped)

    def write() -> list[Path]:
        write_json(path := home / "check.json", {"title": title, "rows": [asdict(row) for row in rows]})
        return [path]

    verdict = f"{check_report.verdict(rows)} {doubt}".strip()
    show_and_write([title, check_report.table(rows, outcomes[0].cluster.ranks, cost), verdict], write)
