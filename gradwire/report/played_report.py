"""The report of a played cluster, in one folder: which configuration is fastest on which links and ranks, and by how
much."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import median

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from gradwire.lab.curve import StepCurve
from gradwire.lab.jobs.bench_job import TimedSteps
from gradwire.lab.names import NOCOMM
from gradwire.lab.network.link import Link
from gradwire.report import page, text_table, timeline_page
from gradwire.report.computed_on import doubt, this_machines
from gradwire.report.pictures import STYLE, head, legend, look, sheet
from gradwire.report.report_files import write_json, write_picture, write_text
from gradwire.report.text_table import TextTable
from gradwire.report.timing import Timing, summarize
from gradwire.report.training_cost import TrainingCost
from gradwire.schedule.cluster import Cluster

LINKS = tuple(
    Link(round(digit * power))
    for power in (1e7, 1e8, 1e9, 1e10, 1e11)
    for digit in (1, 1.5, 2, 3, 4, 6, 8)
    if digit * power <= 4e11
)
"""From 10 Mbit/s to 400 Gbit/s."""
MOST_RANKS = 1024
AS_FAST = 1.01
"""Steps that are longer than the shortest by no more are as fast: then the configuration that was named first wins."""
_UNSTEADY = 10
"""Per cent by which steps that were made apart may differ, before that is said."""
_FASTEST = "fastest configuration"
_PANELS = 4
_TIMELINE = "timeline.html"
_NOTE = """From which link on a configuration has the shortest step; of several within 1 % the one that was named
first. Computed from the steps that were played, on cards that were busy for half, one and three times as long as a
step computes, and moved so that they agree with the steps as played. What a rank computes is measured; rings, trees
and all-to-all cost what is published; decoding an all-gather grows with the payloads. Stragglers and jitter are those
that were asked for; congestion, the computing of a backend's own threads and a configuration's cost in loss are left
out."""
_PLAYED_NOTE = """As played. Hours and costs are of so many steps, however much progress a step makes."""
_APART = "Step time, were each rank on a host of its own"
_SHOWN = """Milliseconds of a step against the link between hosts, a panel for each number of ranks, one line per
configuration."""
_FIGURES = "Figures in the table below."


@dataclass(frozen=True)
class PlayedTimes:
    """Step times of configurations on a played cluster, and on others by their curves."""

    cluster: Cluster
    """That was played."""
    device: str
    """That computed."""
    timings: Sequence[Timing]
    """Of the steps that were timed there; `nocomm` among them."""
    measured: Mapping[str, Sequence[StepCurve]]
    """The curves of each configuration, one a repeat."""

    @classmethod
    def of(cls, cluster: Cluster, samples: Sequence[TimedSteps], device: str) -> "PlayedTimes":
        """The times of all repeats."""
        timings = summarize(samples)
        names = [timing.configuration for timing in timings]
        curves = {name: [s.curve for s in samples if s.configuration == name and s.curve] for name in names}
        return cls(cluster, device, timings, curves)

    @cached_property
    def later_s(self) -> Mapping[str, float]:
        """By how many seconds the timed steps of each configuration are longer than those that its curves have on the
        played cluster, which were made before."""
        return {
            each.configuration: each.step_ms.median / 1e3
            - median(curve.at(*self.cluster.network) for curve in self.measured[each.configuration])
            for each in self.timings
        }

    @cached_property
    def curves(self) -> Mapping[str, Sequence[StepCurve]]:
        """The curves, moved so that they have the timed steps on the played cluster."""
        return {name: [curve.later(self.later_s[name]) for curve in each] for name, each in self.measured.items()}

    @property
    def alone(self) -> bool:
        """Whether `nocomm` alone was timed."""
        return not self.curves.keys() - {NOCOMM}

    @property
    def per_host(self) -> int:
        """Ranks that share a link; those of a single host have one each."""
        return self.cluster.ranks // self.cluster.network.peers

    @property
    def ranks(self) -> list[int]:
        """Numbers of ranks to show: those that fill 2, 4, 8 and so on hosts, up to 1,024 ranks, and the played one; the
        played one alone where a curve holds for no other."""
        if not all(curve.elsewhere for curves in self.curves.values() for curve in curves):
            return [self.cluster.ranks]
        doubled = {self.per_host << power for power in range(1, 11)}
        return sorted({ranks for ranks in doubled if ranks <= MOST_RANKS} | {self.cluster.ranks})

    def step_s(self, name: str, ranks: int, link: Link) -> float:
        """The seconds of a step of a configuration: no fewer than without communication."""
        there = replace(self.cluster, ranks=ranks, gpus_per_host=self.per_host, bytes_per_s=link.bits_per_second / 8)
        alone_s = median(curve.step_s[0] for curve in self.curves[NOCOMM])
        return max(alone_s, median(curve.at(*there.network) for curve in self.curves[name]))

    def fastest(self, ranks: int, link: Link) -> str:
        """The configuration with the shortest step."""
        steps = {name: self.step_s(name, ranks, link) for name in self.curves if name != NOCOMM}
        return next(name for name, step_s in steps.items() if step_s <= AS_FAST * min(steps.values()))


def winners(times: PlayedTimes) -> TextTable | None:
    """From which link on which configuration is the fastest, a row for each number of ranks; None for a single host,
    which has no link, and where `nocomm` alone was timed."""
    if times.alone or times.cluster.hosts == 1:
        return None
    rows = [[str(ranks), ", ".join(_intervals(times, ranks))] for ranks in times.ranks]
    return TextTable("Fastest steps", ["ranks", _FASTEST], rows, texts=(_FASTEST,))


def _intervals(times: PlayedTimes, ranks: int) -> Iterator[str]:
    for name, links in groupby(LINKS, lambda link: times.fastest(ranks, link)):
        first = next(links)
        yield name if first == LINKS[0] else f"from {first} {name}"


def verdict(times: PlayedTimes) -> str:
    """The configuration with the shortest steps as they were played, in a sentence, and why to doubt it."""
    return " ".join(
        filter(None, [_shortest(times), doubt(times.device, times.cluster.gpus_per_host), _unsteady(times)])
    )


def _unsteady(times: PlayedTimes) -> str:
    """A sentence where steps of a configuration that were made minutes apart differ, else nothing."""
    steps_s = {timing.configuration: timing.step_ms.median / 1e3 for timing in times.timings}
    changed = {name: abs(times.later_s[name]) / step_s for name, step_s in steps_s.items()}
    name = max(changed, key=changed.__getitem__)
    percent = 100 * changed[name]
    if percent < _UNSTEADY:
        return ""
    return (
        f"This machine was not quiet: steps of {name} that were made apart differ by {percent:.0f} %. Close other "
        "programs, or raise --repeats."
    )


def _shortest(times: PlayedTimes) -> str:
    cluster = times.cluster
    steps_ms = {timing.configuration: timing.step_ms.median for timing in times.timings}
    alone_ms = steps_ms.pop(NOCOMM)
    if not steps_ms:
        return f"Only {NOCOMM} was timed."
    # the fastest, on links that were used
    name = next(name for name, step_ms in steps_ms.items() if step_ms <= AS_FAST * min(steps_ms.values()))
    where = "inside a host" if cluster.hosts == 1 else f"at {Link.carrying(cluster.bytes_per_s)}"
    text = f"On {cluster.ranks} ranks {where}, {name} has the shortest step: {text_table.figure(steps_ms[name])} ms"
    beside = f"{text}, where computing on {this_machines(times.device)} takes {text_table.figure(alone_ms)}"
    others = [each for each in steps_ms if each != name]
    return f"{beside} and {others[0]} {text_table.figure(steps_ms[others[0]])}." if others else f"{beside}."


def picture(times: PlayedTimes, title: str, narrow: bool = False) -> Figure:
    """Step time against the link, a panel for each of a few numbers of ranks."""
    shown = sorted({*times.ranks[:1], *times.ranks[-1:], times.cluster.ranks, times.ranks[len(times.ranks) // 2]})
    with rc_context(STYLE):
        drawn, axes = sheet(len(shown), max(3.2, 12 / _PANELS), 2.8 if narrow else 4.4, narrow, sharey=True)
        head(drawn, "" if narrow else title)
        for axis, ranks in zip(axes, shown, strict=True):
            _panel(axis, times, ranks)
        for axis in axes if narrow else axes[:1]:
            axis.set_ylabel("milliseconds per step")
        legend(drawn, axes[0].lines, [*times.curves], narrow)
    return drawn


def _panel(axis: Axes, times: PlayedTimes, ranks: int) -> None:
    gigabits = [link.bits_per_second / 1e9 for link in LINKS]
    for index, name in enumerate(times.curves):
        steps_ms = [1e3 * times.step_s(name, ranks, link) for link in LINKS]
        axis.plot(gigabits, steps_ms, **look(index, marker=""))
    axis.set_title(f"{ranks} ranks", fontsize=10)
    axis.set_xlabel("Gbit/s of a host's link")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(LogLocator(numticks=8))
    axis.xaxis.set_minor_locator(NullLocator())
    # as tables write them
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:.10g}"))


def steps(timings: Sequence[Timing], cluster: Cluster, cost: TrainingCost | None = None) -> TextTable:
    """Costs of one step of each configuration and, where it is asked for, of a training on the cluster."""
    # hosts of several GPUs send over one link
    shared = cluster.hosts > 1 and cluster.gpus_per_host > 1
    costs = {cost.heading: lambda timing: cost.at(timing.step_ms.median, cluster.ranks)} if cost else None
    return text_table.timings(timings, "host" if shared else "rank", costs)


def in_terminal(title: str, times: PlayedTimes, cost: TrainingCost | None) -> Iterator[TextTable | str | None]:
    """What a terminal shows."""
    yield f"{title}; ms per step"
    yield steps(times.timings, times.cluster, cost)
    yield winners(times)
    yield verdict(times)


def write(
    folder: Path,
    title: str,
    times: PlayedTimes,
    samples: Sequence[TimedSteps],
    facts: Mapping[str, str],
    cost: TrainingCost | None = None,
) -> list[Path]:
    """Writes played.png if more than `nocomm` was timed, report.html, played.json, and timeline.html where Gradwire
    reduces; returns their paths."""
    # as data: what was measured, and steps on all links and ranks
    step_s = {
        name: {ranks: {str(link): times.step_s(name, ranks, link) for link in LINKS} for ranks in times.ranks}
        for name in times.curves
    }
    figures = {
        "timings": [each.to_json() for each in times.timings],
        "samples": [replace(each, timeline=None).to_line() for each in samples],
    }
    write_json(folder / "played.json", {"title": title} | dict(facts) | figures | {"step_s": step_s})
    # the same as pictures and tables
    paths, shown = _pictured(folder, title, times)
    paths += [folder / "report.html", folder / "played.json"]
    fastest = winners(times)
    tables = [(steps(times.timings, times.cluster, cost), _PLAYED_NOTE), *([(fastest, _NOTE)] if fastest else [])]
    timelines = {each.configuration: each.timeline for each in samples if each.timeline}
    beside = {_TIMELINE: "One step of each configuration that Gradwire reduces, as a timeline"} if timelines else {}
    write_text(folder / "report.html", page.render(title, verdict(times), shown, tables, facts, beside))
    if timelines:
        paths.append(folder / _TIMELINE)
        write_text(paths[-1], timeline_page.render(title, timelines))
    return paths


def _pictured(folder: Path, title: str, times: PlayedTimes) -> tuple[list[Path], list[page.Picture]]:
    """The picture's file, and the same for the page; none where `nocomm` alone was timed."""
    if times.alone:
        return [], []
    drawn, path = picture(times, title), folder / "played.png"
    write_picture(drawn, path)
    # a single host has no table of winners
    caption, shown = (_APART, _SHOWN) if times.cluster.hosts == 1 else ("Step time", f"{_SHOWN} {_FIGURES}")
    return [path], [page.Picture(caption, shown, drawn, picture(times, title, narrow=True))]
