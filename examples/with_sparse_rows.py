"""A table of which a batch touches few rows: dense against sparse gradients, whose rows travel in 32, 8 and 4 bits.

torchrun --nproc-per-node 2 examples/with_sparse_rows.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw


def trained(sparse: bool, rows: str | None = None) -> tuple[nn.Module, gw.Handle]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.EmbeddingBag(10_000, 64, sparse=sparse), nn.Linear(64, 10)))
    handle = gw.attach(ddp, gw.FP32(), rows=rows)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(20):
        words, labels = torch.randint(10_000, (16, 8)), torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(words), labels).backward()
        optimizer.step()
    return ddp, handle


dist.init_process_group("gloo")
ways = {"dense": (False,), "rows": (True,), "8 bits": (True, "quantized:8"), "4 bits": (True, "quantized:4+residual")}
dense_bytes = 0
for name, way in ways.items():
    ddp, handle = trained(*way)
    stats = handle.stats()
    dense_bytes = dense_bytes or stats.wire_bytes
    checksum = sum(parameter.detach().double().sum() for parameter in ddp.parameters())
    if dist.get_rank() == 0:
        print(f"{name}: {stats.wire_bytes / max(1, stats.steps):,.0f} bytes a step")
print(f"{checksum:.12f}, {stats.steps} steps, {dense_bytes / max(1, stats.wire_bytes):.1f} times fewer bytes")
dist.destroy_process_group()
