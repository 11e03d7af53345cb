"""The command line's scheduler: plan and simulate."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gradwire.cli.arguments import (
    Device,
    Folder,
    Hosts,
    Options,
    Out,
    Rate,
    Seed,
    TaskName,
    place_of,
    run_folder,
)
from gradwire.cli.console import console, mistakes, progress_bars
from gradwire.cli.recipe import OwnModel
from gradwire.cli.training import described
from gradwire.lab.catalogue import make_task
from gradwire.lab.link import Link
from gradwire.lab.planning import MOST_STEPS, Planned, PlanSpec, candidates, plan
from gradwire.lab.runner import Runner, runner
from gradwire.plans import Plan, from_file
from gradwire.report import planning, simulation
from gradwire.schedule.profile import Profile
from gradwire.schedule.published import MODELS, profile
from gradwire.schedule.simulate import Cluster, Outcome, latency_of, simulate

_JOB_HELP = f"profile.json, or a plan.json beside one, as `plan` writes them; or, as published: {', '.join(MODELS)}"
_CANDIDATES_HELP = "separated by commas, such as bf16,topk:0.01; by default those that need no tuning"
_LATENCY_HELP = "microseconds of a message beside its bytes; by default as in the profile"


def plan_(
    task: TaskName = None,
    model: OwnModel = None,
    hosts: Hosts = None,
    link: Rate = None,
    accepted: Annotated[str | None, typer.Option("--candidates", help=_CANDIDATES_HELP)] = None,
    options: Options = None,
    folder: Folder = None,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = Path("runs"),
) -> None:
    """Find the fastest plan for a task on a network; write it, its profile and timelines to runs/."""
    with mistakes():
        place = place_of(hosts, link, device)
        if place.ranks < 2:
            raise ValueError("1 rank sends nothing and needs no plan: give 2 or more --hosts")
        wanted = described(task, model, None, folder).altered(options=options or [])
        spec = PlanSpec(
            task=wanted.task,
            options=list(wanted.options),
            seed=seed,
            candidates=candidates(accepted) if accepted else [],
        )
        next(make_task(spec.task, spec.options).batches(0, place.ranks, seed))
    with runner(place) as ranks:
        home = run_folder(out, f"plan-{spec.task}", ranks.leads)
        planned = _plan(spec, ranks, home)
    if planned:
        paths = planning.write(home, f"A plan for {spec.task}: {place}", planned)
        console().print(planning.why(planned).to_rich())
        print(*paths, sep="\n")


def simulate_(
    job: Annotated[str, typer.Argument(metavar="JOB", help=_JOB_HELP)],
    ranks: Annotated[str, typer.Option(help="numbers of ranks")] = "8,64,512",
    link: Annotated[str, typer.Option(help="links between hosts")] = "1gbit,10gbit,25gbit,100gbit",
    gpus_per_host: Annotated[int, typer.Option(help="ranks that share a host and its link")] = 1,
    inside: Annotated[str, typer.Option(help="what the ranks of a host are joined by; PCIe 3 has 96gbit")] = "96gbit",
    latency_us: Annotated[float | None, typer.Option(help=_LATENCY_HELP)] = None,
    out: Out = Path("runs"),
) -> None:
    """Predict a job's step time on clusters that you do not have, from its profile."""
    with mistakes():
        measured, chosen = _read(job)
        latency_s = latency_of(measured) if latency_us is None else 1e-6 * latency_us
        clusters = [
            Cluster(count, bytes_per_s, gpus_per_host, latency_s, Link.parse(inside).bits_per_second / 8)
            for bytes_per_s in [Link.parse(text).bits_per_second / 8 for text in link.split(",")]
            for count in _numbers(ranks)
        ]
        if chosen:
            measured.choices(chosen)
    home = run_folder(out, "simulate")
    outcomes: list[Outcome] = []
    with mistakes(), progress_bars() as progress:
        bar = progress.add_task("simulating", total=len(clusters), note="")
        for cluster in clusters:
            progress.update(bar, note=f"{cluster.ranks} ranks")
            outcomes += simulate(measured, cluster, plan=chosen)
            progress.advance(bar)
    facts = {
        "job": job,
        "profiled": f"{measured.ranks} ranks, {measured.device}, {len(measured.slots)} tensors",
        "latency of a message": f"{1e6 * latency_s:.0f} µs",
        "inside a host": inside,
        "command": shlex.join(["gradwire", *sys.argv[1:]]),
    }
    title = f"{Path(job).stem}: {gpus_per_host} ranks a host" if gpus_per_host > 1 else Path(job).stem
    console().print(simulation.table(outcomes).to_rich())
    print(*simulation.write(home, title, outcomes, facts), sep="\n")


def _plan(spec: PlanSpec, ranks: Runner, home: Path) -> Planned | None:
    """What the ranks found; None where another process leads."""
    lines: list[dict[str, Any]] = []
    with progress_bars() as progress:
        bar = progress.add_task("planning", total=MOST_STEPS, note="starting", visible=ranks.leads)

        def follow(line: dict[str, Any]) -> None:
            lines.append(line)
            progress.update(bar, completed=line.get("step", MOST_STEPS), note=line.get("doing", "done"))

        ranks.run(plan, spec, home / "steps.jsonl", follow)
    return Planned.from_line(lines[-1]) if ranks.leads else None


def _read(job: str) -> tuple[Profile, Plan | None]:
    """A profile, with a plan where the file is one."""
    if job in MODELS:
        return profile(job), None
    data = from_file(job, json.loads)
    if isinstance(data, dict) and "groups" in data:
        return Profile.load(Path(job).with_name("profile.json")), Plan.load(job)
    return Profile.load(job), None


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        if not part.strip().isdecimal():
            raise ValueError(f"--ranks takes whole numbers separated by commas, such as 8,64, not {part!r}")
        yield int(part)
