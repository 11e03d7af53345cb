"""The report of training runs, in one folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gradwire.lab.results import Run, shown
from gradwire.report import decisions, page, pictures, text_table, verdict
from gradwire.report.page import Picture
from gradwire.report.report_files import write_json, write_picture, write_text
from gradwire.report.words import counted, in_words

_TRAINING_NOTE = """Seconds are rank 0's time in steps; evaluating and recording stop the clock. Bytes are the
mean over the ranks; for plain DDP they are those of its ring all-reduce. At the interface, packet headers and
TCP's own traffic count as well. Fewer bytes: than plain DDP. Speed-up: in time to finish, over the first
configuration."""
_SPLIT_NOTE = """Encode and decode are computing. Wire is the sum over collectives from start to end; several
are in flight at once, mostly while the backward pass still runs. Wait is from the last gradient until all
means are there. Plain DDP is not taken apart."""
_DECISIONS_SHOWN = """Training loss against steps, one line per configuration, and below it what controllers decided;
figures in the tables below."""
_COSTS_SHOWN = """Milliseconds per step, with quartiles, and MB sent per rank and step, one bar per configuration;
figures in the tables below."""


def write(folder: Path, runs: Sequence[Run], metric: str, facts: Mapping[str, Any]) -> list[Path]:
    """Writes curves.png, decisions.png where a controller took some, costs.png, report.html and run.json (the facts);
    returns the paths of all but the last."""
    title = f"{shown(metric).capitalize()} of {facts['task']} on {facts['place']}"
    controlled = [run for run in runs if run.decisions]
    curves = pictures.curves(runs, metric, title)
    narrow = pictures.curves(runs, metric, title, narrow=True)
    # pictures: curves, decisions where there are some, costs
    drawn = {"curves": Picture(shown(metric).capitalize(), _curves_shown(metric, curves), curves, narrow)}
    if controlled:
        both = decisions.draw(runs), decisions.draw(runs, narrow=True)
        drawn["decisions"] = Picture("Decisions", _DECISIONS_SHOWN, *both)
    both = pictures.costs(runs), pictures.costs(runs, narrow=True)
    drawn["costs"] = Picture("Costs of a step", _COSTS_SHOWN, *both)
    # as files
    paths = [folder / f"{name}.png" for name in drawn]
    for path, picture in zip(paths, drawn.values(), strict=True):
        write_picture(picture.figure, path)
    # tables, with a note each
    noted = [(text_table.training(runs, metric), _TRAINING_NOTE), (text_table.splits(runs), _SPLIT_NOTE)]
    noted += [(decisions.table(run), decisions.note(run)) for run in controlled]
    report = folder / "report.html"
    heading = f"{facts['task']}: {counted(len(runs), 'configuration')}"
    sentence = verdict.of_training(runs, metric)
    write_text(report, page.render(heading, sentence, list(drawn.values()), noted, in_words(facts)))
    write_json(folder / "run.json", facts)
    return [*paths, report]


def _curves_shown(metric: str, curves: Figure) -> str:
    against = ", ".join(panel.get_xlabel() for panel in curves.axes)
    return f"{shown(metric).capitalize()} against {against}; one line per configuration; figures in the table below."
