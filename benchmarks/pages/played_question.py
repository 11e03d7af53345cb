"""The page about clusters of which one rank is played, beside real ones."""

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.pages.page import Page, Shown
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import LINKS, span


def played() -> Page:
    files = ["played_beside_real", "played_beside_real_4ranks"]
    found = [load(name) for name in files]
    rows: list[dict[str, Any]] = [row for each in found for row in each["rows"] if row["configuration"] != "nocomm"]
    cells = dict.fromkeys((row["ranks"], row["link"]) for row in rows)
    columns = ["played over real", *(f"{ranks} ranks, {LINKS[link]}" for ranks, link in cells)]

    def ratios(name: str, where: tuple[int, str]) -> str:
        own = (row["played"] for row in rows if (row["configuration"], row["ranks"], row["link"]) == (name, *where))
        return span(own, ".2f")

    table = [
        [name, *(ratios(name, cell) for cell in cells)] for name in dict.fromkeys(r["configuration"] for r in rows)
    ]
    verdict = (
        f"Within {100 * found[0]['within']:.0f}% of the real step in {' and '.join(_near(rows, found[0]['within']))}."
    )
    models = " and ".join(dict.fromkeys(row["model"] for row in rows))
    note = f"Medians of steps of {models}. Only real ranks share two cores, and wait for the slowest."
    return Page("played", "Is a played cluster true?", verdict, [Shown(files, columns, table, note)])


def _near(rows: list[dict[str, Any]], within: float) -> Iterator[str]:
    """In words, by number of ranks: how many played steps, and steps read from curves, are near the real ones."""
    for ranks in dict.fromkeys(row["ranks"] for row in rows):
        own = [row for row in rows if row["ranks"] == ranks]
        played, curve = (sum(abs(row[kind] - 1) <= within for row in own) for kind in ("played", "curve"))
        middle = median(row["played"] for row in own)
        yield f"{played} of {len(own)} cells of {ranks} ranks (median {middle:.2f}; from curves {curve})"
