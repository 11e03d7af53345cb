"""The report of a long run under faults: a timeline of faults and of the recovery from each."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from matplotlib import rc_context
from matplotlib.figure import Figure

from gradwire.lab.soak.faults import KINDS
from gradwire.lab.soak.outcome import Followed, Soaked
from gradwire.lab.soak.soak import PATIENCE_S
from gradwire.lab.soak.soaked_model import BY_CHECKPOINT, FRONT_ENDS
from gradwire.report import page
from gradwire.report.page import Picture
from gradwire.report.pictures import STYLE, look, sheet
from gradwire.report.report_files import write_json, write_text
from gradwire.report.text_table import Columns, TextTable, figure
from gradwire.report.words import counted

_NOTE = f"""Seconds from the end of a fault until all ranks that are there had made a step together again; after
{PATIENCE_S:.0f} s a run counts as hanging."""
_COLUMNS = ["how many", "went on", "s until then, median", "most"]
_FRONT_ENDS_NOTE = f"{' and '.join(BY_CHECKPOINT)} end where a rank is lost, and begin again from a checkpoint."
_FAULTS_NOTE = "In the order in which they came. Reports: of ranks, until they had gone on."
_SHOWN = "Seconds until all ranks went on against when the fault came, a colour for each kind; figures in the tables."


def verdict(came: Soaked) -> str:
    """The outcome in a sentence."""
    if not came.faults and not came.broken:
        return f"No fault struck in {came.seconds / 60:.1f} minutes: nothing was tested. Give more --minutes."
    held = "every law held" if not came.broken else f"{len(came.broken)} times a law did not hold"
    return f"{counted(len(came.faults), 'fault')} in {came.seconds / 60:.1f} minutes and {came.steps} steps: {held}."


def table(came: Soaked) -> TextTable:
    """Recoveries, by kind of fault."""
    rows = [_row(kind, [each for each in came.faults if each.kind == kind]) for kind in KINDS]
    return TextTable("Recoveries", ["fault", *_COLUMNS], [row for row in rows if row[1] != "0"])


def by_front_end(came: Soaked) -> TextTable:
    """Recoveries, by front end."""
    rows = [_row(name, [each for each in came.faults if each.front_end == name]) for name in FRONT_ENDS]
    return TextTable("Recoveries, by front end", ["front end", *_COLUMNS], [row for row in rows if row[1] != "0"])


def _row(name: str, befell: Sequence[Followed]) -> list[str]:
    seconds = [each.seconds for each in befell if each.seconds is not None]
    times = [figure(median(seconds)), figure(max(seconds))] if seconds else ["-", "-"]
    return [name, str(len(befell)), str(len(seconds)), *times]


def write(folder: Path, came: Soaked) -> list[Path]:
    """Writes soak.json and report.html; returns the paths."""
    page_path, data_path = folder / "report.html", folder / "soak.json"
    picture = Picture("Faults, and how long until all went on", _SHOWN, _timeline(came), _timeline(came, narrow=True))
    tables = [(table(came), _NOTE), (by_front_end(came), _FRONT_ENDS_NOTE)]
    if came.broken:
        texts = ["law"]
        tables.append((TextTable("Laws that did not hold", ["law"], [[law] for law in came.broken], texts), ""))
    tables.append((_each(came), _FAULTS_NOTE))
    facts = {"place": came.place, "seed": str(came.seed)}
    write_text(page_path, page.render("Long run under faults", verdict(came), [picture], tables, facts))
    write_json(data_path, asdict(came))
    return [page_path, data_path]


def _each(came: Soaked) -> TextTable:
    """Every fault, in the order in which they came."""
    columns: Columns[Followed] = {
        "s": lambda each: figure(each.at_s),
        "fault": lambda each: each.kind,
        "front end": lambda each: each.front_end,
        "of": lambda each: each.victim,
        "s until all went on": lambda each: "-" if each.seconds is None else figure(each.seconds),
        "reports": lambda each: each.what,
    }
    return TextTable.of("All faults", came.faults, columns, ["fault", "front end", "of", "reports"])


def _timeline(came: Soaked, narrow: bool = False) -> Figure:
    with rc_context(STYLE):
        drawn, (panel,) = sheet(1, 9.0, 3.6, narrow)
        for index, kind in enumerate(kind for kind in KINDS if any(each.kind == kind for each in came.faults)):
            # faults from which the job did not recover lie at the limit of patience
            own = [each for each in came.faults if each.kind == kind]
            seconds = [PATIENCE_S if each.seconds is None else each.seconds for each in own]
            panel.plot([each.at_s for each in own], seconds, label=kind, **look(index, linestyle="none"))
        panel.set_yscale("log")
        panel.set_xlabel("s since the beginning")
        panel.set_ylabel("s until all went on")
        panel.legend(ncols=2 if narrow else 6, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return drawn
