"""Keeps what gpu.py found in a folder as benchmarks/results/gpu.json.

    python benchmarks/gpu/keep.py runs/gpu

`make benchmarks` then writes docs/benchmarks/gpu.md.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.gpu.rows import read
from benchmarks.shared.provenance import save

TABLES = ("steps", "kernels", "one group", "bytes a parameter", "first steps")
"""The kinds of rows that are kept whole; of the others it is kept how many were right."""


def main(folder: Path) -> None:
    rows = read(folder)
    (versions,) = [row for row in rows if row["kind"] == "versions"]
    names = "card", "CUDA", "NCCL", "torch", "Triton"
    card, *others = [versions[name] if name == "card" else f"{name} {versions[name]}" for name in names]
    kept = {kind: [_cells(row) for row in rows if row["kind"] == kind] for kind in TABLES}
    right = Counter((row["section"], row["kind"], row["ok"]) for row in rows if "ok" in row)
    checks = [{"section": s, "what": kind, "right": ok, "rows": count} for (s, kind, ok), count in right.items()]
    save(
        "gpu.json", commit=versions["commit"], machine=", ".join([card, *others]),
        command=versions["command"], checks=checks, **kept,
    )  # fmt: skip


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in row.items()
        if name not in ("section", "kind")
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
