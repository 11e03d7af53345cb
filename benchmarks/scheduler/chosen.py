"""Results of `choices.py`: seconds to dense's last loss + 1 %, of Auto's choice and of every candidate.

A `row` is a cell: Auto's choice, and the seconds of steps. `curves` are the losses by step of its candidates.
"""

from math import inf
from typing import Any

DENSE, NEAR = "ddp", 1.01

Curve = list[tuple[int, float]]
Curves = dict[str, Curve]
Row = dict[str, Any]


def steps_to(own: Curve, dense: Curve) -> float:
    """Steps to dense's last loss + 1 %; infinite where it is never reached."""
    return next((step for step, loss in own if loss <= NEAR * dense[-1][1]), inf)


def seconds_to(row: Row, curves: Curves) -> dict[str, float]:
    """Seconds to dense's loss of each candidate."""
    return {text: steps_to(points, curves[DENSE]) * row["found"]["s"][text] for text, points in curves.items()}


def autos_seconds_to(row: Row, curves: Curves) -> float:
    """Seconds to dense's loss of Auto's choice."""
    found = row["found"]
    return steps_to(curves[found["sent"]], curves[DENSE]) * found["s"]["auto"]


COLUMNS = ("link", "task", "Auto", "s to dense's loss + 1 %", "best candidate", "s", "Auto / best")


def cells(row: Row, curves: Curves) -> list[str]:
    """A row of the table."""
    taken, auto = seconds_to(row, curves), autos_seconds_to(row, curves)
    best = min(taken, key=taken.__getitem__)
    times = f"{auto:.1f}", best, f"{taken[best]:.1f}", f"{auto / taken[best]:.2f}"
    return [row["link"], f"{row['task']}, {row['ranks']} ranks", row["found"]["sent"], *times]


def sooner(cases: list[tuple[Row, Curves]]) -> list[list[str]]:
    """A row for each candidate: how many times sooner than dense it reaches dense's loss, on each link and task."""
    taken = [seconds_to(*own) for own in cases]
    return [
        [text, *(f"{own[DENSE] / own[text]:.1f}" if own[text] < inf else "not" for own in taken)] for text in taken[0]
    ]
