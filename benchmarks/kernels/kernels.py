"""The native kernels beside the reference in torch: one thread, in turns, median CPU time.

    python benchmarks/kernels/kernels.py [--small]

Each row is a whole pass: the gradient is added to the residual, encoded and packed, and the next residual is written;
or 8 payloads are decoded and added up. The figure is CPU time, which other load on the machine disturbs less than the
clock.
Writes benchmarks/results/kernels.json and prints a Markdown table.
"""

import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch
from torch import Tensor

from benchmarks.shared.provenance import save
from gradwire.ops import native
from gradwire.ops.backend import NATIVE, REFERENCE, Backend
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, Code, nearest, one_bit, qsgd, sign, ternary
from gradwire.ops.noise import Seed

RANKS = 8
WIDTH = 4608
Run = Callable[[Backend], object]


def main() -> None:
    if not native.available():
        raise SystemExit(f"nothing to compare: {native.reason()}")
    torch.set_num_threads(1)
    sizes = [1_000_000] if "--small" in sys.argv else [4_000_000, 25_000_000]
    rows = [row for n in sizes for row in measure(n)]
    print(f"{platform.processor() or platform.machine()}, {native.reason()}, torch {torch.__version__}\n")
    print("| pass | elements | reference ms | native ms | times |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['name']} | {row['n'] / 1e6:.0f} M | {row['reference_ms']:.1f} | {row['native_ms']:.2f} "
            f"| {row['reference_ms'] / row['native_ms']:.1f} |"
        )
    save("kernels.json", level=native.isa(), torch=torch.__version__, rows=rows)


def measure(n: int) -> Iterator[dict]:
    for name, run in passes(n):
        ours, theirs = in_turns(run, 9 if n > 10_000_000 else 25)
        yield {"name": name, "n": n, "native_ms": ours, "reference_ms": theirs}


def in_turns(run: Run, repeats: int) -> tuple[float, float]:
    """Median CPU milliseconds of the native kernel and of the reference, which run alternately."""
    times: dict[Backend, list[float]] = {NATIVE: [], REFERENCE: []}
    for turn in range(repeats + 2):
        for ops, kept in times.items():
            start = time.process_time()
            run(ops)
            if turn >= 2:
                kept.append(1000 * (time.process_time() - start))
    return statistics.median(times[NATIVE]), statistics.median(times[REFERENCE])


def passes(n: int) -> Iterator[tuple[str, Run]]:
    generator = torch.Generator().manual_seed(0)
    old, gradient = torch.randn(n, generator=generator), torch.randn(n, generator=generator)
    next = torch.empty(n)
    yield "add in", lambda ops: ops.add_in(next, old, gradient, 1.0, 0.125)
    for name, entries in {
        "top-k 1 %": Entries(n, n // 100), "top-k 0.1 %": Entries(n, n // 1000),
        "top-k 1/16, 10 bits": Entries(n, n // 16, 4),
    }.items():  # fmt: skip
        yield name, selecting(next, old, gradient, entries)
        yield f"decode {RANKS}, {name}", summing_entries(next, entry_rows(old, entries), entries)
    matrix = old[: n // WIDTH * WIDTH].view(-1, WIDTH)
    yield f"top-k 1 % of each {WIDTH}", lambda ops: ops.top_k_each([matrix], WIDTH // 100, 1)
    for name, code in codes().items():
        blocks = Blocks((n,), code)
        yield name, quantising(next, old, gradient, blocks)
        yield f"decode {RANKS}, {name}", summing_blocks(next, block_rows(old, blocks), blocks)


def codes() -> dict[str, Code]:
    return {
        "8 bits, stochastic, blocks of 1024": qsgd(), "8 bits, nearest, blocks of 128": nearest(8, 128),
        "4 bits, nearest, blocks of 256": nearest(4, 256), "4 bits, nearest, blocks of 64": nearest(4),
        "ternary, blocks of 1024": ternary(), "signs, blocks of 256": sign(), "one bit, blocks of 4096": one_bit(),
    }  # fmt: skip


def selecting(next: Tensor, old: Tensor, gradient: Tensor, layout: Entries) -> Run:
    payload = torch.zeros(layout.nbytes, dtype=torch.uint8)
    return lambda ops: ops.add_select(next, old, gradient, 1.0, 0.125, [layout], payload[None])


def quantising(next: Tensor, old: Tensor, gradient: Tensor, layout: Blocks) -> Run:
    payload = torch.zeros(layout.nbytes, dtype=torch.uint8)
    return lambda ops: ops.add_quantise(
        next, old, gradient, 1.0, 0.125, [layout], payload[None], keep=True, seeds=[Seed(1)]
    )


def summing_entries(out: Tensor, rows: Tensor, layout: Entries) -> Run:
    return lambda ops: ops.decode_entries(rows[None], out, [layout])


def summing_blocks(out: Tensor, rows: Tensor, layout: Blocks) -> Run:
    return lambda ops: ops.decode_blocks(rows[None], out, [layout])


def entry_rows(x: Tensor, layout: Entries) -> Tensor:
    """The payloads of all ranks; each rank encodes x rolled by another number of places."""
    rows = torch.zeros(RANKS, layout.nbytes, dtype=torch.uint8)
    for rank, row in enumerate(rows):
        NATIVE.add_select(torch.empty_like(x), x.roll(rank * 12_345), None, 1.0, 0.0, [layout], row[None])
    return rows


def block_rows(x: Tensor, layout: Blocks) -> Tensor:
    """The same in blocks of codes."""
    rows = torch.zeros(RANKS, layout.nbytes, dtype=torch.uint8)
    for rank, row in enumerate(rows):
        NATIVE.add_quantise(
            torch.empty_like(x), x.roll(rank * 12_345), None, 1.0, 0.0, [layout], row[None], keep=False, seeds=[Seed(0)]
        )
    return rows


if __name__ == "__main__":
    main()
