"""The questions about faults that there are results for."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from checks import COLUMNS, cells, total
from page import Page, Shown, middle, span
from provenance import RESULTS, load

SOAKS = sorted(path.stem for path in RESULTS.glob("soak_*.json"))
"""A run for each seed."""


def soak() -> Page:
    runs = [load(name) for name in SOAKS]
    kinds = {kind: [each for run in runs for each in run["kinds"][kind]] for kind in runs[0]["kinds"]}
    rows = [
        [kind, str(len(seconds)), middle(each for each in seconds if each is not None), str(seconds.count(None))]
        for kind, seconds in kinds.items()
        if seconds
    ]
    faults, broken = sum(map(len, kinds.values())), sum(len(run["broken"]) for run in runs)
    held = "every law held" if not broken else f"{broken} times a law did not hold"
    minutes = sum(run["seconds"] for run in runs) / 60
    befell = ", ".join(f"{name} {sum(run['front_ends'][name] for run in runs)}" for name in runs[0]["front_ends"])
    columns = ["fault", "how many", "s until all went on", "hung"]
    shown = Shown(SOAKS, columns, rows, f"{runs[0]['place']}; {befell}.")
    verdict = f"{faults:,} random faults in {minutes:.0f} minutes: {held}."
    return Page("soak", "What do random faults break?", verdict, [shown])


def checks() -> Page:
    found = load("checks")
    costs = [100 * total(row) for row in found["rows"]]
    errors = [100 * row["error_ms"] / row["ms"] for row in found["rows"]]
    verdict = (
        f"{median(costs):+.1f}% of a step over {found['link']}, {min(costs):+.1f} to {max(costs):+.1f}, each within "
        f"{max(errors):.1f}."
    )
    note = f"2 ranks; `elastic=True`'s message, watch and heartbeat, `verify()` every {found['every']} steps."
    shown = Shown(["checks"], COLUMNS, [cells(row) for row in found["rows"]], note)
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


SYSTEMS = ("plain DDP", "torchft", "Gradwire")
BESIDE = ["s until it goes on", *SYSTEMS]


def faults_beside() -> Page:
    found = load("faults_beside")
    rows = side_by_side(found["rows"])
    ended = _systems(row for row in found["rows"] if row["fault"] == "kill" and not row["went_on"])
    go_on = _systems(row for row in found["rows"] if row["fault"] == "kill" and row["went_on"])
    parted = _systems(row for row in found["rows"] if row["fault"] == "corrupt" and not row["alike"])
    verdict = f"A kill ends {ended}; {go_on} go on. A flipped bit parts {parted} unseen."
    note = f"{found['ranks']} ranks, timeout {found['timeout_s']:.0f} s, stops {found['stop_s']:.0f} s."
    shown = Shown(["faults_beside"], BESIDE, rows, note)
    return Page("faults_beside", "What do the same faults do to others?", verdict, [shown])


def side_by_side(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each fault, in words."""
    faults = dict.fromkeys(row["fault"] for row in rows)
    return [
        [
            fault,
            *(_in_words([row for row in rows if (row["fault"], row["system"]) == (fault, each)]) for each in SYSTEMS),
        ]
        for fault in faults
    ]


def _systems(rows: Iterable[dict[str, Any]]) -> str:
    return " and ".join(dict.fromkeys(row["system"] for row in rows))


def _in_words(rows: Sequence[dict[str, Any]]) -> str:
    went_on = [row for row in rows if row["went_on"]]
    if not went_on:
        ended = all(row["ended"] for row in rows)
        return f"ended after {middle(row['seconds'] for row in rows)} s" if ended else "hung"
    words = [middle(row["seconds"] for row in went_on)]
    words += [f"{len(went_on)} of {len(rows)}"] if len(went_on) < len(rows) else []
    back = [row["back"] for row in rows if row["back"] is not None]
    words += [f"back {sum(back)}/{len(back)}"] if back else []
    words += ["models differ"] if not all(row["alike"] for row in rows) else []
    words += ["not finite"] if not all(row["finite"] for row in rows) else []
    return ", ".join(words)


FAULTS = (
    *([soak] if SOAKS else []),
    *(each for each in (checks, killed, faults_beside) if (RESULTS / f"{each.__name__}.json").exists()),
)
