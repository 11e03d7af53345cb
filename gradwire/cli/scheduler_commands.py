"""`gradwire plan` and `gradwire simulate`."""

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gradwire.cli.console import mistakes, progress_bars, show_and_write
from gradwire.cli.option_groups import Play, PricedTraining, ProfiledJob
from gradwire.cli.run_setup import cluster_of, leads, run_folder, writing_to
from gradwire.cli.wanted import described
from gradwire.lab.built_in_jobs import BUILT_IN
from gradwire.lab.jobs.plan_job import MOST_STEPS, Planned, PlanSpec, plan
from gradwire.lab.jobs.plan_job import candidates as candidates_of
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.runner import Runner, runner
from gradwire.lab.network.link import PCIE_3, Link
from gradwire.lab.play_spec import PlaySpec, check_links
from gradwire.lab.saved_files import saved
from gradwire.plans import Plan, from_file
from gradwire.report import plan_report, simulation_report
from gradwire.report.computed_on import doubt, processor, this_machines
from gradwire.report.text_table import figure
from gradwire.report.training_cost import TrainingCost
from gradwire.schedule.cluster import Cluster
from gradwire.schedule.link_costs import latency_of
from gradwire.schedule.profile import Profile
from gradwire.schedule.simulate import Outcome, lacks_scatter_reduce, simulate
from gradwire.tuner.candidate_plans import check_wanted


def find_plan(
    trained: ProfiledJob,
    hosts: int | None,
    link: str | None,
    wanted: dict[str, Any],
    seed: int,
    device: str,
    play: Play,
    training: PricedTraining,
    out: Path,
) -> None:
    """Finds the plan for a task on a network, or on a cluster to play, and what a training costs with it if that is
    asked for; `wanted` has `candidates`, `fidelity`, `objective` and `rules`."""
    with mistakes():
        cost = TrainingCost.of(**vars(training), device=device)
        # what can be refused is refused before ranks start
        cluster, played = _where(hosts, link, device, play)
        chosen = described(**vars(trained))
        named = wanted["candidates"]
        wanted = wanted | {"candidates": candidates_of(named) if named else []}
        spec = PlanSpec(task=chosen.task, options=list(chosen.options), seed=seed, play=played, **wanted)
        gpus = (played.cluster if played else cluster).ranks
        spec.check(gpus)
    # ranks measure; the process that leads writes and shows
    with runner(cluster) as ranks:
        home = ranks.agreed(lambda: run_folder(out, f"plan-{spec.task}"))
        with writing_to(home):
            if planned := _plan(spec, ranks):
                where = f"{played} on {this_machines(device)}" if played else cluster
                title, doubts = f"A plan for {spec.task}: {where}", doubt(device, play.gpus_per_host)
                show_and_write(
                    plan_report.in_terminal(planned, gpus, cost, doubts),
                    lambda: plan_report.write(home, title, planned, gpus, cost, doubts),
                )


def predict(
    job: str,
    ranks: str,
    links: str,
    play: Play,
    every: int,
    objective: Any,
    training: PricedTraining,
    out: Path,
) -> None:
    """Predicts a job's step time on clusters, whose hosts are as `play` says, its plans by an objective, if one is
    given, and what a training costs if that is asked for."""
    with mistakes():
        # nothing is played
        PlaySpec.of(None, typed=True, different=play.different, jitter=play.jitter, slow_rank=play.slow_rank)
        # the profile, and the clusters to predict
        measured, chosen = read_job(job, objective)
        cost = TrainingCost.of(**vars(training), device=measured.device)
        clusters = _clusters(measured, ranks, links, play)
    # ranks that were started beforehand would all predict the same
    if not leads():
        return
    origin = BUILT_IN[job].origin if job in BUILT_IN else f"profiled on a {processor(measured.device)}"
    between = [cluster.latency_s for cluster in clusters if cluster.hosts > 1]
    facts = {
        "job": job,
        "profiled": f"{measured.ranks} ranks, {origin}, {len(measured.slots)} tensors",
        **({"latency of a message": f"{figure(1e6 * between[0])} µs"} if between else {}),
        "inside a host": play.inside or PCIE_3,
        "objective": measured.objective,
        "command": shlex.join(["gradwire", *sys.argv[1:]]),
    }
    hosts = f"; {play.gpus_per_host} ranks a host" if play.gpus_per_host > 1 else ""
    title = f"{Path(job).stem}, {origin}{hosts}"
    peers = max(cluster.network.peers for cluster in clusters)
    slow = simulation_report.too_slow(lacks_scatter_reduce(measured, peers), peers)
    doubts = " ".join(filter(None, [doubt(measured.device, play.gpus_per_host), slow]))
    home = run_folder(out, "simulate")
    with writing_to(home):
        outcomes = _simulated(measured, clusters, chosen, every)
        sentences = simulation_report.verdict(outcomes), simulation_report.per_step_or_rounds(outcomes), doubts
        show_and_write(
            [title, simulation_report.table(outcomes, cost), *sentences],
            lambda: simulation_report.write(home, title, outcomes, facts, cost, doubts),
        )


