"""Controllers' decisions, under the loss curve and as a table."""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from gradwire.lab.results import Run
from gradwire.report.pictures import NARROW, STYLE, draw_smoothed, keep_in_sight, legend, look, named_lines, names
from gradwire.report.text_table import TextTable, figure

_PANELS = (("factor", "fewer elements by"), ("gain", "gain"), ("throughput", "steps per s × gain"))
_MEANINGS = {
    "factor": "Factor: how many times fewer elements were sent since the decision before; with WarmUp, are sent now.",
    "gain": "Gain: the share of gradients and residuals that got through, from 0 to 1, as the controller reads it.",
    "throughput": "Throughput: steps per second times gain; GraVAC and CAT look for the most of it.",
}


def draw(runs: Sequence[Run], narrow: bool = False) -> Figure:
    """The training loss of all runs, and under it each window's factor, gain and throughput, for those that have a
    controller; colours are those of the other pictures."""
    # the panels that some controller has figures for
    known = _panels(runs)
    with rc_context(STYLE):
        picture = Figure(figsize=(NARROW if narrow else 12, 3.6 + 1.8 * len(known)), layout="constrained")
        loss, *panels = picture.subplots(1 + len(known), 1, sharex=True, squeeze=False)[:, 0]
        # each run's loss, and its windows below
        for index, run in enumerate(runs):
            steps, losses = zip(*((record.step, record.loss) for record in run.records), strict=True)
            draw_smoothed(loss, steps, losses, **look(index, marker=""), linewidth=1.6)
            for panel, (name, _) in zip(panels, known, strict=True):
                _windows(panel, run, name, index)
        loss.set_ylabel("training loss")
        keep_in_sight(loss, runs)
        for panel, (name, label) in zip(panels, known, strict=True):
            panel.set_ylabel(label)
            if name == "factor":
                panel.set_yscale("log", base=2)
                panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            else:
                panel.set_ylim(0, 1.05 if name == "gain" else None)
        lowest = [loss, *panels][-1]
        lowest.set_xlabel("steps")
        lowest.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(picture, named_lines(loss), names(runs), narrow)
    return picture


def table(run: Run) -> TextTable:
    """Every decision of a run, with the figures that its controller records."""
    known = [name for name, _ in _panels([run])]
    rows = [
        [str(decision["step"]), *(_shown(decision[name]) for name in known), decision["decision"]]
        for decision in run.decisions
    ]
    return TextTable(f"Decisions of {run.configuration}", ["step", *known, "decision"], rows, texts=("decision",))


def note(run: Run) -> str:
    """Meanings of the figures in a run's table."""
    return " ".join(_MEANINGS[name] for name, _ in _panels([run]))


def _panels(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The panels for which some decision has a figure."""
    return [panel for panel in _PANELS if any(d[panel[0]] is not None for run in runs for d in run.decisions)]


def _windows(panel: Axes, run: Run, name: str, index: int) -> None:
    """A line that is level through each window."""
    points = [(decision["step"], decision[name]) for decision in run.decisions if decision[name] is not None]
    if not points:
        return
    steps, values = zip(*points, strict=True)
    first = (0, *steps), (values[0], *values)
    panel.plot(*first, **look(index, marker=""), drawstyle="steps-pre", linewidth=1.6)
    panel.plot(steps, values, **look(index, linestyle="none"), markersize=4)


def _shown(value: float | None) -> str:
    return "-" if value is None else figure(value)
