"""Replicas stay bit for bit the same: 500 steps with every compressor, a hash of the parameters on every rank.

    python benchmarks/replicas.py             # 2, 3 and 4 ranks

A small convolutional network on random images, SGD with momentum. Writes benchmarks/results/replicas.json and prints a
Markdown table.
"""

import json
import os
import sys
import time
from hashlib import sha256
from pathlib import Path

import gradwire as gw

RESULTS = Path(__file__).parent / "results"
STEPS = 500
COMPRESSORS = [
    gw.FP32(), gw.FP16(), gw.BF16(), gw.TopK(0.01), gw.RandomK(0.01), gw.DGC(0.01), gw.QSGD(), gw.TernGrad(),
    gw.SignSGD(), gw.EFSignSGD(), gw.OneBit(), gw.Signum(), gw.PowerSGD(4),
]  # fmt: skip


def main() -> None:
    if len(sys.argv) > 1:
        rank_job(Path(sys.argv[1]))
        return
    from gradwire.lab.launch import launch

    RESULTS.mkdir(exist_ok=True)
    rows = []
    for ranks in (2, 3, 4):
        out = RESULTS / ".replicas.json"
        launch([__file__, str(out)], ranks)
        rows += json.loads(out.read_text())
        out.unlink()
    print("| compressor | 2 ranks | 3 ranks | 4 ranks |\n|---|---|---|---|")
    for compressor in COMPRESSORS:
        mine = [row for row in rows if row["compressor"] == str(compressor)]
        print(f"| {compressor} | " + " | ".join("the same" if row["same"] else "DIFFERENT" for row in mine) + " |")
    path = RESULTS / "replicas.json"
    path.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "steps": STEPS, "rows": rows}, indent=1))
    print(f"\nwritten to {path}")


def rank_job(out: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = [train(compressor) for compressor in COMPRESSORS]
    if dist.get_rank() == 0:
        out.write_text(json.dumps(rows))
    dist.barrier()
    time.sleep(0.2)
    os._exit(0)


def train(compressor) -> dict:
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
    handle = gw.attach(ddp, compressor)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.001, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        images = torch.randn(4, 3, 8, 8, generator=generator)
        targets = torch.randint(0, 10, (4,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), targets).backward()
        optimizer.step()
    handle.detach()
    digest = sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).digest()
    mine = torch.tensor(list(digest), dtype=torch.uint8)
    digests = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(digests, mine)
    same = all(torch.equal(digests[0], other) for other in digests)
    return {"compressor": str(compressor), "ranks": dist.get_world_size(), "same": same, "sha256": digest.hex()}


if __name__ == "__main__":
    main()
