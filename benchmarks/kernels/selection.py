"""Exact top-k of Gradwire beside torch.topk, and CPU time of a whole encode and decode.

    python benchmarks/kernels/selection.py

One thread; the figure is the least CPU time over repeats, in ms, which other load on the machine disturbs least. The
gradient is a square matrix. ReusedThreshold's figure is that of the steps between two exact ones. Where rounds
alternate, as in PowerSGD, "encode" includes decoding. Encoding turns its input into the residual, so every repeat first
copies the gradient: "encode" includes "copy". Writes benchmarks/results/selection.json and prints Markdown tables.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch

import gradwire as gw
from benchmarks.shared.provenance import save
from gradwire.compressors import Codec, Compressor, GroupContext, MultiRound, context_for
from gradwire.ops.backend import backend_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout, Slot

CPU = torch.device("cpu")
CODECS = [
    gw.FP16(), gw.BF16(), gw.TopK(0.01), gw.AllDimensionTopK(0.01, axis=1), gw.AllDimensionTopK(0.01, axis=0),
    gw.DGC(0.01), gw.HardThreshold(2.6), gw.GaussianK(0.01), gw.RedSync(0.01), gw.SIDCo(0.01),
    gw.SIDCo(0.01, "gamma"), gw.SIDCo(0.01, "pareto"), gw.ReusedThreshold(0.01, warmup=0), gw.RandomK(0.01), gw.QSGD(),
    gw.TernGrad(), gw.SignSGD(), gw.EFSignSGD(), gw.OneBit(),
]  # fmt: skip
ROUNDS = [gw.PowerSGD(4), gw.ACPSGD(4)]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    rows = [selection(n, ratio) for n in (4_000_000, 25_000_000) for ratio in (0.01, 0.001)]
    print("| elements | ratio | torch.topk ms | gradwire ms | faster | same answer |\n|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['n'] / 1e6:.0f} M | {row['ratio']:.1%} | {row['torch_ms']:.1f} | {row['ours_ms']:.1f} "
            f"| {row['torch_ms'] / row['ours_ms']:.1f}x | {'yes' if row['same'] else 'NO'} |"
        )
    codecs = [codec_row(codec, n) for codec in CODECS for n in (1_000_000, 25_000_000)]
    codecs += [rounds_row(compressor, n) for compressor in ROUNDS for n in (1_000_000, 25_000_000)]
    print("\n| compressor | elements | encode | decode, 2 ranks | copy |\n|---|---|---|---|---|")
    for row in codecs:
        cells = " | ".join(f"{row[name]:.2f}" for name in ("encode_ms", "decode_ms", "copy_ms"))
        print(f"| {row['compressor']} | {row['n'] / 1e6:.0f} M | {cells} |")
    save("selection.json", selection=rows, codecs=codecs)


def selection(n: int, ratio: float) -> dict:
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    k = int(n * ratio)
    theirs = torch.topk(x.abs(), k, sorted=False).indices.sort().values
    return {
        "n": n,
        "ratio": ratio,
        "torch_ms": least_ms(lambda: torch.topk(x.abs(), k, sorted=False), 5),
        "ours_ms": least_ms(lambda: backend_for(x).top_k(x, k), 20),
        "same": torch.equal(backend_for(x).top_k(x, k), theirs),
    }


def one_square(compressor: Compressor, n: int) -> tuple[GroupContext, torch.Tensor]:
    """One rank's context for a square matrix of n elements, and a gradient (n,)."""
    square = Slot.of("w", torch.empty(round(n**0.5), round(n**0.5), device="meta"))
    gradient = torch.randn(n, generator=torch.Generator().manual_seed(0))
    return context_for(Layout((square,)), compressor, CPU), gradient


def codec_row(codec: Codec, n: int) -> dict:
    context, gradient = one_square(codec, n)
    size = codec.group_bytes(context.layout, context.step)
    rows = torch.zeros(2, -(-size // 4) * 4, dtype=torch.uint8)[:, :size]
    x, out = gradient.clone(), torch.empty(n)
    encode = least_ms(lambda: codec.encode(LazySum.of(x.copy_(gradient)), rows[0][None], context.whole))
    codec.encode(LazySum.of(x.copy_(gradient)), rows[1][None], context.whole)
    return {
        "compressor": str(codec),
        "n": n,
        "encode_ms": encode,
        "decode_ms": least_ms(lambda: codec.decode(rows[None], Mean.of(out), context.whole)),
        "copy_ms": least_ms(lambda: out.copy_(gradient)),
    }


def rounds_row(compressor: MultiRound, n: int) -> dict:
    """The row of a compressor in rounds: encoding and decoding alternate, so they are one figure."""
    context, gradient = one_square(compressor, n)
    x, out = gradient.clone(), torch.empty(n)

    def reduce() -> None:
        for op in gw.AllReduce().reduce(compressor, LazySum.of(x.copy_(gradient)), gw.Mean.of(out), context):
            if op is not None:
                op.receive.whole.copy_(op.send.whole)

    return {
        "compressor": str(compressor),
        "n": n,
        "encode_ms": least_ms(reduce),
        "decode_ms": float("nan"),
        "copy_ms": least_ms(lambda: out.copy_(gradient)),
    }


def least_ms(call: Callable[[], object], repeats: int = 12) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


if __name__ == "__main__":
    main()
