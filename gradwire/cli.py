"""The command line: list, train, bench, demo."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gradwire.lab.bench import BenchSpec, Sample, bench
from gradwire.lab.catalogue import catalogue, make_task
from gradwire.lab.comparison import Comparison, circumstances
from gradwire.lab.configuration import NOCOMM, Configuration, parse_all
from gradwire.lab.join import joined
from gradwire.lab.launch import RankFailed
from gradwire.lab.link import Link
from gradwire.lab.network import NetworkUnavailable
from gradwire.lab.results import Record, Run
from gradwire.lab.runner import Place, Runner, runner
from gradwire.lab.train import TrainSpec, train
from gradwire.report import tables, training
from gradwire.report.scalars import Scalars
from gradwire.report.timing import summarize

_WIDTH_IN_FILES = 150

app = typer.Typer(
    help="Compressed data-parallel training, compared with dense on real tasks and slow links.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_CONFIGURATION_HELP = "dense, or compressor[:value,...][+memory][+communicator], such as topk:0.01+residual"
_LR_HELP = "learning rate; text: AdamW, 0.001; images: SGD, 0.01 (too much for signsgd and signum: try 0.001)"

Configurations = Annotated[list[str], typer.Argument(metavar="CONFIG...", help=_CONFIGURATION_HELP)]
Hosts = Annotated[int | None, typer.Option(help="ranks to start, each with a link of its own; by default 2")]
Rate = Annotated[str | None, typer.Option("--link", help="emulated link, such as 100mbit; else loopback")]
Device = Annotated[str, typer.Option(help="cpu, or cuda with one GPU per rank")]
Seed = Annotated[int, typer.Option(help="of the model, the order of the data and the compressors")]
Options = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="option of the task; see `list`")
]


class Mistake(typer.TyperException):
    """The user's; told in one line, with exit code 2."""


@app.command("list")
def list_() -> None:
    """Show every compressor, memory, communicator and task, with paper and defaults."""
    for kind, entries in catalogue().items():
        _console().print(tables.catalogue(kind, entries))


@app.command("train")
def train_(
    configurations: Configurations,
    task: Annotated[str, typer.Option(help="what to train on; see `list`")] = "lm",
    hosts: Hosts = None,
    link: Rate = None,
    steps: Annotated[int, typer.Option(help="steps to train each configuration for")] = 300,
    options: Options = None,
    folder: Annotated[Path | None, typer.Option(help="where the task's files are")] = None,
    lr: Annotated[float | None, typer.Option(help=_LR_HELP)] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option(help="where the run's folder goes")] = Path("runs"),
) -> None:
    """Train configurations on one task; write metrics, pictures and a report to runs/."""
    with _mistakes():
        place = _place(hosts, link, device)
        comparison = Comparison(
            configurations=parse_all(configurations),
            task=task,
            options=[*(options or []), *([f"folder={folder}"] if folder else [])],
            ranks=place.ranks,
            steps=steps,
            lr=lr,
            seed=seed,
        )
    _compare(comparison, place, out)


