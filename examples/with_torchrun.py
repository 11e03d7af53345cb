"""Hosts come and go: torchrun restarts all workers, as many as are there, and they go on from the last checkpoint.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 1:4 --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d \
    --rdzv-endpoint HOST:29400 examples/with_torchrun.py
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw

CHECKPOINT = Path("checkpoint.pt")  # where all hosts read it

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
handle = gw.attach(ddp, gw.TopK(0.01))
done = 0
if handle.from_first(CHECKPOINT.exists()):  # as rank 0 sees it
    saved = torch.load(CHECKPOINT, weights_only=True)
    done = saved["step"]
    ddp.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    handle.load_state_dict(saved["gradwire"])  # memories too: with fewer or more ranks their sum is kept
for step in range(done + 1, 41):
    torch.manual_seed(1000 * step + dist.get_rank())
    inputs, targets = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), targets).backward()
    optimizer.step()
    if step % 10 == 0:
        memories = handle.state_dict(all_ranks=True)  # a call for all ranks; rank 0 gets them
        state = {"step": step, "model": ddp.state_dict(), "optimizer": optimizer.state_dict(), "gradwire": memories}
        if dist.get_rank() == 0:
            gw.save(state, CHECKPOINT)
stats = handle.stats()
checksum = sum(parameter.detach().double().sum() for parameter in ddp.parameters())
print(f"{checksum:.12f}, {stats.steps} steps, {stats.ratio:.1f} times fewer bytes")
dist.destroy_process_group()
