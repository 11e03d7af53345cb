"""Pages about faults, as far as there are results."""

from collections.abc import Iterable
from statistics import median
from typing import Any

from benchmarks.faults import fault_table
from benchmarks.pages.page import Page, Shown
from benchmarks.shared.provenance import RESULTS, load
from benchmarks.shared.tables import middle, span
from benchmarks.steps import checks as checked

SOAKS = sorted(path.stem for path in RESULTS.glob("soak_*.json"))
"""A run for each seed."""


def soak() -> Page:
    runs = [load(name) for name in SOAKS]
    kinds = {kind: [each for run in runs for each in run["kinds"].get(kind, [])] for kind in _keys(runs, "kinds")}
    rows = [
        [
            kind,
            str(len(seconds)),
            middle(went_on) if (went_on := [s for s in seconds if s is not None]) else "",
            str(seconds.count(None)),
        ]
        for kind, seconds in kinds.items()
        if seconds
    ]
    faults, broken = sum(map(len, kinds.values())), sum(len(run["broken"]) for run in runs)
    held = "every law held" if not broken else f"{broken} times a law did not hold"
    minutes = sum(run["seconds"] for run in runs) / 60
    counts = ", ".join(
        f"{name} {sum(run['front_ends'].get(name, 0) for run in runs)}" for name in _keys(runs, "front_ends")
    )
    columns = ["fault", "how many", "s until all went on", "hung"]
    shown = Shown(SOAKS, columns, rows, f"{runs[0]['place']}; {counts}.")
    verdict = f"{faults:,} random faults in {minutes:.0f} minutes: {held}."
    return Page("soak", "What do random faults break?", verdict, [shown])


def _keys(runs: list[dict[str, Any]], name: str) -> list[str]:
    """The keys of this part of any run: a later one may have a kind that those before it lack."""
    return list(dict.fromkeys(key for run in runs for key in run[name]))


def checks() -> Page:
    found = load("checks")
    costs = [100 * checked.total(row) for row in found["rows"]]
    errors = [100 * row["error_ms"] / row["ms"] for row in found["rows"]]
    verdict = (
        f"{median(costs):+.1f}% of a step over {found['link']} in the median, {min(costs):+.1f} to {max(costs):+.1f}, "
        f"each measured within {max(errors):.1f} points (two standard errors)."
    )
    note = f"2 ranks; `elastic=True`'s message, watch and heartbeat, `verify()` every {found['every']} steps."
    shown = Shown(["checks"], checked.COLUMNS, [checked.cells(row) for row in found["rows"]], note)
    return Page("checks", "What do all checks cost?", verdict, [shown])


def killed() -> Page:
    found = load("killed")
    whole, faulty = ([row for row in found["rows"] if (row["kill"] is None) == is_whole] for is_whole in (True, False))
    seconds = [row["seconds"] for row in faulty]
    rows = [
        ["uninterrupted", str(len(whole)), span((row["loss"] for row in whole), ".4f")],
        ["one killed, one joins", str(len(faulty)), span((row["loss"] for row in faulty), ".4f")],
    ]
    verdict = f"It goes on after {span(seconds)} s, survivors and newcomer bit-equal at every step."
    note = f"{found['ranks']} ranks, {found['steps']} steps, three seeds; timeout {found['timeout_s']:.0f} s."
    shown = Shown(["killed"], ["trainings", "how many", "held-out loss"], rows, note)
    return Page("killed", "What if one of four replicas is killed?", verdict, [shown])


def faults_beside() -> Page:
    found = load("faults_beside")
    rows = fault_table.lines_of(found["rows"])
    ended = _systems(row for row in found["rows"] if row["fault"] == "kill" and not row["went_on"])
    go_on = _systems(row for row in found["rows"] if row["fault"] == "kill" and row["went_on"])
    kill, stop = (
        " and ".join(_seconds(found["rows"], fault, system) for system in go_on) for fault in ("kill", "stop")
    )
    parted = _systems(row for row in found["rows"] if row["fault"] == "corrupt" and not row["equal"])
    verdict = (
        f"A kill ends {' and '.join(ended)}; {' and '.join(go_on)} go on after {kill} s (a stop: {stop}). "
        f"A flipped bit goes unnoticed under {' and '.join(parted)}."
    )
    note = f"{found['ranks']} ranks, timeout {found['timeout_s']:.0f} s, stops {found['stop_s']:.0f} s."
    shown = Shown(["faults_beside"], fault_table.COLUMNS, rows, note)
    return Page("faults_beside", "What do the same faults do to others?", verdict, [shown])


def _systems(rows: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["system"] for row in rows))


def _seconds(rows: Iterable[dict[str, Any]], fault: str, system: str) -> str:
    """The median seconds after this fault until the system went on."""
    took = [row["seconds"] for row in rows if (row["fault"], row["system"]) == (fault, system) and row["went_on"]]
    return f"{median(took):.1f}"


FAULTS = (soak, checks, killed, faults_beside)
