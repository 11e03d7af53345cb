"""The page about one GPU, from what benchmarks/gpu/gpu.py found in three runs."""

from collections import Counter, defaultdict
from typing import Any

from benchmarks.pages.page import Page, Shown
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import span

NONE = "no communication"
FIRST, STEPS, KERNELS = "gpu", "gpu_steps", "gpu_kernels"
"""The results, in the order in which they were measured."""
CHECKS = {
    "correct": "rows whose recorded turns are computed ones, to the bit, to the end of the test",
    "waits": "rows in whose steady steps the host waits for nothing",
    "sanitizer": "rows in which `compute-sanitizer` finds nothing",
    "nccl": "steps of one rank over NCCL, whose group is made in seven ways",
    "doctor": "`gradwire doctor`, one rank",
    "shared": "jobs of four ranks that share the card, over gloo",
}
FAST = ("TopK 1 %", "ACP-SGD r4", "PowerSGD r4")


def gpu() -> Page:
    first, steps, kernels = map(load, (FIRST, STEPS, KERNELS))
    cells: dict[str, dict[float, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in steps["steps"]:
        cells[row["what"]][row["gbit"]].append(row)
    links = list(dict.fromkeys(row["gbit"] for row in steps["steps"]))
    times = [cells[what][links[0]][0]["of none"] for what in FAST]
    theirs = cells["torch PowerSGD r4"][links[0]][0]["of none"]
    groups = {row["what"]: row["recorded ms"] for row in kernels["one group"]}
    verdict = (
        f"24 M gradients take {', '.join(FAST)} {span((groups[what] for what in FAST), '.2f')} ms, and steps of BERT "
        f"{span(times, '.2f')} times no communication; torch's PowerSGD r4 {theirs:.1f}."
    )
    tables = [_checks(first, steps, kernels), _groups(first, kernels), _steps(cells, links), _memory(kernels)]
    return Page("gpu", "How is it on a GPU?", verdict, tables, NOTE)


NOTE = """At bbd5d51 sums of several ranks' entries **lacked some**: Triton 3.6 compiled a moving pointer into one that
stood still, which no interpreter shows. Since e99ffb4 the trial before the first step sums payloads that differ. The
GPU computes 16 ms of a step; the rest waits for Python."""


def _checks(*results: dict[str, Any]) -> Shown:
    rows = []
    for result in results:
        counts: Counter[tuple[str, bool]] = Counter()
        for check in result["checks"]:
            counts[check["section"], check["right"]] += check["rows"]
        for section, what in CHECKS.items():
            if right := counts[section, True]:
                commit = result["commit"].rstrip("+")
                rows.append([str(right), str(counts[section, False]), what, commit, list(CHECKS).index(section)])
    rows.sort(key=lambda row: row[-1])
    return Shown([FIRST, STEPS], ["right", "not", "of", "commit"], [row[:-1] for row in rows])


def _steps(cells: dict[str, dict[float, list[dict[str, Any]]]], links: list[float]) -> Shown:
    def cell(rows: list[dict[str, Any]], what: str) -> list[str]:
        if not rows:
            return ["", "", ""]
        ratio = f"{rows[0]['of none']:.2f} ({span((rows[0]['least'], rows[0]['most']), '.2f')})"
        return [span((row["ms"] for row in rows), ".0f"), "" if what == NONE else ratio, f"{rows[0]['wire ms']:.0f}"]

    rows = [[what, *(each for link in links for each in cell(by[link], what))] for what, by in cells.items()]
    columns = ["", *(f"{name}, {link:.0f} Gbit/s" for link in links for name in ("ms", "of none", "wire ms"))]
    note = "BERT-base, 32 x 128 tokens, bf16, a rank of 8 behind a played card; medians and spans of rounds."
    return Shown([], columns, rows, note)


def _groups(first: dict[str, Any], kernels: dict[str, Any]) -> Shown:
    names = "recorded ms", "device ms", "host ms", "recorded host ms"
    before = {row["what"]: row["recorded ms"] for row in first["one group"]}
    rows = [
        [
            row["what"], f"{before[row['what']]:.2f}", *(f"{row[name]:.2f}" for name in names),
            str(row["launches"]), f"{row['wire MB']:.1f}",
        ]
        for row in kernels["one group"]
    ]  # fmt: skip
    note = "One group of 24.1 M elements, 8 ranks."
    return Shown([KERNELS], ["", "recorded ms, a431205", *names, "launches", "MB sent"], rows, note)


def _memory(kernels: dict[str, Any]) -> Shown:
    rows = [
        [row["what"], *(f"{row[name]:.1f}" for name in ("held more", "peak more"))]
        for row in kernels["bytes a parameter"]
        if row["what"] != NONE
    ]
    return Shown([], ["", "held", "at the peak"], rows, "Bytes a parameter of BERT-base beyond no communication.")
