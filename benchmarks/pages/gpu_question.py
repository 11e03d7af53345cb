"""The page about one GPU, from what benchmarks/gpu/gpu.py found."""

from collections import Counter, defaultdict
from typing import Any

from benchmarks.pages.page import Page, Shown
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import span

NONE = "no communication"
CHECKS = {
    "correct": "rows whose recorded turns are computed ones, to the bit, to the end of the test",
    "waits": "rows in whose steady steps the host waits for nothing",
    "nccl": "steps of one rank over NCCL, whose group is made in seven ways",
    "doctor": "`gradwire doctor`, one rank",
    "shared": "jobs of four ranks that share the card, over gloo",
}
FAST = ("TopK 1 %", "ACP-SGD r4", "PowerSGD r4")


def gpu() -> Page:
    found = load("gpu")
    cells: dict[str, dict[float, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in found["steps"]:
        cells[row["what"]][row["gbit"]].append(row)
    links = list(dict.fromkeys(row["gbit"] for row in found["steps"]))
    times = [cells[what][links[0]][0]["of none"] for what in FAST]
    theirs = [cells[what][links[0]][0]["of none"] for what in ("torch PowerSGD r4", "DDP")]
    verdict = (
        f"BERT-base over {links[0]:.0f} Gbit/s, 8 ranks: {', '.join(FAST)} take {span(times)} times no communication, "
        f"torch's PowerSGD r4 {theirs[0]:.1f}, DDP {theirs[1]:.1f}."
    )
    tables = [_checks(found), _steps(cells, links), _groups(found)]
    return Page("gpu", "How is it on a GPU?", verdict, tables, NOTE)


NOTE = """The 89 rows had right means; torch gives up the memory of graphs that were dropped, as by a checkpoint, so
nothing was recorded after that. Mended since, as is the one row where two threads were first to use torch's linear
algebra. Hooks on gradients, which held the training thread up, are gone on GPUs, and kernels are new. **None of that
has run on a GPU.** Kernels alone: `results/gpu.json`."""


def _checks(found: dict[str, Any]) -> Shown:
    counts: Counter[tuple[str, bool]] = Counter()
    for check in found["checks"]:
        counts[check["section"], check["right"]] += check["rows"]
    rows = [[str(counts[section, True]), str(counts[section, False]), what] for section, what in CHECKS.items()]
    return Shown([], ["right", "not", "of"], rows)


def _steps(cells: dict[str, dict[float, list[dict[str, Any]]]], links: list[float]) -> Shown:
    def cell(rows: list[dict[str, Any]], what: str) -> list[str]:
        if not rows:
            return ["", "", ""]
        ratio = f"{rows[0]['of none']:.2f} ({span((rows[0]['least'], rows[0]['most']), '.2f')})"
        return [span((row["ms"] for row in rows), ".0f"), "" if what == NONE else ratio, f"{rows[0]['wire ms']:.0f}"]

    rows = [[what, *(each for link in links for each in cell(by[link], what))] for what, by in cells.items()]
    columns = ["", *(f"{name}, {link:.0f} Gbit/s" for link in links for name in ("ms", "of none", "wire ms"))]
    note = (
        "BERT-base, 32 x 128 tokens, bf16 autocast, a rank of 8 behind a card that is played; medians and spans of "
        'three rounds. Launching takes the host 41 to 50 ms. "Computed": without recordings.'
    )
    return Shown([], columns, rows, note)


def _groups(found: dict[str, Any]) -> Shown:
    names = "device ms", "recorded ms", "host ms", "recorded host ms"
    rows = [
        [row["what"], *(f"{row[name]:.2f}" for name in names), str(row["launches"]), f"{row['wire MB']:.1f}"]
        for row in found["one group"]
    ]
    note = "One group of 24.1 M elements, 8 ranks."
    return Shown(["gpu"], ["", *names, "launches", "MB sent"], rows, note)
