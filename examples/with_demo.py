"""DeMo: 32 cosine coefficients of each block of 64 x 64 gradients, then steps by the signs of their mean.

torchrun --nproc-per-node 2 examples/with_demo.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
# what is not sent is the momentum, of this rank alone
momentum, communicator = gw.Residual(decay=0.999), gw.AllGather(over_senders=True)
handle = gw.attach(ddp, gw.DCTTopK(32, chunk=64), memory=momentum, communicator=communicator)
optimizer = gw.SignDescent(ddp.parameters(), lr=1e-3, weight_decay=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(40):
    inputs, targets = torch.randn(16, 64), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), targets).backward()
    optimizer.step()
stats = handle.stats()
checksum = sum(parameter.detach().double().sum() for parameter in ddp.parameters())
print(f"{checksum:.12f}, {stats.steps} steps, {stats.ratio:.1f} times fewer bytes")
dist.destroy_process_group()
