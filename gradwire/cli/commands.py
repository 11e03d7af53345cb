"""The command line: list, train, bench, plan, simulate, demo."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from signal import SIG_DFL, SIGHUP, SIGTERM, getsignal, signal
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from gradwire.cli import recipe as how
from gradwire.cli.arguments import (
    Device,
    Folder,
    Hosts,
    Options,
    Out,
    Rate,
    Seed,
    place_of,
    ranks_of,
    run_folder,
)
from gradwire.cli.console import console, mistakes, progress_bars
from gradwire.cli.schedule import plan_, simulate_
from gradwire.cli.training import compare, compare_suite, described, go_on, resumed
from gradwire.cli.training import demo as run_demo
from gradwire.lab import presets
from gradwire.lab.bench import BenchSpec, Sample, bench
from gradwire.lab.catalogue import catalogue
from gradwire.lab.cell import Cell, Effort
from gradwire.lab.comparison import circumstances
from gradwire.lab.configuration import PLAN, controlled
from gradwire.lab.launch import RankFailed
from gradwire.lab.link import LOOPBACK
from gradwire.lab.models import MODELS
from gradwire.lab.network import NetworkUnavailable
from gradwire.lab.runner import Place, Runner, runner
from gradwire.lab.suites import SUITES, Cuts, Row
from gradwire.lab.suites import suite as rows_of
from gradwire.lab.training_suites import TRAINING_SUITES, training_suite
from gradwire.report import suite as suites
from gradwire.report import tables
from gradwire.report.timing import summarize

app = typer.Typer(
    help="Compressed data-parallel training, compared with dense on real tasks and slow links.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_CONFIGURATION_HELP = "dense, or compressor[:value,...][+memory][+communicator], such as topk:0.01+residual"
_MODEL_HELP = (
    f"{', '.join(MODELS)}; or tiny-vgg16 (without a suite the default), -resnet18, -lstm, -gpt; or my.module:make"
)
_SUITE_HELP = f"instead of CONFIGs, what a published system ran: {', '.join(SUITES)}; --model picks some of its rows"
_TRAINING_SUITE_HELP = (
    f"instead of CONFIGs, what was published: {', '.join(TRAINING_SUITES)}; on the sets below --data, else in small"
)
_TASK_HELP = "what to train on, by default lm; see `list`. Of a suite, the task to keep"

Configurations = Annotated[list[str] | None, typer.Argument(metavar="CONFIG...", help=_CONFIGURATION_HELP)]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="one more to compare: a plan.json of `gradwire plan`")]
ControllerName = Annotated[
    str | None,
    typer.Option("--controller", metavar="NAME[:VALUE,...]", help="for each CONFIG that compresses; see `list`"),
]


@app.command("list")
def list_() -> None:
    """Show every compressor, memory, communicator, task and preset, with paper and defaults."""
    for kind, entries in (catalogue() | {"Presets": presets.entries()}).items():
        console().print(tables.catalogue(kind, entries))


@app.command("train")
def train_(
    configurations: Configurations = None,
    task: Annotated[str | None, typer.Option(help=_TASK_HELP)] = None,
    model: how.OwnModel = None,
    preset: how.Preset = None,
    suite: Annotated[str | None, typer.Option(help=_TRAINING_SUITE_HELP)] = None,
    hosts: Hosts = None,
    link: Rate = None,
    options: Options = None,
    folder: Folder = None,
    pretrained: how.Pretrained = None,
    steps: how.Steps = None,
    epochs: how.Epochs = None,
    optimizer: how.Optimizer = None,
    lr: how.LearningRate = None,
    momentum: how.Momentum = None,
    weight_decay: how.WeightDecay = None,
    schedule: how.Schedule = None,
    warm_up: how.WarmUp = None,
    clip: how.Clip = None,
    checkpoint_every: how.CheckpointEvery = None,
    resume: how.Resume = None,
    controller: ControllerName = None,
    plan: PlanFile = None,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = Path("runs"),
) -> None:
    """Train configurations on one task, a published training or a suite; write metrics, pictures and a report to
    runs/."""
    recipe = {
        "steps": steps, "epochs": epochs, "optimizer": optimizer, "lr": lr, "momentum": momentum,
        "weight_decay": weight_decay, "schedule": schedule, "warm_up": warm_up, "clip": clip,
    }  # fmt: skip
    chosen = (configurations, options, controller, plan, model, preset, pretrained)
    if resume:
        others = [*chosen, *recipe.values(), task, suite, hosts, link, folder, checkpoint_every, seed or None]
        others += [None if device == "cpu" else device, None if out == Path("runs") else out]
        with mistakes():
            comparison, place = resumed(resume, others)
        return go_on(resume, comparison, place)
    with mistakes():
        place = place_of(hosts, link, device)
        if suite and any(chosen):
            raise ValueError(f"suite {suite} has configurations and options of its own: give none")
        trainings = training_suite(suite, folder, task) if suite else [described(task, model, preset, folder)]
        texts = _texts(configurations, controller, plan, trainings[0].configurations)
        named = [*(options or []), *([f"pretrained={pretrained}"] if pretrained else [])]
        altered = [each.altered(options=named, configurations=texts, **recipe) for each in trainings]
        comparisons = [each.comparison(place.ranks, seed, checkpoint_every) for each in altered]
    if suite:
        return compare_suite(suite, comparisons, place, out)
    return compare(comparisons[0], place, out)


@app.command("bench")
def bench_(
    configurations: Configurations = None,
    model: Annotated[str | None, typer.Option(help=_MODEL_HELP)] = None,
    suite: Annotated[str | None, typer.Option(help=_SUITE_HELP)] = None,
    hosts: Hosts = None,
    link: Rate = None,
    layers: Annotated[int | None, typer.Option(help="of the model, where all are too many")] = None,
    batch: Annotated[int | None, typer.Option(help="samples per rank; by default the published ones")] = None,
    size: Annotated[int | None, typer.Option(help="pixels along an image's side, or tokens in a window")] = None,
    steps: Annotated[int, typer.Option(help="steps to time in each repeat")] = 20,
    repeats: Annotated[int, typer.Option(help="turns that each configuration gets")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all figures to this file")] = None,
    controller: ControllerName = None,
    plan: PlanFile = None,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option(help="where a suite's folder goes")] = Path("runs"),
) -> None:
    """Time the steps of configurations that take turns, always with `nocomm`: no communication at all."""
    effort = Effort(steps, repeats, seed, device)
    sizes = {"layers": layers, "batch": batch, "size": size}
    if suite:
        with mistakes():
            if configurations or json_file or controller or plan:
                raise ValueError(f"suite {suite} has configurations of its own and writes suite.json: give neither")
            rows = rows_of(suite, Cuts(model=model, ranks=hosts, link=link, **sizes))
        return _bench_suite(suite, rows, effort, out)
    with mistakes():
        if json_file and not json_file.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {json_file.parent} for {json_file.name}")
        if json_file and json_file.is_dir():
            raise ValueError(f"{json_file} is a folder: name a file for --json")
        cell = Cell(model=model or "tiny-vgg16", ranks=ranks_of(hosts), link=link or LOOPBACK, **sizes)
        texts = _texts(configurations, controller, plan)
    return _bench_cell(cell, texts, effort, json_file)


app.command("plan")(plan_)
app.command("simulate")(simulate_)


@app.command()
def demo() -> None:
    """Train a small language model on 4 hosts joined at 100 Mbit/s, dense and compressed, in 5 minutes."""
    run_demo()


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 2 for the user's mistake, 1 for a rank that failed."""
    with _ended_in_order():
        try:
            return app(arguments, standalone_mode=False) or 0
        except (typer.TyperException, NetworkUnavailable) as mistake:
            return _tell(mistake, 2)
        except (RankFailed, OSError) as failure:
            return _tell(failure, 1)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process as Ctrl-C does: temporary folders go, and what was measured is told."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    deadly = [number for number in (SIGTERM, SIGHUP) if getsignal(number) == SIG_DFL]  # nohup has SIGHUP ignored
    for number in deadly:
        signal(number, leave)
    try:
        yield
    finally:
        for number in deadly:
            signal(number, SIG_DFL)


