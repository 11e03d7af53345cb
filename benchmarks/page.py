"""A page of the benchmarks: a question, its verdict, and the tables that it stands on, each with its origin."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from provenance import commits_ago, load


@dataclass(frozen=True)
class Shown:
    """A table made of the results of these names, and what has to be known to read it."""

    results: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Page:
    """docs/benchmarks/`name`.md. `note` says what was not measured, and why."""

    name: str
    question: str
    verdict: str
    tables: Sequence[Shown]
    note: str = ""

    @property
    def date(self) -> str:
        """When the oldest of its results was measured."""
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
    """A line for each date, commit and machine, with the commands that ran there."""
    commands = defaultdict(list)
    for found in map(load, names):
        command = re.sub(r" --save \S+", "", found["command"])
        ago = commits_ago(found) if ages else None
        age = "" if ago is None else f" ({ago} commits ago)"
        machine = found["machine"].replace("2 cores, 2 threads", "2 cores").replace("(R)", "").replace(" Processor", "")
        commands[f"{found['date']}, {found['commit']}{age}, {machine}"].append(f"`{command}`")
    return [f"- {origin}: {', '.join(own)}" for origin, own in commands.items()]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in [columns, *rows])
    return "\n".join([head, "|---" * len(columns) + "|", *body])


def span(numbers: Iterable[float], form: str = ".1f") -> str:
    """The least and the most of them, or both in one where they look alike."""
    found = sorted(numbers)
    ends = dict.fromkeys(format(each, form) for each in (found[0], found[-1]))
    return "–".join(ends)


def middle(numbers: Iterable[float], form: str = ".2f") -> str:
    """Their median, and their span in brackets."""
    found = list(numbers)
    return f"{format(median(found), form)} ({span(found, form)})"
