"""The native kernels beside the reference in torch: one thread, in turns, median CPU time.

    python benchmarks/kernels/kernels.py [--small]

Each row is a whole pass: the gradient is added to the residual, encoded and packed, and the next residual is written;
or 8 payloads are decoded and added up. The figure is CPU time, which other load on the machine disturbs less than the
clock.
Writes benchmarks/results/kernels.json, but not of `--small`, and prints a Markdown table.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch

from benchmarks.kernels.passes import passes
from benchmarks.shared.provenance import save
from gradwire.ops import native
from gradwire.ops.backend import NATIVE, REFERENCE, Backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a million elements; prints the table alone")
    arguments = parser.parse_args()
    if not native.available():
        raise SystemExit(f"nothing to compare: {native.reason()}")
    torch.set_num_threads(1)
    sizes = [1_000_000] if arguments.small else [4_000_000, 25_000_000]
    rows = [row for n in sizes for row in measure(n)]
    print(f"{platform.processor() or platform.machine()}, {native.reason()}, torch {torch.__version__}\n")
    print("| pass | elements | reference ms | native ms | times |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['name']} | {row['n'] / 1e6:.0f} M | {row['reference_ms']:.1f} | {row['native_ms']:.2f} "
            f"| {row['reference_ms'] / row['native_ms']:.1f} |"
        )
    if not arguments.small:
        save("kernels.json", level=native.isa(), torch=torch.__version__, rows=rows)


def measure(n: int) -> Iterator[dict]:
    for each in passes(n, torch.device("cpu"), NATIVE):
        ours, theirs = in_turns(each.run, 9 if n > 10_000_000 else 25)
        yield {"name": each.name, "n": n, "native_ms": ours, "reference_ms": theirs}


def in_turns(run: Callable[[Backend], object], repeats: int) -> tuple[float, float]:
    """Median CPU milliseconds of the native kernel and of the reference, which run alternately."""
    times: dict[Backend, list[float]] = {NATIVE: [], REFERENCE: []}
    for turn in range(repeats + 2):
        for ops, kept in times.items():
            start = time.process_time()
            run(ops)
            if turn >= 2:
                kept.append(1000 * (time.process_time() - start))
    return statistics.median(times[NATIVE]), statistics.median(times[REFERENCE])


if __name__ == "__main__":
    main()
