"""The report of simulated clusters, in one folder: a table, a picture, a page, the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter, ScalarFormatter

from gradwire.lab.network.link import Link
from gradwire.report import page
from gradwire.report.pictures import COLOURS, STYLE, head, label, legend, look, make_room_behind_bars, sheet
from gradwire.report.report_files import write_json, write_picture, write_text
from gradwire.report.text_table import TextTable, figure, times
from gradwire.report.training_cost import TrainingCost
from gradwire.schedule.simulate import BEST, GIVEN, Outcome

DENSE = "FP32"
_GROUPS = "groups of the best plan"
_NOTE = """Milliseconds of a step; the scaling efficiency: what N ranks do as a share of N times what one does; and the
efficiency: progress of a step in dense steps, as measured where the profile was taken, or as assumed (0: it harms
training). The best plan makes the most progress per second: efficiency over time; with the objective "step" its step
is the shortest, and all efficiencies are 1.
Each candidate alone is cut into groups of the size that suits it best, its small tensors dense; the best plan chooses
group by group. Inside a host the gradient is summed dense, between hosts one rank of each host sends. Ranks of a single
host have its own bus alone. "every H" is with local steps: a mean step, of which H make a round;
such a step makes less progress than a dense one, and nothing of a round hides behind inner steps (delay=0). The model
has no stragglers, no congestion and no jitter."""
_ENOUGH = 1.1
"""Where a step that is sent each time takes no more than this many mean local ones, there is little to gain."""
_SHOWN = """Scaling efficiency against ranks, a panel for each link, one line per way to send; of one number of ranks
alone a bar per way, with the milliseconds of a step and its efficiency; figures in the table below."""


def table(outcomes: Sequence[Outcome], cost: TrainingCost | None = None) -> TextTable:
    """A row for each cluster: the best plan, its groups, a column for each other way and, where it is asked for, what a
    training costs in float32 and by the best plan, at equal progress."""
    ways = [BEST, *(way for way in dict.fromkeys(outcome.way for outcome in outcomes) if way != BEST)]
    rows, priced = list[list[str]](), [way for way in (DENSE, BEST) if cost and way in ways]
    # a row for each cluster, its cells way by way
    for cluster in dict.fromkeys(outcome.cluster for outcome in outcomes):
        own = {outcome.way: outcome for outcome in outcomes if outcome.cluster == cluster}
        best, *others = [f"{figure(1e3 * own[way].step_s)} ({100 * own[way].scaling_efficiency:.0f} %)" for way in ways]
        where = [str(Link.carrying(cluster.bytes_per_s)), str(cluster.ranks), str(cluster.hosts)]
        costs = (
            [cost.at(1e3 * own[way].step_s, cluster.ranks, own[way].efficiency or 0.0) for way in priced]
            if cost
            else []
        )
        rows.append([*where, best, f"{own[BEST].groups}{_efficiency(own[BEST])}", *others, *costs])
    headings = {outcome.way: f"{outcome.way}{_efficiency(outcome)}" for outcome in outcomes}
    columns = ["link", "ranks", "hosts", BEST, _GROUPS, *(headings[way] for way in ways[1:])]
    if cost:
        lossless = all(outcome.efficiency == 1 for outcome in outcomes if outcome.way in priced)
        columns += [f"{cost.heading if lossless else cost.progress_heading}, {way}" for way in priced]
    return TextTable("ms per step (scaling efficiency)", columns, rows, texts=(_GROUPS,), keys=2)


def verdict(outcomes: Sequence[Outcome]) -> str:
    """The clusters where the best plan gains most and least over the first way, and which compressors do best alone
    where it gains most, in two sentences."""
    of = {way: [outcome for outcome in outcomes if outcome.way == way] for way in {o.way for o in outcomes}}
    first = next((outcome.way for outcome in outcomes if outcome.way != BEST and outcome.progress), None)
    if first is None:
        return "Every candidate harms training; profile one that is dense as well."
    # gain of the best plan over the first way, cluster by cluster
    gains = [(best.progress / other.progress, best) for other, best in zip(of[first], of[BEST], strict=True)]
    (most, where), (least, there) = max(gains, key=lambda g: g[0]), min(gains, key=lambda g: g[0])
    # where all steps make the same progress, and with the objective "step", their time alone counts
    timed = all(outcome.efficiency in (1, None) for outcome in outcomes)
    gain = (
        f"steps of the best plan are {times(most)} as fast"
        if timed
        else f"the best plan makes {times(most)} the progress"
    )
    text = f"Beside {first}, {gain} on {_place(where)}, with groups of {where.groups}"
    text = f"{text}; {times(least)} on {_place(there)}." if len(gains) > 1 else f"{text}."
    return f"{text} {_best_alone(outcomes, where, first)}".strip()


def _best_alone(outcomes: Sequence[Outcome], where: Outcome, first: str) -> str:
    """The compressor with the most progress on a cluster, beside the `first`, and that with the shortest step, of those
    that harm no training, in a sentence."""
    own = {each.way: each for each in outcomes if each.cluster == where.cluster and each.every == 1}
    alone = [each for way, each in own.items() if way not in (BEST, GIVEN) and each.progress]
    if not alone:
        return ""
    most, shortest = max(alone, key=lambda each: each.progress), min(alone, key=lambda each: each.step_s)
    if most.way == first:
        return f"No compressor alone does better than {first} there."
    text = f"Of one compressor alone, {most.way} does best on {_place(where)}"
    text = f"{text}, {times(most.progress / own[first].progress)}, with steps of {figure(1e3 * most.step_s)} ms"
    if most is shortest:
        return f"{text}."
    return f"{text}; {shortest.way} has the shortest step, {figure(1e3 * shortest.step_s)} ms, but makes less progress."


def per_step_or_rounds(outcomes: Sequence[Outcome]) -> str | None:
    """The clusters where local steps shorten a mean step, in a sentence; None without local steps."""
    of = {(outcome.way, outcome.cluster): outcome for outcome in outcomes}
    rounds = [outcome for outcome in outcomes if outcome.every > 1 and outcome.way.startswith(BEST)]
    if not rounds:
        return None
    gains = [(of[BEST, local.cluster].step_s / local.step_s, local) for local in rounds]
    most, where = max(gains, key=lambda gain: gain[0])
    text = f"Sent every {where.every} steps, a mean step is {times(most)} as fast as by the best plan for every step"
    text = f"{text} on {_place(where)}"
    # links slower than these need rounds
    needed = [local.cluster.bytes_per_s for gain, local in gains if gain > _ENOUGH]
    links = sorted(
        {local.cluster.bytes_per_s for _, local in gains if local.cluster.bytes_per_s > max(needed, default=0)}
    )
    near = f"within {times(_ENOUGH)}"
    if links:
        return f"{text}; from {Link.carrying(links[0])} on, every step is {near} of that on all these numbers of ranks."
    return f"{text}; on none of these links is every step {near} of that on all these numbers of ranks."


def too_slow(names: Sequence[str], peers: int) -> str:
    """A sentence about candidates that `attach` would not send by all-gather among so many peers; "" without any."""
    if not names:
        return ""
    return (
        f"This profile has {', '.join(names)} by all-gather alone. Among {peers} hosts, or ranks of one host, that "
        "sends more than dense training; attach() would take scatter-reduce. A profile of three ranks or more has both."
    )


def picture(outcomes: Sequence[Outcome], title: str, narrow: bool = False) -> Figure:
    """Efficiency against ranks, a panel for each link; as bars where there is one number of ranks alone."""
    links = list(dict.fromkeys(outcome.cluster.bytes_per_s for outcome in outcomes))
    ways = list(dict.fromkeys(outcome.way for outcome in outcomes))
    if len({outcome.cluster.ranks for outcome in outcomes}) == 1:
        return _bars(outcomes, title, links, narrow)
    with rc_context(STYLE):
        drawn, axes = sheet(len(links), max(3.4, 12 / len(links)), 2.8 if narrow else 4.6, narrow, sharey=True)
        head(drawn, "" if narrow else title)
        # a panel for each link, a line for each way
        for axis, link in zip(axes, links, strict=True):
            for index, way in enumerate(ways):
                _line(axis, [o for o in outcomes if o.way == way and o.cluster.bytes_per_s == link], index)
            axis.set_title(str(Link.carrying(link)), fontsize=10)
            axis.set_xlabel("ranks")
            axis.set_xscale("log", base=2)
            axis.set_xticks(sorted({outcome.cluster.ranks for outcome in outcomes}))
            axis.xaxis.set_major_formatter(ScalarFormatter())
            axis.xaxis.set_minor_locator(NullLocator())
        for axis in axes if narrow else axes[:1]:
            axis.set_ylabel("scaling efficiency")
        axes[0].set_ylim(0, 1.03)
        axes[0].yaxis.set_major_formatter(PercentFormatter(1))
        legend(drawn, axes[0].lines, ways, narrow)
    return drawn


def write(
    folder: Path,
    title: str,
    outcomes: Sequence[Outcome],
    facts: Mapping[str, str],
    cost: TrainingCost | None = None,
    doubt: str = "",
) -> list[Path]:
    """Writes simulation.png, report.html, with a `doubt` of its figures behind the verdict, and simulation.json.
    Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = picture(outcomes, title)
    paths = [folder / name for name in ("simulation.png", "report.html", "simulation.json")]
    write_picture(drawn, paths[0])
    shown = [page.Picture("Scaling efficiency", _SHOWN, drawn, picture(outcomes, title, narrow=True))]
    sentences = " ".join(filter(None, [verdict(outcomes), per_step_or_rounds(outcomes), doubt]))
    write_text(paths[1], page.render(title, sentences, shown, [(table(outcomes, cost), _NOTE)], facts))
    # the same as data
    write_json(paths[2], {"title": title} | dict(facts) | {"outcomes": [_figures(outcome) for outcome in outcomes]})
    return paths


