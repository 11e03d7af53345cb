"""The page about clusters of which one rank is played, beside real ones."""

from statistics import median
from typing import Any

from benchmarks.pages.page import Page, Shown
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import span

FILES = {
    "processor free, 2 ranks": "played_beside_real_resting",
    "processor free, 4 ranks": "played_beside_real_resting_4ranks",
    "computing, 2 ranks": "played_beside_real",
    "computing, 4 ranks": "played_beside_real_4ranks",
}
"""The results by their column."""


def played() -> Page:
    found = {column: _rows(name) for column, name in FILES.items()}
    within = load(FILES["computing, 2 ranks"])["within"]
    near = [_near(_ratios(rows, "played"), within) for rows in found.values()]
    verdict = (
        f"Within {100 * within:.0f}% of the real step in {near[0]} cells of 2 ranks and {near[1]} of 4 ranks where "
        f"computing leaves the processor free, as on a GPU; in {near[2]} and {near[3]} where it shares two cores with "
        "gloo and the links."
    )
    note = "tiny-vgg16 and tiny-gpt, 100 Mbit/s to 10 Gbit/s. Processor free: layers sleep (4 ranks: tiny-vgg16)."
    names = dict.fromkeys(row["configuration"] for rows in found.values() for row in rows)
    lines = [[name, *(span(_ratios(rows, "played", name), ".2f") for rows in found.values())] for name in names]
    lines.append(["median", *(f"{median(_ratios(rows, 'played')):.2f}" for rows in found.values())])
    lines.append([f"within {100 * within:.0f}%", *near])
    lines.append(["the same, from curves", *(_near(_ratios(rows, "curve"), within) for rows in found.values())])
    shown = Shown(list(FILES.values()), ["played over real", *FILES], lines, note)
    return Page("played", "Is a played cluster true?", verdict, [shown])


def _rows(name: str) -> list[dict[str, Any]]:
    return [row for row in load(name)["rows"] if row["configuration"] != "nocomm"]


def _ratios(rows: list[dict[str, Any]], kind: str, configuration: str | None = None) -> list[float]:
    """Steps of this kind, "played" or read from a "curve", over real ones."""
    return [row[kind] for row in rows if configuration in (None, row["configuration"])]


def _near(ratios: list[float], within: float) -> str:
    """In words, how many of them are near 1."""
    near = [abs(ratio - 1) <= within for ratio in ratios]
    return f"{sum(near)} of {len(near)}"