def _tell(error: Exception, exit_code: int) -> int:
    message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    print(f"gradwire: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


def _texts(
    configurations: list[str] | None, controller: str | None, plan: Path | None, others: Sequence[str] = ()
) -> list[str]:
    """What is compared, as text. Raises ValueError for nothing at all, where there are no `others` to fall back on."""
    texts = [controlled(text, controller) for text in configurations or []] + ([f"{PLAN}{plan}"] if plan else [])
    if not texts and not others:
        raise ValueError("CONFIG is missing: name what to compare, or a --plan")
    return texts


def _bench_cell(cell: Cell, configurations: list[str], effort: Effort, json_file: Path | None) -> None:
    with mistakes():
        place, spec = cell.place(effort.device), cell.spec(configurations, effort)
    with runner(place) as ranks:
        _time(spec, ranks, partial(_tell_cell, cell, place, effort, json_file))


def _tell_cell(cell: Cell, place: Place, effort: Effort, json_file: Path | None, samples: list[Sample]) -> None:
    timings = summarize(samples)
    turns = f"{effort.repeats} x {effort.steps} steps"
    heading = f"{cell.title}, {place}: {turns}; ms per step, where wires that overlap add up"
    console().print(heading, highlight=False, markup=False)
    console().print(tables.timings(timings).to_rich())
    if json_file:
        facts = {"model": cell.title, "parameters": cell.parameters(), **asdict(effort)} | circumstances(place)
        figures = {"timings": [t.to_json() for t in timings], "samples": [s.to_line() for s in samples]}
        json_file.write_text(json.dumps(facts | figures, indent=1) + "\n")


def _bench_suite(name: str, rows: list[Row], effort: Effort, out: Path) -> None:
    """Cell after cell; what is measured is written after each, also of one that fails, and told in the end."""
    of = {cell: [row for row in rows if row.cell == cell] for cell in dict.fromkeys(row.cell for row in rows)}
    with mistakes():
        specs = {cell: cell.spec([row.configuration for row in mine], effort) for cell, mine in of.items()}
        places = {cell: cell.place(effort.device) for cell in of}
    titles = {cell: f"{number}/{len(of)} {cell.model}" for number, cell in enumerate(of, 1)}
    folder: Path | None = None
    measured: list[suites.Result] = []
    paths: list[Path] = []

    def keep(cell: Cell, place: Place, folder: Path, samples: list[Sample]) -> None:
        measured.extend(suites.results(of[cell], summarize(samples), effort))
        paths[:] = suites.write(folder, name, measured, asdict(effort) | circumstances(place))

    try:
        for place, cells in groupby(of, key=places.__getitem__):
            with runner(place) as ranks:  # once for a place: ranks that run already can meet only once
                folder = folder or run_folder(out, name, ranks.leads)
                for cell in cells:
                    _time(specs[cell], ranks, partial(keep, cell, place, folder), titles[cell])
    finally:
        if measured:
            console().print(suites.table(name, measured).to_rich())
            print(*paths, sep="\n")


def _time(spec: BenchSpec, ranks: Runner, keep: Callable[[list[Sample]], None], title: str = "timing") -> None:
    """Where this process leads, `keep` gets the samples, also those that were taken before a configuration fails."""
    samples: list[Sample] = []
    try:
        with TemporaryDirectory() as folder, progress_bars() as progress:
            turns = spec.repeats * len(spec.configurations)
            bar = progress.add_task(title, total=turns, note="starting", visible=ranks.leads)

            def follow(line: dict[str, Any]) -> None:
                samples.append(Sample.from_line(line))
                progress.update(bar, advance=1, note=samples[-1].configuration)

            ranks.run(bench, spec, Path(folder, "samples.jsonl"), follow)
    finally:
        if samples:
            keep(samples)
