"""The command line's trainings: configurations on one task, and suites of them."""

from pathlib import Path
from typing import Any

from rich.progress import Progress

from gradwire.cli.arguments import run_folder
from gradwire.cli.console import console, progress_bars
from gradwire.lab.comparison import Comparison, circumstances
from gradwire.lab.configuration import Configuration
from gradwire.lab.results import Record, Run
from gradwire.lab.runner import Place, Runner, runner
from gradwire.lab.train import TrainSpec, train
from gradwire.report import tables, training, training_suite
from gradwire.report.scalars import Scalars


def compare(comparison: Comparison, place: Place, out: Path) -> None:
    """Trains all configurations; writes and prints what came of it."""
    with runner(place) as ranks:
        _compare(comparison, place, ranks, run_folder(out, comparison.task, ranks.leads))


def compare_suite(name: str, comparisons: list[Comparison], place: Place, out: Path) -> None:
    """Task after task, each with a folder in the suite's; what is known is written after each."""
    trained: list[training_suite.Trained] = []
    paths: list[Path] = []
    try:
        with runner(place) as ranks:
            folder = run_folder(out, name, ranks.leads)
            for number, comparison in enumerate(comparisons, 1):
                if runs := _compare(comparison, place, ranks, folder / f"{number}-{comparison.task}"):
                    task = comparison.make_task()
                    model = str(getattr(task, "model", ""))
                    trained.append(training_suite.Trained(comparison.task, model, task.metric, runs))
                    paths = training_suite.write(folder, name, trained, circumstances(place))
    finally:
        if trained:
            console().print(training_suite.table(name, trained).to_rich())
            print(*paths, sep="\n")


def _compare(comparison: Comparison, place: Place, ranks: Runner, folder: Path) -> list[Run]:
    """The runs, where this process leads; else none. Where one fails, those before it are written all the same."""
    runs: list[Run] = []
    try:
        with progress_bars() as progress:
            for name, spec in comparison.specs():
                run = _train(name, spec, ranks, folder, progress)
                if ranks.leads:
                    runs.append(run)
    finally:
        if runs:
            _report(comparison, place, folder, runs)
    return runs


def _report(comparison: Comparison, place: Place, folder: Path, runs: list[Run]) -> None:
    metric = comparison.make_task().metric
    console().print(tables.training(runs, metric).to_rich())
    print(*training.write(folder, runs, metric, comparison.facts() | circumstances(place)), sep="\n")


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
