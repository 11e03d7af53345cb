"""Two nested selections beside two separate ones.

    python benchmarks/kernels/multilevel.py [--elements 4000000 25000000] [--repeats 7]

One thread; the figure is the least CPU time over repeats, in ms. The gradient is Gaussian, the levels are 10x and
1000x. Writes benchmarks/results/multilevel.json and prints a Markdown table.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch

import gradwire as gw
from benchmarks.kernels.selection import least_ms
from benchmarks.shared.provenance import save
from gradwire.compressors import Codec, context_for
from gradwire.slots import Layout

CODECS: list[Codec] = [gw.TopK(0.1), gw.DGC(0.1), gw.GaussianK(0.1), gw.RedSync(0.1), gw.RandomK(0.1)]
FURTHER = 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, nargs="+", default=[4_000_000, 25_000_000])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(codec, n, arguments.repeats) for n in arguments.elements for codec in CODECS]
    print("| elements | codec | first ms | second ms, nested | of the first | both, nested | both, separate | saved |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        nested, apart = row["both_ms"], row["first_ms"] + row["apart_ms"]
        more = nested - row["first_ms"]
        print(
            f"| {row['elements']:,} | {row['codec']} | {row['first_ms']:.1f} | {more:.2f} "
            f"| {more / row['first_ms']:.1%} | {nested:.1f} | {apart:.1f} | {apart / nested:.2f}x |"
        )
    save("multilevel.json", rows=rows)


def measure(codec: Codec, n: int, repeats: int) -> dict[str, Any]:
    compressor = gw.MultiLevel(codec, FURTHER)
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    context = context_for(Layout.vector(n), compressor, torch.device("cpu"))
    return {
        "elements": n,
        "codec": str(codec),
        "first_ms": least_ms(lambda: indices(codec, x, context), repeats),
        "both_ms": least_ms(lambda: compressor.select(x, context), repeats),
        "apart_ms": least_ms(lambda: indices(compressor.second, x, context), repeats),
    }


def indices(codec: Any, x: torch.Tensor, context: gw.GroupContext) -> torch.Tensor:
    """The indices that a sparsifier selects by itself."""
    if isinstance(codec, gw.RandomK):
        return codec.indices(len(x), context)[0]
    return codec.select(x, codec.count(len(x)), context)


if __name__ == "__main__":
    main()
