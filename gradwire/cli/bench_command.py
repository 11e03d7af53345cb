"""`gradwire bench`: step times of configurations on one model, and of published suites."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import groupby, pairwise
from math import ceil
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from gradwire.cli.console import mistakes, progress_bars, show, show_and_write
from gradwire.cli.option_groups import Compared, Play, PricedTraining
from gradwire.cli.run_setup import cuts_here, leads, named_if_full, ranks_of, run_folder, writing_to
from gradwire.cli.wanted import texts
from gradwire.lab.experiments.bench_setup import Setup, TimingOptions
from gradwire.lab.experiments.comparison import circumstances
from gradwire.lab.experiments.suites import Overrides, SuiteRow
from gradwire.lab.experiments.suites import suite as rows_of
from gradwire.lab.jobs.bench_job import OF_TURN, BenchSpec, TimedSteps
from gradwire.lab.jobs.bench_job import bench as time_steps
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.runner import Runner, runner
from gradwire.lab.network.link import LOOPBACK, REAL
from gradwire.lab.play_spec import PlaySpec
from gradwire.report import played_report, text_table
from gradwire.report import suite_report as suites
from gradwire.report.computed_on import this_machines
from gradwire.report.timing import summarize
from gradwire.report.training_cost import TrainingCost

_LONG_S = 300
"""From so many seconds on a run says how long it will take."""


def bench(given: dict[str, Any], compared: Compared, timed: TimingOptions, json_file: Path | None) -> None:
    """Times configurations in one set-up; `given` has its values, None where they are not given."""
    with mistakes():
        setup = Setup(**given | {"ranks": ranks_of(given["ranks"], given["shard"]), "link": given["link"] or LOOPBACK})
        named = texts(compared)
        cluster, spec = setup.cluster(timed.device), setup.spec(named, timed)
    with runner(cluster) as ranks:
        # on the host where it is written, before anything is measured
        with ranks.led():
            if json_file and leads():
                _check_can_be_written(json_file)
        time_turns(spec, ranks, partial(_show_setup, setup, cluster, timed, json_file))


def _check_can_be_written(file: Path) -> None:
    """Refuses a file that cannot be written; leaves it as it was."""
    with mistakes():
        if not file.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {file.parent} for {file.name}")
        if file.is_dir():
            raise ValueError(f"{file} is a folder: name a file for --json")
    # pipes and devices are opened once
    target, new = file.resolve(), not file.exists()
    if new or file.is_file():
        target.open("ab").close()
    if new:
        target.unlink()


def bench_played(
    given: dict[str, Any],
    play: Play,
    compared: Compared,
    timed: TimingOptions,
    json_file: Path | None,
    training: PricedTraining,
    out: Path,
) -> None:
    """Times configurations on a cluster of which one rank is played, and writes what they take on other links and
    ranks, and what a training costs if that is asked for."""
    with mistakes():
        # what can be refused is refused before ranks start
        if json_file or given["ranks"] is not None or given["link"]:
            raise ValueError("--play says ranks and link, and writes played.json: leave --hosts, --link and --json out")
        played = PlaySpec.read(**vars(play), typed=True)
        setup = Setup(**given | {"ranks": played.cluster.ranks, "link": LOOPBACK, "play": played})
        named = texts(compared)
        running, spec = setup.cluster(timed.device), setup.spec(named, timed)
        cost = TrainingCost.of(**vars(training), device=timed.device)
    with runner(running) as ranks:
        # one rank runs, and the process that leads shows
        folder = ranks.agreed(lambda: run_folder(out, "played"))
        with writing_to(folder):
            time_turns(spec, ranks, partial(_show_played, setup, running, folder, cost), "playing")


def check_not_played(play: Play, training: PricedTraining) -> None:
    """Refuses options of a cluster that is played, where none is."""
    with mistakes():
        PlaySpec.of(**vars(play), typed=True)
        if training != PricedTraining():
            raise ValueError("--training-steps and --price are for clusters that are played: give --play as well")


def _show_played(
    setup: Setup, running: LabCluster, folder: Path, cost: TrainingCost | None, samples: list[TimedSteps], stopped: str
) -> None:
    assert setup.play
    title = headed(f"{setup.title} on {this_machines(running.device)}: {setup.play}", stopped)
    times = played_report.PlayedTimes.of(setup.play.cluster, samples, running.device)
    # hosts and ranks are those that are played, which the place says
    real = ("hosts", "ranks")
    facts = {name: str(fact) for name, fact in circumstances(running).items() if name not in real and fact is not None}
    facts |= {"place": str(setup.play), "parameters": str(setup.parameters())}
    shown = played_report.in_terminal(title, times, cost)
    show_and_write(shown, lambda: played_report.write(folder, title, times, samples, facts, cost))


def bench_suite(name: str, cuts: dict[str, Any], timed: TimingOptions, out: Path, own: Mapping[str, object]) -> None:
    """Times a published suite; `own` are options that a suite has by itself, which are refused where they are given."""
    with mistakes():
        if given := [option for option, value in own.items() if value]:
            raise ValueError(f"suite {name} has its own configurations and set-ups: leave {', '.join(given)} out")
        rows = rows_of(name, Overrides(**cuts_here(cuts)))
    _bench_rows(name, rows, timed, out)


def _show_setup(
    setup: Setup,
    cluster: LabCluster,
    timed: TimingOptions,
    json_file: Path | None,
    samples: list[TimedSteps],
    stopped: str,
) -> None:
    timings = summarize(samples)
    # whole rounds of local steps, and whole periods of compressors, may be more
    longer = {each.configuration: len(each.step_ms) for each in samples if len(each.step_ms) != timed.steps}
    rounds = "".join(f", of {name} {timed.repeats} x {steps}" for name, steps in longer.items())
    autocast = f", autocast to {timed.autocast}" if timed.autocast else ""
    turns = f"{timed.repeats} x {timed.steps} steps{rounds}{autocast}"
    columns = "ms per step; the column wire sums messages that overlap, so it may exceed the step"
    heading = headed(f"{setup.title}, {cluster}: {turns}", stopped, columns)

    def write() -> list[Path]:
        if json_file:
            facts = {"model": setup.title, "parameters": setup.parameters(), **asdict(timed)} | circumstances(cluster)
            facts |= {"stopped": stopped} if stopped else {}
            figures = {"timings": [t.to_json() for t in timings], "samples": [s.to_line() for s in samples]}
            with named_if_full(json_file):
                json_file.write_text(json.dumps(facts | figures, indent=1) + "\n")
        # nothing beside it, which may be the output itself
        return []

    show_and_write([heading, text_table.timings(timings)], write)


def _bench_rows(name: str, rows: list[SuiteRow], timed: TimingOptions, out: Path) -> None:
    """Times set-up after set-up; results are written after each, also of one that fails, and shown in the end."""
    # rows by their set-up; all of it is checked before the first is measured
    of = {setup: [row for row in rows if row.setup == setup] for setup in dict.fromkeys(row.setup for row in rows)}
    with mistakes():
        specs = {setup: setup.spec([row.configuration for row in mine], timed) for setup, mine in of.items()}
        clusters = {setup: setup.cluster(timed.device) for setup in of}
    titles = {setup: f"{number}/{len(of)} {setup.model}" for number, setup in enumerate(of, 1)}
    measured: list[suites.Result] = []
    now, folder = "", None
    paths: list[Path] = []
    if rows[0].setup.link == REAL and leads():
        show(f"{rows[0].setup.ranks} ranks and their own network stand for the published ones")

    def write(**stopped: str) -> None:
        assert folder
        where = circumstances(*(clusters[result.row.setup] for result in measured))
        paths[:] = suites.write(folder, name, measured, asdict(timed) | where | stopped)

    def keep(setup: Setup, samples: list[TimedSteps], stopped: str) -> None:
        if mine := suites.results(of[setup], summarize(samples), timed):
            measured.extend(mine)
            write()

    # a folder of results, made once all ranks are there and named if the run fails; written anew after each set-up
    try:
        with ExitStack() as stack:
            for cluster, setups in groupby(of, key=clusters.__getitem__):
                with runner(cluster) as ranks:
                    if folder is None:
                        folder = ranks.agreed(lambda: run_folder(out, name))
                        stack.enter_context(writing_to(folder))
                    # once for a cluster: ranks that run already can meet only once
                    for setup in setups:
                        now = titles[setup]
                        time_turns(specs[setup], ranks, partial(keep, setup), now)
    except BaseException:
        if measured:
            write(stopped=f"at {now}")
        raise
    # show what there is, even where a set-up failed
    finally:
        if measured:
            show_and_write([suites.table(name, measured)], lambda: paths)


def time_turns(
    spec: BenchSpec, ranks: Runner, keep: Callable[[list[TimedSteps], str], None], title: str = "timing"
) -> None:
    """Times the configurations; on the process that leads, `keep` gets the samples, and words for headings where those
    are what there was before a failure."""
    samples: list[TimedSteps] = []
    ended: list[float] = []
    try:
        with TemporaryDirectory() as folder, progress_bars() as progress:
            # ranks time; the process that leads follows their lines
            turns = spec.repeats * len(spec.configurations)
            bar = progress.add_task(title, total=turns, note="starting")

            def follow(line: dict[str, Any]) -> None:
                done = len(samples)
                if OF_TURN in line:
                    # before anything is timed, while a run may still be cut
                    if not progress.tasks[bar].completed and spec.repeats * line["seconds"] > _LONG_S:
                        progress.console.print(_how_long(line["seconds"], spec), highlight=False)
                    return progress.update(
                        bar, completed=done + line[OF_TURN], note=spec.configurations[done % len(spec.configurations)]
                    )
                samples.append(TimedSteps.from_line(line))
                ended.append(progress.get_time())
                left_s = seconds_left([end - start for start, end in pairwise(ended)], spec)
                ends = left_s and ended[-1] + left_s
                progress.update(bar, completed=done + 1, note=samples[-1].configuration, ends=ends)

            ranks.run(time_steps, spec, Path(folder, "samples.jsonl"), follow)
    except BaseException:
        # what was timed before, whose report hides no failure
        if samples:
            _keep_what_can_be(spec, keep, samples)
        raise
    if samples:
        keep(samples, "")


def seconds_left(took: Sequence[float], spec: BenchSpec) -> float | None:
    """About how many seconds are left; None before the second turn has ended. `took` has the seconds of the second turn
    and of later ones. A turn is thought to last as long as the last one of its configuration, or as the mean of all."""
    if not took:
        return None
    names = len(spec.configurations)
    last = {turn % names: seconds for turn, seconds in enumerate(took, 1)}
    return sum(last.get(turn % names, fmean(took)) for turn in range(len(took) + 1, spec.repeats * names))


def headed(*words: str) -> str:
    """A heading of those words that are not empty."""
    return "; ".join(filter(None, words))


def _how_long(repeat_s: float, spec: BenchSpec) -> str:
    """About how long repeats of so many seconds take, in words."""
    once = ceil(repeat_s / 60)
    shorter = f", {once} with --repeats 1" if spec.repeats > 1 else ""
    return (
        f"this takes about {spec.repeats * once} minutes{shorter}; less with fewer CONFIGs, or a smaller model or batch"
    )


def _keep_what_can_be(
    spec: BenchSpec, keep: Callable[[list[TimedSteps], str], None], samples: list[TimedSteps]
) -> None:
    timed = {each.configuration for each in samples}
    missing = [name for name in spec.configurations if name not in timed]
    stopped = f"stopped after {len(samples)} of {spec.repeats * len(spec.configurations)} turns"
    try:
        keep(samples, f"{stopped}, without {', '.join(missing)}" if missing else stopped)
    except Exception as error:
        print(f"what was timed cannot be shown: {error}", file=sys.stderr)
