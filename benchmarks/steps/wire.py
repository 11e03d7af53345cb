"""Bytes at the interface beside the bytes that every compressor declares, on the emulated network.

    python benchmarks/steps/wire.py                # 2 and 4 ranks, every compressor

Each rank reduces random gradients with every compressor, a few steps each, and reads its own interface's counter
before and after. The gradients are those of the GPT of `steps.py` (5.3 M elements) and of 24 square matrices (25.2 M).
The link is 1 Gbit/s: there the emulator's counter sees large segments, whose headers count once; at 100 Mbit/s it sees
packets, which adds 6.7 % of headers to everything. Writes benchmarks/results/wire.json and prints a Markdown table.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect, sent_bytes

STEPS = 5
PAIRINGS = [
    (gw.FP32(), None), (gw.FP16(), None), (gw.BF16(), None), (gw.BF16(), gw.ScatterReduce()), (gw.TopK(0.01), None),
    (gw.TopK(0.01), gw.ScatterReduce()), (gw.RandomK(0.01), None), (gw.DGC(0.01), None), (gw.QSGD(), None),
    (gw.QSGD(), gw.ScatterReduce()), (gw.TernGrad(), None), (gw.SignSGD(), None), (gw.EFSignSGD(), None),
    (gw.EFSignSGD(), gw.ScatterReduce()), (gw.OneBit(), None), (gw.Signum(), None), (gw.PowerSGD(4), None),
    (gw.ACPSGD(4), None), (gw.AllDimensionTopK(0.01), None), (gw.GaussianK(0.01), None), (gw.Quantized(4), None),
    (gw.Quantized(4), gw.ScatterReduce()), (gw.TopK(1 / 16, value_bits=4), None), (gw.PowerSGD(1 / 6, bits=4), None),
    (gw.ChunkTopK(), None), (gw.DCTTopK(), None), (gw.Dion(1 / 4), None),
    (gw.TopK(0.01), gw.SplitGather()), (gw.TopK(0.01), gw.Exclusive()), (gw.TopK(0.01), gw.LeaderIndices()),
    (gw.TopK(0.01), gw.GlobalTopK()), (gw.TopK(0.01), gw.OkTopk()),
]  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    as_rank(rank_job)
    rows = [row for ranks in (2, 4) for row in collect(__file__, [], ranks, "1gbit")]
    print("| elements | compressor | collective | ranks | declared MB/step | at the interface MB/step | difference |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        more = row["measured"] / row["declared"] - 1
        print(
            f"| {row['elements'] / 1e6:.1f} M | {row['compressor']} | {row['communicator']} | {row['ranks']} "
            f"| {row['declared'] / 1e6:.3f} | {row['measured'] / 1e6:.3f} | {more:+.1%} |"
        )
    save("wire.json", rows=rows)


def rank_job() -> list[dict]:
    import torch

    from gradwire.lab.workloads import Synthetic

    gpt = Synthetic(model="gpt").build_model(0)
    large = torch.nn.ParameterList(torch.empty(1024, 1024) for _ in range(24))
    return [measure(model, compressor, communicator) for model in (gpt, large) for compressor, communicator in PAIRINGS]


def measure(model, compressor, communicator) -> dict:
    import torch
    import torch.distributed as dist

    from gradwire.plans import uniform
    from gradwire.runtime.job_options import JobOptions
    from gradwire.runtime.runtime import Runtime
    from gradwire.slots import Slot

    slots = [Slot.of(name, p) for name, p in model.named_parameters()][::-1]
    grads = [torch.randn(slot.shape, generator=torch.Generator().manual_seed(dist.get_rank())) for slot in slots]
    plan = uniform(slots, compressor, communicator=communicator)
    mesh = gw.Mesh.of(gw.ProcessGroup.own())
    runtime = Runtime(lambda: plan, slots, mesh, torch.device("cpu"), JobOptions(owns_mesh=True))
    dist.barrier()
    before = sent_bytes()
    for _ in range(STEPS):
        runtime.open_step()
        for index, grad in enumerate(grads):
            runtime.submit(index, grad)
        runtime.finish()
    dist.barrier()
    sent = sent_bytes() - before
    totals = torch.tensor([sent, runtime.stats().wire_bytes], dtype=torch.float64)
    dist.all_reduce(totals)  # a ring's ranks may differ by a part; declared is the job's total
    measured, declared = (totals / dist.get_world_size() / STEPS).tolist()
    runtime.close()
    return {
        "elements": sum(slot.numel for slot in slots), "compressor": str(compressor),
        "communicator": type(plan.groups[0].communicator).__name__, "ranks": dist.get_world_size(),
        "declared": declared, "measured": measured,
    }  # fmt: skip


if __name__ == "__main__":
    main()
