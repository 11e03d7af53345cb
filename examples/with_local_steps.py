"""SparseLoCo: ten steps of AdamW on every replica, then 13 bits for each of 64 in 4096 parameters, eight times.

torchrun --nproc-per-node 2 examples/with_local_steps.py
"""

import torch
import torch.distributed as dist
from torch import nn

import gradwire as gw

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))
inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
sparse, memory = gw.ChunkTopK(64, of=4096, bits=2), gw.Residual(decay=0.95)
optimizer = gw.LocalSteps(inner, model, sparse, memory=memory, inner_steps=10, outer=gw.Outer(lr=1.0, momentum=0))
torch.manual_seed(dist.get_rank())
for _ in range(80):
    inputs, targets = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
stats = optimizer.handle.stats()
checksum = sum(parameter.detach().double().sum() for parameter in model.parameters())
print(f"{checksum:.12f}, {stats.steps} steps, {stats.ratio:.1f} times fewer bytes")
dist.destroy_process_group()
