"""A page of docs/benchmarks: a question, its verdict, and the tables behind it, each with its origin."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from benchmarks.shared.provenance import command_today, commits_ago, load, origins
from benchmarks.shared.tables import markdown


@dataclass(frozen=True)
class Shown:
    """A table, the names of the results that it is made of, and a note for its readers."""

    results: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Page:
    """docs/benchmarks/`name`.md. `note` names things that were not measured, and why."""

    name: str
    question: str
    verdict: str
    tables: Sequence[Shown]
    note: str = ""

    @property
    def date(self) -> str:
        """The date of the oldest result on the page."""
        return min(load(name)["date"] for table in self.tables for name in table.results)

    def markdown(self, ages: bool = False) -> str:
        """The page; with `ages` each origin says how many commits ago it was measured."""
        tables = chain(*(_parts(table, ages) for table in self.tables))
        parts = [f"# {self.question}", f"**{self.verdict}**", *tables, self.note]
        return "\n\n".join(part for part in parts if part) + "\n"


def _parts(table: Shown, ages: bool) -> list[str]:
    grid = [markdown(table.columns, table.rows)] if table.rows else []
    return [table.note, *grid, "\n".join(_origins(table.results, ages))]


def _origins(names: Sequence[str], ages: bool) -> list[str]:
    """A line for each machine, with dates, commits and the commands that ran then."""
    machines = defaultdict(lambda: defaultdict(list))
    for found in chain(*(origins(load(name)) for name in names)):
        command = re.sub(r" --save \S+", "", command_today(found))
        ago = commits_ago(found) if ages else None
        age = "" if ago is None else f" ({ago} commits ago)"
        machine = found["machine"].replace("2 cores, 2 threads", "2 cores").replace("(R)", "").replace(" Processor", "")
        machines[machine][f"{found['date']}, {found['commit']}{age}"].append(f"`{command}`")
    lines = []
    for machine, runs in machines.items():
        lines.append(f"- {machine}; " + "; ".join(f"{run}: {', '.join(commands)}" for run, commands in runs.items()))
    return lines
