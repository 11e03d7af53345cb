"""Dion: orthonormal updates of a sixteenth of the rank for hidden matrices; vectors and the output layer take AdamW.

torchrun --nproc-per-node 2 examples/with_dion.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw

dist.init_process_group("gloo")
torch.manual_seed(0)
hidden, output = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()), nn.Linear(256, 10)
ddp = DistributedDataParallel(nn.Sequential(hidden, output))
# the output layer, "1", is averaged as it is
handle = gw.attach(ddp, gw.Dion(1 / 16, mu=0.95), rules=[("1.*", gw.FP32())])
matrices = [parameter for parameter in hidden.parameters() if parameter.dim() > 1]
others = [parameter for parameter in hidden.parameters() if parameter.dim() < 2] + [*output.parameters()]
optimizers = torch.optim.SGD(matrices, lr=0.02, weight_decay=0.01), torch.optim.AdamW(others, lr=1e-3)
torch.manual_seed(dist.get_rank())
for _ in range(40):
    inputs, targets = torch.randn(16, 64), torch.randint(10, (16,))
    ddp.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), targets).backward()
    for optimizer in optimizers:
        optimizer.step()
stats = handle.stats()
checksum = sum(parameter.detach().double().sum() for parameter in ddp.parameters())
print(f"{checksum:.12f}, {stats.steps} steps, {stats.ratio:.1f} times fewer bytes")
dist.destroy_process_group()
