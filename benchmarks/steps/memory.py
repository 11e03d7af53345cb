"""Memory that Gradwire holds between steps, in bytes a parameter, beside what DDP, gradients and optimizer take.

    python benchmarks/steps/memory.py                # on a CPU, ten minutes; 8 and 64 ranks, of which one is played

A model of BERT-base's shapes under DDP takes three steps in every configuration behind a played card, which is enough
to make all buffers; `handle.stats().held_bytes` is what they take. Payloads of other ranks are counted, so all-gathers
take more with more ranks. Writes benchmarks/results/memory.json and prints a Markdown table.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.tables import markdown

RANKS, STEPS = (8, 64), 3
WAYS = {
    "BF16": (gw.BF16(), None),
    "TopK 1%": (gw.TopK(0.01), None),
    "TopK 1/16 in 10 bits": (gw.TopK(1 / 16, value_bits=4), None),
    "DGC 1%": (gw.DGC(0.01), None),
    "AllDimensionTopK 1%": (gw.AllDimensionTopK(0.01), None),
    "EFSignSGD": (gw.EFSignSGD(), None),
    "8 bits, ScatterReduce": (gw.Quantized(8), gw.ScatterReduce()),
    "4 bits, ScatterReduce": (gw.Quantized(4), gw.ScatterReduce()),
    "4 bits, AllGather": (gw.Quantized(4), gw.AllGather()),
    "QSGD": (gw.QSGD(), None),
    "PowerSGD r4": (gw.PowerSGD(4), None),
    "ACPSGD r4": (gw.ACPSGD(4), None),
    "PowerSGD 1/6 in 4 bits": (gw.PowerSGD(1 / 6, bits=4), None),
    "TopK 1%, OkTopk": (gw.TopK(0.01), gw.OkTopk()),
    "TopK 1%, residual in bfloat16": (gw.TopK(0.01), None, gw.Residual(dtype=torch.bfloat16)),
    "EFSignSGD, residual in bfloat16": (gw.EFSignSGD(), None, gw.Residual(dtype=torch.bfloat16)),
    "PowerSGD r4, residual in bfloat16": (gw.PowerSGD(4), None, gw.Residual(dtype=torch.bfloat16)),
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model = bert()
    rows = [{"way": way, "ranks": ranks, "bytes": held(model, ranks, *WAYS[way])} for way in WAYS for ranks in RANKS]
    save("memory.json", parameters=count(model), rows=rows)
    columns = ["", *(f"{ranks} ranks" for ranks in RANKS)]
    print(markdown(columns, ([way, *(f"{row['bytes']:.1f}" for row in rows if row["way"] == way)] for way in WAYS)))


def bert() -> torch.nn.Module:
    """BERT-base's embeddings and layers, 109 M parameters."""
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    return torch.nn.Sequential(torch.nn.Embedding(30_522 + 512, 768), torch.nn.TransformerEncoder(layer, 12))


def held(
    model: torch.nn.Module, ranks: int, compressor: gw.Compressor, communicator: gw.Communicator | None,
    memory: gw.Memory | None = None,
) -> float:  # fmt: skip
    """Bytes a parameter."""
    ddp, transport = DDP(model), gw.Played(ranks, gw.Card(0.0, 1e12))
    handle = gw.attach(ddp, compressor, memory=memory, communicator=communicator, transport=transport)
    for _ in range(STEPS):
        ddp(torch.zeros(1, 4, dtype=torch.int64)).square().mean().backward()
    found = handle.stats().held_bytes
    handle.detach()
    return round(found / count(model), 2)


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main()
