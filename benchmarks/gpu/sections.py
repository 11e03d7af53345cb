"""The sections, and the process of one: `python -m benchmarks.gpu.sections NAME FOLDER DEVICE [tiny]`, which imports,
then reads its seconds from standard input."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

SECTIONS = {
    "card": 15.0, "correct": 100.0, "nccl": 45.0, "doctor": 45.0, "kernels": 60.0, "steps": 130.0, "layers": 25.0,
    "waits": 40.0, "memory": 40.0, "first": 30.0,
}  # fmt: skip
"""Seconds of eight minutes that each may take; the first ones leave some."""


def main() -> None:
    name, folder, kind, *tiny = sys.argv[1:]
    run: Callable = import_module(f"benchmarks.gpu.{name}").run
    from benchmarks.gpu.card import Card
    from benchmarks.gpu.rows import Rows

    # all is imported: wait for this section's turn
    seconds = sys.stdin.readline()
    if seconds:
        run(Rows(Path(folder), name, float(seconds)), Card.of(kind, bool(tiny)))


if __name__ == "__main__":
    main()
