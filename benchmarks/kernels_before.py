"""The kernels beside what there was before them: one thread, in turns, median CPU time.

    pip install --no-deps --target ../before git+file://$PWD@2967820
    python benchmarks/kernels_before.py --before ../before

Before them a pass was torch's operations, tile by tile: the gradient's sum, to see whether it is finite, the gradient
added in, the payload encoded, and what it holds taken out of the residual. The passes are those of kernels.py that
2967820 had as well; it had no codes of 4 bits. Each package computes in a process of its own, a run of one after a run
of the other. Writes benchmarks/results/kernels_before.json and prints a Markdown table.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from before_after import HERE, import_from
from page import markdown
from provenance import save

SIZES = (4_000_000, 25_000_000)
RANKS = 8
COLUMNS = ("pass", "elements", "before ms", "now ms", "times")


def main() -> None:
    arguments = parse()
    if arguments.tree:
        return compute(Path(arguments.tree))
    workers = {"before": Worker(arguments.before), "now": Worker(HERE.parent)}
    rows = [row for n in SIZES for row in measure(workers, n)]
    print(markdown(COLUMNS, map(cells_of, rows)))
    save("kernels_before.json", rows=rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="the folder with the package of 2967820")
    parser.add_argument("--tree", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not (arguments.before or arguments.tree):
        parser.error("--before: the folder with the package of 2967820")
    return arguments


class Worker:
    """A process that computes with one package: `ask` for a line's answer."""

    def __init__(self, tree: str | Path) -> None:
        path = str(Path(tree).resolve())
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--tree", path], env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def ask(self, line: str) -> str:
        print(line, file=self._process.stdin)
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def measure(workers: dict[str, Worker], n: int) -> Iterator[dict]:
    names = workers["before"].ask(f"make {n}").split("; ")
    workers["now"].ask(f"make {n}")
    repeats = 9 if n > 10_000_000 else 25
    for name in names:
        ms: dict[str, list[float]] = {each: [] for each in workers}
        for turn in range(repeats + 2):
            for each, worker in workers.items():
                found = float(worker.ask(name))
                if turn >= 2:
                    ms[each].append(found)
        yield {"name": name, "n": n} | {f"{each}_ms": statistics.median(found) for each, found in ms.items()}


def cells_of(row: dict) -> list[str]:
    before, now = row["before_ms"], row["now_ms"]
    return [row["name"], f"{row['n'] / 1e6:.0f} M", f"{before:.1f}", f"{now:.2f}", f"{before / now:.1f}"]


def compute(tree: Path) -> None:
    """In a worker: makes the passes for so many elements and says which there are, or runs one and says for how many
    ms."""
    import_from(tree)
    import torch

    torch.set_num_threads(1)
    runs: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        if line.startswith("make "):
            runs.clear()
            runs |= (now if tree == HERE.parent else before)(int(line.split()[1]))
            print("; ".join(runs), flush=True)
        else:
            start = time.process_time()
            runs[line.strip()]()
            print(1000 * (time.process_time() - start), flush=True)


def now(n: int) -> dict[str, Callable[[], object]]:
    from kernels import passes

    from gradwire.ops.backend import NATIVE

    return {name: lambda run=run: run(NATIVE) for name, run in passes(n)}


def before(n: int) -> dict[str, Callable[[], object]]:
    """With the package of 2967820, whose names these are."""
    import gradwire as gw

    codecs = {
        "top-k 1 %": gw.TopK(0.01), "top-k 0.1 %": gw.TopK(0.001), "8 bits, stochastic, blocks of 1024": gw.QSGD(),
        "ternary, blocks of 1024": gw.TernGrad(), "signs, blocks of 256": gw.EFSignSGD(),
        "one bit, blocks of 4096": gw.OneBit(),
    }  # fmt: skip
    runs = {}
    for name, codec in codecs.items():
        runs[name], runs[f"decode {RANKS}, {name}"] = before_passes(codec, n)
    return runs


def before_passes(codec, n: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """From a gradient of n elements to its payload and the next residual, and from payloads to their sum."""
    import torch
    from gradwire.layout import Layout

    from gradwire import Residual
    from gradwire.compressors import State, Workspace

    device = torch.device("cpu")
    state = State(Layout.vector(n), 0, RANKS, Workspace(device), Workspace(device))
    generator = torch.Generator().manual_seed(0)
    x, gradient = torch.randn(n, generator=generator), torch.randn(n, generator=generator)
    out, rows = torch.empty(n), torch.zeros(RANKS, codec.payload_bytes(n), dtype=torch.uint8)
    for rank, row in enumerate(rows):
        codec.encode(x.roll(rank * 12_345), row, state)
    payload = rows[0].clone()

    def encode() -> None:
        assert gradient.sum().isfinite()
        Residual().add({"x": x}, gradient, 1 / RANKS)
        codec.encode(x, payload, state)
        codec.commit(payload, x, state)

    return encode, lambda: codec.decode(rows, out, state)


if __name__ == "__main__":
    main()