def _clusters(measured: Profile, ranks: str, links: str, play: Play) -> list[Cluster]:
    """The clusters to predict, whose messages take as long as where the job was measured, if nothing else is said.

    Raises ValueError for what cannot be, and where it was measured on one host and there are several."""
    inside = Link.parse(play.inside or PCIE_3).bits_per_second / 8
    clusters = [
        Cluster(count, bytes_per_s, play.gpus_per_host, inside_bytes_per_s=inside)
        for bytes_per_s in [Link.parse(text).bits_per_second / 8 for text in links.split(",")]
        for count in _numbers(ranks)
    ]
    check_links(clusters, play.inside, play.latency_us, typed=True)
    # a single host sends nothing to others
    if all(cluster.hosts == 1 for cluster in clusters):
        return clusters
    latency_s = latency_of(measured) if play.latency_us is None else 1e-6 * play.latency_us
    return [replace(cluster, latency_s=latency_s) for cluster in clusters]


def _where(hosts: int | None, link: str | None, device: str, play: Play) -> tuple[LabCluster, PlaySpec | None]:
    """The ranks that run, and the cluster of which each plays one rank, if they do. Raises ValueError for both."""
    if play.play and (hosts is not None or link):
        raise ValueError("--play says ranks and link: leave --hosts and --link out")
    if played := PlaySpec.of(**vars(play), typed=True):
        return LabCluster(1, device=device), played
    return cluster_of(hosts, link, device), None


def _simulated(measured: Profile, clusters: list[Cluster], chosen: Plan | None, every: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with mistakes(), progress_bars() as progress:
        bar = progress.add_task("simulating", total=len(clusters), note="")
        for cluster in clusters:
            progress.update(bar, note=f"{cluster.ranks} ranks")
            outcomes += simulate(measured, cluster, plan=chosen, every=every)
            progress.advance(bar)
    return outcomes


def _plan(spec: PlanSpec, ranks: Runner) -> Planned | None:
    """The plan that the ranks found; None where another process leads."""
    lines: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder, progress_bars() as progress:
        bar = progress.add_task("planning", total=MOST_STEPS, note="starting")

        def follow(line: dict[str, Any]) -> None:
            lines.append(line)
            progress.update(bar, completed=line.get("step", MOST_STEPS), note=line.get("doing", "done"))

        ranks.run(plan, spec, Path(folder, "steps.jsonl"), follow)
    return Planned.from_line(lines[-1]) if leads() else None


def read_job(job: str, objective: Any) -> tuple[Profile, Plan | None]:
    """A job's profile, with an objective if one is given, and its plan if it has one. Raises ValueError for what cannot
    be predicted."""
    measured, chosen = _read(job)
    if any(candidate.way.rule for candidate in measured.candidates):
        raise ValueError(f"{job} was planned under rules by layer, which are not searched for other clusters")
    if objective:
        check_wanted((), None, objective)
        measured = replace(measured, objective=objective)
    if chosen:
        measured.choices(chosen)
    return measured, chosen


def _read(job: str) -> tuple[Profile, Plan | None]:
    """A profile; for a file with a plan, that plan and the profile beside it."""
    if job in BUILT_IN:
        return BUILT_IN[job].profile(), None
    if not Path(job).suffix and not Path(job).exists():
        raise ValueError(
            f"there is no file named {job!r}, nor a built-in job: there are {', '.join(BUILT_IN)}; `gradwire plan` "
            "writes profile.json for a model of your own"
        )
    match from_file(job, json.loads):
        case {"groups": _}:
            return saved(Profile, Path(job).with_name("profile.json")), saved(Plan, job)
        case _:
            return saved(Profile, job), None


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        if not part.strip().isdecimal():
            raise ValueError(f"--ranks takes whole numbers separated by commas, such as 8,64, not {part!r}")
        yield int(part)