@app.command("bench")
def bench_(
    configurations: Configurations,
    model: Annotated[str, typer.Option(help="vgg16, resnet18, lstm or gpt")] = "vgg16",
    hosts: Hosts = None,
    link: Rate = None,
    steps: Annotated[int, typer.Option(help="steps to time in each repeat")] = 20,
    repeats: Annotated[int, typer.Option(help="turns that each configuration gets")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all figures to this file")] = None,
    seed: Seed = 0,
    device: Device = "cpu",
) -> None:
    """Time the steps of configurations that take turns, always with `nocomm`: no communication at all."""
    with _mistakes():
        place = _place(hosts, link, device)
        names = [configuration.text for configuration in parse_all(configurations)]
        spec = BenchSpec(
            task="synthetic",
            options=[f"model={model}"],
            configurations=[NOCOMM, *(name for name in names if name != NOCOMM)],
            steps=steps,
            repeats=repeats,
            seed=seed,
        )
        make_task(spec.task, spec.options)
        if json_file and not json_file.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {json_file.parent} for {json_file.name}")
    with runner(place) as ranks:
        samples = _time(spec, ranks)
    if not ranks.leads:
        return
    timings = summarize(samples)
    heading = f"{model}, {place}: {repeats} x {steps} steps; ms per step, where wires that overlap add up"
    _console().print(heading, highlight=False)
    _console().print(tables.timings(timings).to_rich())
    if json_file:
        facts = {"model": model, "steps": steps, "repeats": repeats} | circumstances(place)
        figures = {"timings": [t.to_json() for t in timings], "samples": [s.to_line() for s in samples]}
        json_file.write_text(json.dumps(facts | figures, indent=1) + "\n")


@app.command()
def demo() -> None:
    """Train a small language model on 4 hosts joined at 100 Mbit/s, dense and compressed, in 5 minutes."""
    with _mistakes():
        place = _demo_place()
        comparison = Comparison(
            configurations=parse_all(["dense", "bf16", "topk:0.02", "powersgd:8"]),
            task="lm",
            options=["width=160", "batch=4"],
            ranks=place.ranks,
            steps=120,
        )
    _compare(comparison, place, Path("runs"))


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 2 for the user's mistake, 1 for a rank that failed."""
    try:
        return app(arguments, standalone_mode=False) or 0
    except (typer.TyperException, NetworkUnavailable) as mistake:
        return _tell(mistake, 2)
    except RankFailed as failure:
        return _tell(failure, 1)


def _tell(error: Exception, exit_code: int) -> int:
    message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    print(f"gradwire: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


@contextmanager
def _mistakes() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise Mistake(str(error)) from error


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _place(hosts: int | None, link: str | None, device: str) -> Place:
    ranks = int(os.environ["WORLD_SIZE"]) if joined() else 2
    return Place(ranks if hosts is None else hosts, Link.parse(link) if link else None, device)


def _demo_place() -> Place:
    place = Place(4, Link.parse("100mbit"))
    try:
        with runner(place):
            return place
    except NetworkUnavailable as reason:
        print(f"{reason}; so this goes over loopback, where bytes cost next to nothing")
        return Place(4)


def _compare(comparison: Comparison, place: Place, out: Path) -> None:
    folder = out / f"{datetime.now():%Y%m%d-%H%M%S}-{comparison.task}"
    with runner(place) as ranks, _progress() as progress:
        runs = [_train(name, spec, ranks, folder, progress) for name, spec in comparison.specs()]
    if not ranks.leads:
        return
    facts = comparison.facts() | circumstances(place)
    metric = comparison.make_task().metric
    paths = training.write(folder, runs, metric, facts)
    _console().print(tables.training(runs, metric).to_rich())
    print(*paths, sep="\n")


def _train(configuration: Configuration, spec: TrainSpec, ranks: Runner, folder: Path, progress: Progress) -> Run:
    run, home = Run(configuration.text), folder / configuration.slug
    if not ranks.leads:
        ranks.run(train, spec, home, lambda line: None)
        return run
    home.mkdir(parents=True)
    bar = progress.add_task(run.configuration, total=spec.steps, note="starting")
    with Scalars(home) as scalars:

        def follow(line: dict[str, Any]) -> None:
            record = Record.from_line(line)
            run.records.append(record)
            scalars.add(record)
            progress.update(bar, completed=record.step, note=f"loss {record.loss:.3f}")

        ranks.run(train, spec, home / "metrics.jsonl", follow)
    return run


def _time(spec: BenchSpec, ranks: Runner) -> list[Sample]:
    samples: list[Sample] = []
    with TemporaryDirectory() as folder, _progress() as progress:
        turns = spec.repeats * len(spec.configurations)
        bar = progress.add_task("timing", total=turns, note="starting", visible=ranks.leads)

        def follow(line: dict[str, Any]) -> None:
            samples.append(Sample.from_line(line))
            progress.update(bar, advance=1, note=samples[-1].configuration)

        ranks.run(bench, spec, Path(folder, "samples.jsonl"), follow)
    return samples


if __name__ == "__main__":
    sys.exit(main())
