"""No DDP: matrices by one optimizer and compressed, the rest by another one; two micro-batches a step, clipped.

torchrun --nproc-per-node 2 examples/with_optimizer.py  # on a GPU for each rank, or with CUDA_VISIBLE_DEVICES=
"""

from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import nn

import gradwire as gw

gw.init()
place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10)).to(place)
matrices, others = ([p for p in model.parameters() if (p.dim() > 1) == matrix] for matrix in (True, False))
optimizers = [
    gw.DistributedOptimizer(torch.optim.SGD(matrices, lr=0.1, momentum=0.9), model, gw.PowerSGD(2)),
    gw.DistributedOptimizer(torch.optim.AdamW(others, lr=1e-3), model, gw.FP32()),
]
torch.manual_seed(dist.get_rank())
for number in range(40):
    last = number % 2 == 1
    with ExitStack() as stack:
        for optimizer in optimizers if not last else ():
            stack.enter_context(optimizer.no_sync())  # only accumulate
        inputs, targets = torch.randn(16, 32, device=place), torch.randint(10, (16,), device=place)
        (nn.functional.cross_entropy(model(inputs), targets) / 2).backward()
    if last:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of means, as with one process
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
stats = optimizers[0].handle.stats()
checksum = sum(parameter.detach().double().sum() for parameter in model.parameters())
print(f"{checksum:.12f}, {stats.steps} steps, {stats.ratio:.1f} times fewer bytes")
for optimizer in optimizers:
    optimizer.handle.detach()
dist.destroy_process_group()
