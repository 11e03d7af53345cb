"""Keeps what gpu.py found in a folder as a result: `gpu_h200` is what docs/benchmarks/gpu.md shows, which
`make benchmarks` then writes.

    python benchmarks/gpu/keep.py runs/gpu gpu_h200
    python benchmarks/gpu/keep.py runs/gpu gpu_cupcake     # a published system's rows, for the page of that one

The commit is the one here whose sources are those that were measured.
"""

import argparse
import re
import subprocess
import sys
import tarfile
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.gpu.device import hashed
from benchmarks.gpu.rows import read
from benchmarks.gpu.setups import SETUPS
from benchmarks.shared.provenance import ROOT, save

TABLES = ("steps", "set-up", "kernels", "one group", "bytes a parameter", "first steps")
"""The kinds of rows that are kept whole; of the others it is kept how many were right."""
ENDED = ("the section", "the process")
"""Rows about these say that a failure ended more than its own row, which has a row as well."""


def main(folder: Path, name: str) -> None:
    rows, system = read(folder), name.removeprefix("gpu_")
    if system in SETUPS:
        rows = [row for row in rows if row["section"] in ("versions", system)]
    versions = next((row for row in rows if row["kind"] == "versions"), None)
    if versions is None:
        only = f" --only versions,{system}" if system in SETUPS else ""
        raise SystemExit(f"{folder} does not say on which card: run gpu.py{only} anew")
    names = "card", "CUDA", "NCCL", "torch", "Triton"
    card, *others = [versions[name] if name == "card" else f"{name} {versions[name]}" for name in names]
    kept = {kind: [_cells(row) for row in rows if row["kind"] == kind] for kind in TABLES}
    counted = [row for row in rows if "ok" in row or (row["kind"] == "failed" and row["what"] not in ENDED)]
    right = Counter((row["section"], row["kind"], row.get("ok", False)) for row in counted)
    checks = [{"section": s, "what": kind, "right": ok, "rows": count} for (s, kind, ok), count in right.items()]
    save(
        f"{name}.json", commit=commit_of(versions["sources"]), machine=", ".join([card, *others]),
        command=re.sub(r" --out \S+", "", versions["command"]), checks=checks, **kept,
    )  # fmt: skip


def commit_of(sources: str) -> str:
    """The newest commit with these sources of the package, by their hash."""
    for commit in _git("rev-list", "HEAD").decode().split():
        with tarfile.open(fileobj=BytesIO(_git("archive", commit, "gradwire"))) as tar:
            files = {Path(each.name): tar.extractfile(each) for each in tar if each.name.endswith(".py")}
        if hashed(file.read() for _, file in sorted(files.items()) if file) == sources:
            return commit[:7]
    raise SystemExit(f"no commit here has the sources that were measured, {sources}: commit them first")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in row.items()
        if name not in ("section", "kind")
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", help="of the result")
    main(**vars(parser.parse_args()))
