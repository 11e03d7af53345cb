"""`gradwire train` and `gradwire demo`: configurations on one task, and suites of them."""

from collections.abc import Sequence
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any

from rich.progress import Progress

from gradwire.cli.console import mistakes, progress_bars, show_and_write
from gradwire.cli.run_setup import cluster_of, leads, run_folder, writing_to
from gradwire.cli.wanted import Wanted
from gradwire.lab.configuration import Configuration, parse_all
from gradwire.lab.experiments.comparison import Comparison, circumstances
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.experiments.resumable import METRICS, alone_in, begun_in, keep, kept, records_kept
from gradwire.lab.experiments.training_suites import training_suite as suite_rows
from gradwire.lab.jobs.train_job import TrainSpec
from gradwire.lab.jobs.train_job import train as train_rank
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.runner import Runner, runner
from gradwire.lab.network.link import Link
from gradwire.lab.network.network import NetworkUnavailable
from gradwire.lab.results import Record, Run
from gradwire.report import text_table, training_suite_report
from gradwire.report import training_report as report
from gradwire.report.scalars import Scalars


def demo() -> None:
    """The README's first command."""
    with mistakes():
        cluster = _demo_cluster()
        comparison = Comparison(
            configurations=parse_all(["dense", "topk:0.02", "powersgd:8"]),
            task="lm",
            options=["width=160", "batch=4"],
            ranks=cluster.ranks,
            recipe=Recipe(steps=120),
        )
    compare(comparison, cluster, Path("runs"))


def _demo_cluster() -> LabCluster:
    # with links of 100 Mbit/s, where this machine can emulate them
    cluster = LabCluster(4, Link.parse("100mbit"))
    try:
        with runner(cluster):
            return cluster
    except NetworkUnavailable as reason:
        print(f"{reason}; so this goes over loopback, where bytes cost next to nothing")
        return LabCluster(4)


def train(wanted: Wanted, hosts: int | None, link: str | None, shard: int, device: str, out: Path) -> None:
    """Trains configurations on one task."""
    with mistakes():
        cluster = cluster_of(hosts, link, device, shard)
        comparison = wanted.comparison(wanted.training, cluster)
    compare(comparison, cluster, out)


def train_suite(suite: str, wanted: Wanted, hosts: int | None, link: str | None, device: str, out: Path) -> None:
    """Trains a published suite."""
    with mistakes():
        cluster = cluster_of(hosts, link, device)
        wanted.check_for_suite(suite)
        rows = suite_rows(suite, wanted.folder, wanted.task, wanted.pretrained)
        comparisons = [wanted.comparison(row, cluster) for row in rows]
    with runner(cluster) as ranks:
        folder = ranks.agreed(lambda: run_folder(out, suite))
        with writing_to(folder):
            _compare_all(folder, suite, comparisons, cluster, ranks)


def resume(folder: Path, wanted: Wanted, others: Sequence[Any]) -> None:
    """Goes on with an interrupted run, as it was begun, and where."""
    with mistakes():
        if not wanted.nothing or any(other is not None for other in others):
            raise ValueError(f"--resume {folder} goes on with what was begun there: give nothing else")
        folder = folder.absolute()
        there = begun_in(folder)
    with chdir(there):
        with mistakes():
            comparison, cluster = kept(folder)
        with runner(cluster) as ranks, writing_to(folder):
            compare_in(folder, comparison, cluster, ranks)


def compare(comparison: Comparison, cluster: LabCluster, out: Path) -> None:
    """Trains all configurations; writes and prints the results."""
    with runner(cluster) as ranks:
        folder = ranks.agreed(lambda: run_folder(out, comparison.task))
        with writing_to(folder):
            compare_in(folder, comparison, cluster, ranks)


def _compare_all(folder: Path, name: str, comparisons: list[Comparison], cluster: LabCluster, ranks: Runner) -> None:
    """Trains task after task, each with a folder in the suite's; results are written after each."""
    trained: list[training_suite_report.TrainedTask] = []
    paths: list[Path] = []
    try:
        for number, comparison in enumerate(comparisons, 1):
            if runs := compare_in(folder / f"{number}-{comparison.task}", comparison, cluster, ranks):
                model = str(getattr(comparison.make_task(), "model", ""))
                trained.append(training_suite_report.TrainedTask(comparison.task, model, comparison.looked_at, runs))
                paths = training_suite_report.write(folder, name, trained, circumstances(cluster))
    finally:
        if trained:
            show_and_write([training_suite_report.table(name, trained)], lambda: paths)


def compare_in(folder: Path, comparison: Comparison, cluster: LabCluster, ranks: Runner) -> list[Run]:
    """Trains the comparison's configurations; returns the runs on the process that leads. Where one fails, those before
    it are written all the same."""
    runs: list[Run] = []
    try:
        with ExitStack() as held:
            # what --resume needs
            with ranks.led():
                if leads() and comparison.checkpoint_every:
                    folder.mkdir(parents=True, exist_ok=True)
                    keep(folder, comparison, cluster)
                    held.enter_context(alone_in(folder))
            # one configuration after another, on the same ranks
            progress = held.enter_context(progress_bars())
            for configuration, spec in comparison.specs(folder):
                run = _train(configuration, spec, comparison.course.steps, ranks, progress)
                if leads():
                    runs.append(run)
    # also of a comparison that was stopped
    finally:
        if runs:
            _report(comparison, cluster, folder, runs)
    return runs


def _report(comparison: Comparison, cluster: LabCluster, folder: Path, runs: list[Run]) -> None:
    metric, facts = comparison.looked_at, comparison.facts() | circumstances(cluster)
    show_and_write([text_table.training(runs, metric)], lambda: report.write(folder, runs, metric, facts))


def _train(configuration: Configuration, spec: TrainSpec, steps: int, ranks: Runner, progress: Progress) -> Run:
    run, home = Run(configuration.text), Path(spec.home)
    # after a resume the metrics that were kept come first
    with ranks.led():
        if leads():
            home.mkdir(parents=True, exist_ok=True)
            run.records += records_kept(home)
    # other ranks follow nothing; the process that leads writes metrics, and shows the loss
    if not leads():
        ranks.run(train_rank, spec, home, lambda line: None)
        return run
    bar = progress.add_task(run.configuration, total=steps, note="starting")
    with Scalars(home, run.last.step if run.records else 0) as scalars:

        def follow(line: dict[str, Any]) -> None:
            record = Record.from_line(line)
            run.records.append(record)
            scalars.add(record)
            progress.update(bar, completed=record.step, note=f"loss {text_table.score(record.loss)}")

        ranks.run(train_rank, spec, home / METRICS, follow)
    return run
