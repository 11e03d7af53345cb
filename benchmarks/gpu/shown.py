"""The tables of all that was found, as they are printed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.gpu.rows import MARKS, read
from benchmarks.shared.tables import markdown

WIDEST = 160
"""Characters of a cell, and of a row, that is printed."""
LOOKS_S = 2.0
"""Seconds from look to look for new rows."""


class Tables:
    """The tables of a folder, section by section, for the screen and for tables.md. A row with `ok` is printed where it
    is not true; all are counted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def show(self, section: str) -> None:
        """Prints the tables of a section, and adds them to tables.md."""
        rows = read(self._folder, section)
        with (self._folder / "tables.md").open("a") as file:
            file.write("\n".join([f"## {section}", *_tables(rows)]) + "\n\n")
        print("\n".join([f"## {section}", *_tables([row for row in rows if row.get("ok") is not True])]), flush=True)
        if good := [row for row in rows if row.get("ok") is True]:
            print(f"{len(good)} right\n", flush=True)

    def summary(self) -> str:
        """How many rows were right, failed and left out."""
        rows = read(self._folder)
        failed = sum(row["kind"] == "failed" or row.get("ok") is False for row in rows)
        right = sum(row.get("ok") is True for row in rows)
        return f"{failed} FAILED, {right} right; {sum(row['kind'] == 'left out' for row in rows)} left out"


@contextmanager
def shown_as_they_come(folder: Path) -> Iterator[None]:
    """A context in which each new row is printed in a line, but for those whose `ok` is true. The output of a run
    that is cut off has these lines alone."""
    over = Event()

    def follow(shown: int) -> None:
        last = False
        while not last:
            last = over.wait(LOOKS_S)
            rows = read(folder)
            lines = [_line(row) for row in rows[shown:] if row["kind"] not in MARKS and row.get("ok") is not True]
            print("".join(lines), end="", flush=True)
            shown = len(rows)

    following = Thread(target=follow, args=(len(read(folder)),), daemon=True)
    following.start()
    try:
        yield
    finally:
        over.set()
        following.join()


def _line(row: dict[str, Any]) -> str:
    cells = [f"{name} {_cell(value)}" for name, value in row.items() if name not in ("section", "kind")]
    return f"{row['section']}: {row['kind']}: {', '.join(cells)}"[:WIDEST] + "\n"


def _tables(rows: list[dict[str, Any]]) -> list[str]:
    """A table for each kind of row."""
    kinds = dict.fromkeys(row["kind"] for row in rows if row["kind"] not in MARKS)
    return [_table(kind, [row for row in rows if row["kind"] == kind]) for kind in kinds]


def _table(kind: str, rows: list[dict[str, Any]]) -> str:
    columns = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ("section", "kind")]
    cells = [[_cell(row.get(name, "")) for name in columns] for row in rows]
    return f"{kind}\n\n{markdown(columns, cells)}\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    text = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text.replace("|", "/").replace("\n", " ")[:WIDEST]
