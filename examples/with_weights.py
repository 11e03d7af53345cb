"""Uneven batches: each rank counts once, or with weight= each sample; against one process that has all samples.

torchrun --nproc-per-node 2 examples/with_weights.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
samples = [60 if each % 2 == 0 else 4 for each in range(ranks)]


def trained(compressor: gw.Compressor | None = None, weight: int | None = None) -> tuple:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer, own = torch.optim.SGD(model.parameters(), lr=0.1), slice(None)
    if compressor:
        model, own = DistributedDataParallel(model), slice(sum(samples[:rank]), sum(samples[: rank + 1]))
    handle = gw.attach(model, compressor, weight=weight) if compressor else None
    for step in range(40):
        torch.manual_seed(step)
        inputs, targets = torch.randn(sum(samples), 32), torch.randint(10, (sum(samples),))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[own]), targets[own]).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach(), handle


alone, mine = trained()[0], samples[rank]
for name, *way in [("each rank", gw.FP32()), ("each sample", gw.FP32(), mine), ("in 4 bits", gw.Quantized(4), mine)]:
    parameters, handle = trained(*way)
    if rank == 0:
        print(f"{name}: parameters at most {(parameters - alone).abs().max():.0e} from one process's")
stats = handle.stats()
print(f"{parameters.double().sum():.12f}, {stats.steps} steps, {stats.ratio:.1f} times fewer bytes")
dist.destroy_process_group()