def _bars(outcomes: Sequence[Outcome], title: str, links: Sequence[float], narrow: bool) -> Figure:
    """The scaling efficiency of each way, a panel for each link, with the milliseconds of a step."""
    ways = dict.fromkeys(outcome.way for outcome in outcomes)
    with rc_context({**STYLE, "axes.grid.axis": "x"}):
        height = 1.4 + (0.6 if narrow else 0.3) * len(ways)
        drawn, axes = sheet(len(links), max(3.4, 9 / len(links)), height, narrow, sharey=True)
        head(drawn, "" if narrow else title)
        for axis, link in zip(axes, links, strict=True):
            own = [outcome for outcome in outcomes if outcome.cluster.bytes_per_s == link]
            names = [label(outcome.way, narrow) for outcome in own]
            colours = [COLOURS[0 if outcome.way == BEST else 1] for outcome in own]
            bars = axis.barh(names, [outcome.scaling_efficiency for outcome in own], color=colours, height=0.6)
            texts = [f"{figure(1e3 * each.step_s)} ms{_efficiency(each)}" for each in own]
            axis.bar_label(bars, [text.replace(", ", ",\n") if narrow else text for text in texts], padding=6)
            axis.set_title(f"{Link.carrying(link)}, {own[0].cluster.ranks} ranks", fontsize=10)
            axis.set_xlabel("scaling efficiency")
            axis.set_xticks([0, 0.5, 1])
            axis.xaxis.set_major_formatter(PercentFormatter(1))
        axes[0].invert_yaxis()
        make_room_behind_bars(drawn)
    return drawn


def _figures(outcome: Outcome) -> dict[str, Any]:
    figures = asdict(replace(outcome, plan=None)) | {"scaling_efficiency": outcome.scaling_efficiency}
    return {name: value for name, value in figures.items() if name != "plan"}


def _efficiency(outcome: Outcome) -> str:
    return "" if outcome.efficiency is None else f", efficiency {outcome.efficiency:.2f}"


def _place(outcome: Outcome) -> str:
    return f"{outcome.cluster.ranks} ranks at {Link.carrying(outcome.cluster.bytes_per_s)}"


def _line(axis: Axes, outcomes: Sequence[Outcome], index: int) -> None:
    best = outcomes[0].way == BEST
    axis.plot(
        [outcome.cluster.ranks for outcome in outcomes],
        [outcome.scaling_efficiency for outcome in outcomes],
        **look(0 if best else 1 + index),
        markersize=5,
        linewidth=3 if best else 1.6,
        zorder=1 if best else 2,  # others may lie exactly on it
    )
