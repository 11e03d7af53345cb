"""What `choices.py` has found: seconds to dense's last loss + 1 %, of what Auto chose and of every candidate.

A `row` is a cell's: who was chosen, and the seconds of steps. `curves` are the losses by step of its candidates.
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
    """Of each candidate."""
    return {text: steps_to(points, curves[DENSE]) * row["found"]["s"][text] for text, points in curves.items()}


def autos_seconds_to(row: Row, curves: Curves) -> float:
    """Of what Auto chose."""
    found = row["found"]
    return steps_to(curves[found["sent"]], curves[DENSE]) * found["s"]["auto"]


COLUMNS = ("link", "task", "Auto", "s to dense's loss + 1 %", "best candidate", "s", "Auto / best")


def cells(row: Row, curves: Curves) -> list[str]:
    """A row of the table."""
    taken, auto = seconds_to(row, curves), autos_seconds_to(row, curves)
    best = min(taken, key=taken.__getitem__)
    times = f"{auto:.1f}", best, f"{taken[best]:.1f}", f"{auto / taken[best]:.2f}"
    return [row["link"], f"{row['task']}, {row['ranks']} ranks", row["found"]["sent"], *times]


def sooner(told: list[tuple[Row, Curves]]) -> list[list[str]]:
    """A row for each candidate: how many times sooner than dense it is there, on each link and task."""
    taken = [seconds_to(*own) for own in told]
    return [
        [text, *(f"{own[DENSE] / own[text]:.1f}" if own[text] < inf else "not" for own in taken)] for text in taken[0]
    ]
