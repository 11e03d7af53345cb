"""The page about one GPU, from what benchmarks/gpu/gpu.py found."""

from typing import Any

from benchmarks.pages.page import Page, Shown
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import span

NONE = "no communication"
TIMES, ROWS, SANITIZED, FIRST = "gpu_h200", "gpu_checks", "gpu_steps", "gpu"
"""The results; of the last three only how many rows were right is shown."""
CHECKS = {
    "correct": (ROWS, "rows whose recorded turns are computed ones, to the bit"),
    "waits": (ROWS, "rows in whose steady steps the host waits for nothing"),
    "sanitizer": (SANITIZED, "rows in which `compute-sanitizer` finds nothing"),
    "nccl": (FIRST, "steps of one rank over NCCL, whose group is made in seven ways"),
    "doctor": (FIRST, "`gradwire doctor`, one rank"),
    "shared": (FIRST, "jobs of four ranks that share the card, over gloo"),
}
FAST = ("TopK 1 %", "ACP-SGD r4", "PowerSGD r4")
VERDICT = "BERT-base, 32 x 512 tokens"
"""The model of the verdict: the one of most rounds."""
GBIT = 25.0
DECODE = "decode 8, "
QUARTILES = 4
"""Rounds of which quartiles are shown."""
KINDS = ("planned", "layer by layer", "one group")
"""The groups of the table of layers."""


def gpu() -> Page:
    found = load(TIMES)
    groups = {row["what"]: row["recorded ms"] for row in found["one group"]}
    steps = {row["what"]: row for row in found["steps"] if row["model"] == VERDICT}
    times, host = (span((steps[what][name] for what in FAST), ".2f") for name in ("of none", "host of none"))
    verdict = (
        f"24 M gradients take {', '.join(FAST)} {span((groups[what] for what in FAST), '.2f')} ms. Steps of BERT-base "
        f"on 512 tokens, 8 ranks at 25 Gbit/s, take {times} times no communication, {host} times as long to launch; "
        f"torch's PowerSGD r4 {steps['torch PowerSGD r4']['of none']:.2f}, DDP {steps['DDP']['of none']:.1f}."
    )
    tables = [_checks(), _groups(found), _kernels(found), *_steps(found), _layers(found), _memory(found)]
    return Page("gpu", "How is it on a GPU?", verdict, tables, NOTE)


NOTE = 'Both rows under "not" are [mended](../gpu.md#what-ran-found) since. Default groups are larger since.'


def _checks() -> Shown:
    rows = []
    for section, (name, what) in CHECKS.items():
        result = load(name)
        counts = [sum(each["rows"] for each in result["checks"] if (each["section"], each["right"]) == (section, right))
                  for right in (True, False)]  # fmt: skip
        rows.append([*map(str, counts), what, result["commit"].rstrip("+")])
    return Shown([ROWS, SANITIZED, FIRST], ["right", "not", "of", "commit"], rows)


def _groups(found: dict[str, Any]) -> Shown:
    names = "recorded ms", "host ms", "recorded host ms"
    rows = [
        [row["what"], *(f"{row[name]:.2f}" for name in names), str(row["launches"]), f"{row['wire MB']:.1f}"]
        for row in found["one group"]
    ]
    return Shown([TIMES], ["", *names, "launches", "MB sent"], rows, "One group of 24.1 M elements, 8 ranks.")


def _kernels(found: dict[str, Any]) -> Shown:
    """A row for each pass, with the decoding of 8 such payloads where that is one."""
    own = {row["what"]: row for row in found["kernels"]}
    rows = []
    for name, row in own.items():
        if not name.startswith(DECODE):
            both = [row, *([own[DECODE + name]] if DECODE + name in own else [])]
            speeds = [cell for each in both for cell in (f"{1e3 * each['ms']:.0f}", f"{each['of a copy']:.2f}")]
            rows.append([name, *speeds, *["", ""] * (2 - len(both)), str(sum(each["differ"] for each in both))])
    columns = ["", "us", "of a copy's speed", "decode 8: us", "of a copy's", "differ"]
    note = "Beside a copy of the same bytes; elements that are not torch's, which orders indices of slices otherwise."
    return Shown([], columns, rows, note)


def _steps(found: dict[str, Any]) -> list[Shown]:
    """A table for each link, with a column for each model."""
    tables = []
    for gbit in (GBIT, 10.0):
        of: dict[str, dict[str, dict[str, Any]]] = {}
        for row in found["steps"]:
            if row["gbit"] == gbit and not any(f", {kind}, " in row["what"] for kind in KINDS):
                of.setdefault(row["model"], {}).setdefault(row["what"], row)
        names = list(dict.fromkeys(what for rows in of.values() for what in rows))
        cells = [[what, *(_cell(rows.get(what)) for rows in of.values())] for what in names]
        rounds = [max(row["rounds"] for what, row in rows.items() if what != NONE) for rows in of.values()]
        what = "ms of a step (times no communication, quartiles); ms of the wire"
        note = f"{gbit:.0f} Gbit/s, {', '.join(map(str, rounds))} rounds: {what if gbit == GBIT else 'the same'}."
        tables.append(Shown([], ["", *of], cells, note))
    return tables


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["what"] == NONE:
        return f"{row['ms']:.0f}"
    quartiles = f", {row['lower']:.2f}–{row['upper']:.2f}" if row["rounds"] >= QUARTILES else ""
    return f"{row['ms']:.0f} ({row['of none']:.2f}{quartiles}); {row['wire ms']:.0f}"


def _layers(found: dict[str, Any]) -> Shown:
    rows = {row["what"]: row for row in found["steps"]}
    cells = [
        [f"{name}, {how}", *(_cell(rows.get(f"{name}, {kind}, {how}")) for kind in KINDS)]
        for name in ("TopK 1 %", "EFSignSGD")
        for how in ("recorded", "computed")
    ]
    note = "ResNet-50 at 10 Gbit/s, one round: default groups, one a tensor, and one."
    return Shown([], ["", *KINDS], cells, note)


def _memory(found: dict[str, Any]) -> Shown:
    rows = [
        [row["what"], *(f"{row[name]:.1f}" for name in ("held more", "peak more"))]
        for row in found["bytes a parameter"]
        if row["what"] != NONE
    ]
    return Shown([], ["", "held", "at the peak"], rows, "Bytes a parameter of BERT-base beyond no communication.")
