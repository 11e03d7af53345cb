"""The page about clusters of which one rank is played, beside real ones."""

from statistics import median
from typing import Any

from benchmarks.pages.page import Page, Shown
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import LINKS, span


def played() -> Page:
    files = ["played_beside_real", "played_beside_real_gpt"]
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
    near = {kind: sum(abs(row[kind] - 1) <= found[0]["within"] for row in rows) for kind in ("played", "curve")}
    verdict = (
        f"Within {100 * found[0]['within']:.0f}% of the real step in {near['played']} of {len(rows)} cells, the median "
        f"{median(row['played'] for row in rows):.2f}; read from its curve, in {near['curve']}."
    )
    models = " and ".join(dict.fromkeys(row["model"] for row in rows))
    note = f"Medians of steps of {models}; real ranks share two cores with their network."
    return Page("played", "Is a played cluster true?", verdict, [Shown(files, columns, table, note)])
