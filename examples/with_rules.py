"""Layer by layer: each kind of layer is sent its own way, against one way for all. Prints what a step sends.

torchrun --nproc-per-node 2 examples/with_rules.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw

RULES = [("0.weight", gw.Quantized(4)), ("*.norm?.*", gw.FP32()), ("dim>1&numel>8191", "powersgd:4+residual")]


def trained(compressor: gw.Compressor, rules: list | None = None) -> tuple[nn.Module, gw.Handle]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    ddp = DistributedDataParallel(nn.Sequential(nn.Embedding(1000, 64), layer, nn.Linear(64, 1000)))
    handle = gw.attach(ddp, compressor, rules=rules or ())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for _ in range(20):
        words = torch.randint(1000, (8, 16))
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(words).flatten(0, 1), words.flatten()).backward()
        optimizer.step()
    return ddp, handle


dist.init_process_group("gloo")
for name, ways in {"float32": (gw.FP32(),), "bfloat16": (gw.BF16(),), "rules": (gw.BF16(), RULES)}.items():
    ddp, handle = trained(*ways)
    stats = handle.stats()
    checksum = sum(parameter.detach().double().sum() for parameter in ddp.parameters())
    if dist.get_rank() == 0:
        print(f"{name}: {stats.wire_bytes / max(1, stats.steps):,.0f} bytes a step")
print(f"{checksum:.12f}, {stats.steps} steps, {stats.ratio:.1f} times fewer bytes")
dist.destroy_process_group()
