"""The command line's trainings: configurations on one task, and suites of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from gradwire.cli.arguments import run_folder
from gradwire.cli.console import console, mistakes, progress_bars
from gradwire.lab.comparison import Comparison, circumstances
from gradwire.lab.configuration import Configuration, parse_all
from gradwire.lab.link import Link
from gradwire.lab.network import NetworkUnavailable
from gradwire.lab.presets import preset as preset_of
from gradwire.lab.recipe import Recipe
from gradwire.lab.results import Record, Run
from gradwire.lab.resumable import METRICS, keep, kept, records_kept
from gradwire.lab.runner import Place, Runner, runner
from gradwire.lab.train import TrainSpec, train
from gradwire.lab.training import Training
from gradwire.lab.workloads import Own
from gradwire.report import tables, training, training_suite
from gradwire.report.scalars import Scalars


def demo() -> None:
    """The README's first command."""
    with mistakes():
        place = _demo_place()
        comparison = Comparison(
            configurations=parse_all(["dense", "bf16", "topk:0.02", "powersgd:8"]),
            task="lm",
            options=["width=160", "batch=4"],
            ranks=place.ranks,
            recipe=Recipe(steps=120),
        )
    compare(comparison, place, Path("runs"))


def _demo_place() -> Place:
    place = Place(4, Link.parse("100mbit"))
    try:
        with runner(place):
            return place
    except NetworkUnavailable as reason:
        print(f"{reason}; so this goes over loopback, where bytes cost next to nothing")
        return Place(4)


def described(task: str | None, model: str | None, preset: str | None, folder: Path | None) -> Training:
    """What the user names: a task, a function of their own, or a preset on the files in `folder`.

    Raises ValueError for two of them, and for a preset without files."""
    if sum(each is not None for each in (task, model, preset)) > 1:
        raise ValueError("a task, a --model of your own and a --preset are three things to train: give one")
    if preset is not None and folder is None:
        raise ValueError(f"preset {preset} trains on files that you have ({preset_of(preset).files}): give --data")
    if preset is not None:
        named = preset_of(preset)
    elif model is not None:
        named = Training(task=Own.name, options=(f"function={model}",))
    else:
        named = Training(task=task or "lm")
    return named.on(folder) if folder else named


def compare(comparison: Comparison, place: Place, out: Path) -> None:
    """Trains all configurations; writes and prints what came of it."""
    with runner(place) as ranks:
        folder = ranks.agreed(run_folder(out, comparison.task, ranks.leads))
        compare_in(folder, comparison, place, ranks)


def resumed(folder: Path, others: Sequence[Any]) -> tuple[Comparison, Place]:
    """What was begun in `folder`. Raises ValueError where the user says anything else as well."""
    if any(other is not None for other in others):
        raise ValueError(f"--resume {folder} goes on with what was begun there: give nothing else")
    return kept(folder)


def go_on(folder: Path, comparison: Comparison, place: Place) -> None:
    """Trains what is left of an interrupted run; writes and prints what came of all of it."""
    with runner(place) as ranks:
        compare_in(folder, comparison, place, ranks)


def compare_suite(name: str, comparisons: list[Comparison], place: Place, out: Path) -> None:
    """Task after task, each with a folder in the suite's; what is known is written after each."""
    trained: list[training_suite.Trained] = []
    paths: list[Path] = []
    try:
        with runner(place) as ranks:
            folder = ranks.agreed(run_folder(out, name, ranks.leads))
            for number, comparison in enumerate(comparisons, 1):
                if runs := compare_in(folder / f"{number}-{comparison.task}", comparison, place, ranks):
                    model = str(getattr(comparison.make_task(), "model", ""))
                    trained.append(training_suite.Trained(comparison.task, model, comparison.looked_at, runs))
                    paths = training_suite.write(folder, name, trained, circumstances(place))
    finally:
        if trained:
            console().print(training_suite.table(name, trained).to_rich())
            print(*paths, sep="\n")


def compare_in(folder: Path, comparison: Comparison, place: Place, ranks: Runner) -> list[Run]:
    """The runs, where this process leads; else none. Where one fails, those before it are written all the same."""
    runs: list[Run] = []
    if ranks.leads and comparison.checkpoint_every:
        folder.mkdir(parents=True, exist_ok=True)
        keep(folder, comparison, place)
    try:
        with progress_bars() as progress:
            for configuration, spec in comparison.specs(folder):
                run = _train(configuration, spec, comparison.course.steps, ranks, progress)
                if ranks.leads:
                    runs.append(run)
    finally:
        if runs:
            _report(comparison, place, folder, runs)
    return runs


def _report(comparison: Comparison, place: Place, folder: Path, runs: list[Run]) -> None:
    metric = comparison.looked_at
    console().print(tables.training(runs, metric).to_rich())
    print(*training.write(folder, runs, metric, comparison.facts() | circumstances(place)), sep="\n")


def _train(configuration: Configuration, spec: TrainSpec, steps: int, ranks: Runner, progress: Progress) -> Run:
    run, home = Run(configuration.text), Path(spec.home)
    if not ranks.leads:
        ranks.run(train, spec, home, lambda line: None)
        return run
    home.mkdir(parents=True, exist_ok=True)
    run.records += records_kept(home)
    bar = progress.add_task(run.configuration, total=steps, note="starting")
    with Scalars(home) as scalars:

        def follow(line: dict[str, Any]) -> None:
            record = Record.from_line(line)
            run.records.append(record)
            scalars.add(record)
            progress.update(bar, completed=record.step, note=f"loss {record.loss:.3f}")

        ranks.run(train, spec, home / METRICS, follow)
    return run
