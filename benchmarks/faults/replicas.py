"""Do replicas stay bit-equal? 500 steps with every compressor, and a hash of the parameters on every rank.

    python benchmarks/faults/replicas.py             # 2, 3 and 4 ranks

A small convolutional network on random images, SGD with momentum. Writes benchmarks/results/replicas.json and prints a
Markdown table.
"""

import argparse
import sys
from hashlib import sha256
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect

STEPS = 500
TOP_K = gw.TopK(0.01)
CONFIGURATIONS = [
    gw.FP32(), gw.FP16(), gw.BF16(), TOP_K, gw.RandomK(0.01), gw.DGC(0.01), gw.QSGD(), gw.TernGrad(), gw.SignSGD(),
    gw.EFSignSGD(), gw.OneBit(), gw.Signum(), gw.PowerSGD(4), gw.ACPSGD(4), gw.AllDimensionTopK(0.01), gw.Interleaved(),
    gw.HardThreshold(0.001), gw.GaussianK(0.01), gw.RedSync(0.01), gw.SIDCo(0.01), gw.ReusedThreshold(0.01),
    gw.MultiLevel(gw.TopK(0.1)), gw.Quantized(4), (gw.Quantized(4), gw.ScatterReduce()), gw.TopK(1 / 16, value_bits=4),
    gw.PowerSGD(1 / 6, bits=4), gw.ChunkTopK(), gw.DCTTopK(), gw.Dion(1 / 4),
    (TOP_K, gw.ScatterReduce()), (TOP_K, gw.SplitGather()), (TOP_K, gw.Exclusive()), (TOP_K, gw.LeaderIndices()),
    (TOP_K, gw.GlobalTopK()), (TOP_K, gw.OkTopk()),
]  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    as_rank(lambda: [train(*_pair(each)) for each in CONFIGURATIONS])
    rows = [row for ranks in (2, 3, 4) for row in collect(__file__, [], ranks, "loopback")]
    print("| compressor | collective | 2 ranks | 3 ranks | 4 ranks |\n|---|---|---|---|---|")
    for name, collective in dict.fromkeys((row["compressor"], row["communicator"]) for row in rows):
        mine = [row for row in rows if (row["compressor"], row["communicator"]) == (name, collective)]
        cells = " | ".join("the same" if row["same"] else "DIFFERENT" for row in mine)
        print(f"| {name} | {collective} | {cells} |")
    save("replicas.json", steps=STEPS, rows=rows)


def _pair(each):
    return each if isinstance(each, tuple) else (each, None)


def train(compressor, communicator) -> dict:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
    ddp = DDP(model)
    handle = gw.attach(ddp, compressor, communicator=communicator)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.001, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        images = torch.randn(4, 3, 8, 8, generator=generator)
        targets = torch.randint(0, 10, (4,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), targets).backward()
        optimizer.step()
    collective = type(handle.plan.groups[0].communicator).__name__
    handle.detach()
    digest = sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).digest()
    mine = torch.tensor(list(digest), dtype=torch.uint8)
    digests = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, mine)
    same = all(torch.equal(digests[0], other) for other in digests)
    row = {"compressor": str(compressor), "communicator": collective, "ranks": dist.get_world_size()}
    return row | {"same": same, "sha256": digest.hex()}


if __name__ == "__main__":
    main()
