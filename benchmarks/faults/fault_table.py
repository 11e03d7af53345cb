"""The table of `faults_beside.py`: a line for each fault, a cell for each system."""

from collections.abc import Sequence
from typing import Any

from benchmarks.shared.tables import middle

SYSTEMS = ("plain DDP", "torchft", "Gradwire")
COLUMNS = ["s until it goes on", *SYSTEMS]


def lines_of(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each fault: seconds until the system goes on, or how it ended."""
    faults = dict.fromkeys(row["fault"] for row in rows)
    return [
        [
            fault,
            *(_in_words([row for row in rows if (row["fault"], row["system"]) == (fault, each)]) for each in SYSTEMS),
        ]
        for fault in faults
    ]


def _in_words(rows: Sequence[dict[str, Any]]) -> str:
    went_on = [row for row in rows if row["went_on"]]
    if not went_on:
        ended = [row["seconds"] for row in rows if row["ended"]]
        hung = f", {len(rows) - len(ended)} of {len(rows)} hung" if len(ended) < len(rows) else ""
        return f"ended after {middle(ended)} s{hung}" if ended else "hung"
    words = [middle(row["seconds"] for row in went_on)]
    words += [f"{len(went_on)} of {len(rows)}"] if len(went_on) < len(rows) else []
    back = [row["back"] for row in rows if row["back"] is not None]
    words += [f"back {sum(back)}/{len(back)}"] if back else []
    words += ["models differ"] if not all(row["equal"] for row in rows) else []
    words += ["not finite"] if not all(row["finite"] for row in rows) else []
    return ", ".join(words)
