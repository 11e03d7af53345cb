"""What controllers decided: under the loss curve, and as a table."""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from gradwire.lab.results import Run
from gradwire.report.pictures import COLOURS, MARKERS, STYLE
from gradwire.report.tables import Table, figure

NOTE = """Factor: how many times fewer elements were sent in the window that ended at this step. Gain: what of
gradients and residuals got through, from 0 to 1, as the controller reads it. Throughput: steps per second times gain,
which is what GraVAC makes as large as it can."""

_PANELS = (("factor", "fewer elements by"), ("gain", "gain"), ("throughput", "steps per s × gain"))


def draw(runs: Sequence[Run]) -> Figure:
    """The training loss of all runs, and under it each window's factor, gain and throughput, for those that have a
    controller; colours are those of the other pictures."""
    told = [panel for panel in _PANELS if any(d[panel[0]] is not None for run in runs for d in run.decisions)]
    with rc_context(STYLE):
        picture = Figure(figsize=(12, 3.6 + 1.8 * len(told)), layout="constrained")
        loss, *panels = picture.subplots(1 + len(told), 1, sharex=True, squeeze=False)[:, 0]
        for index, run in enumerate(runs):
            steps, losses = zip(*((record.step, record.loss) for record in run.records), strict=True)
            loss.plot(steps, losses, color=COLOURS[index % len(COLOURS)], linewidth=1.6)
            for panel, (name, _) in zip(panels, told, strict=True):
                _windows(panel, run, name, index)
        loss.set_ylabel("training loss")
        for panel, (name, label) in zip(panels, told, strict=True):
            panel.set_ylabel(label)
            if name == "factor":
                panel.set_yscale("log", base=2)
                panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            else:
                panel.set_ylim(0, 1.05 if name == "gain" else None)
        lowest = [loss, *panels][-1]
        lowest.set_xlabel("steps")
        lowest.xaxis.set_major_locator(MaxNLocator(integer=True))
        names = [run.configuration for run in runs]
        picture.legend(loss.lines, names, loc="outside lower center", ncols=min(4, len(names)), frameon=False)
    return picture


def table(run: Run) -> Table:
    """Every decision of a run."""
    columns = ["step", "factor", "gain", "throughput", "decision"]
    rows = [
        [str(decision["step"]), *(_shown(decision[name]) for name, _ in _PANELS), decision["decision"]]
        for decision in run.decisions
    ]
    return Table(f"Decisions of {run.configuration}", columns, rows)


def _windows(panel: Axes, run: Run, name: str, index: int) -> None:
    """A line that is level through each window."""
    points = [(decision["step"], decision[name]) for decision in run.decisions if decision[name] is not None]
    if not points:
        return
    steps, values = zip(*points, strict=True)
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    first = (0, *steps), (values[0], *values)
    panel.plot(*first, color=colour, drawstyle="steps-pre", linewidth=1.6)
    panel.plot(steps, values, color=colour, marker=marker, markersize=4, linestyle="none")


def _shown(value: float | None) -> str:
    return "" if value is None else figure(value)
