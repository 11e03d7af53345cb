"""What the pages' fragments of code leave to the reader: model, data and optimizer; and what is to hold afterwards."""

BEGIN = """
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh as of_devices
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs).relu()
        return inputs.sum()


def batch(step):
    return torch.randn(4, 16)


def loss(model, inputs):
    return model(inputs).square()


torch.manual_seed(0)
model, path = Model(), "saved"
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
"""

JOINED = 'dist.init_process_group("gloo")\n'
ATTACHED = JOINED + "ddp = DistributedDataParallel(model)\nhandle = gw.attach(ddp, gw.TopK(0.1))\n"
STEPPED = "loss(ddp, batch(0)).backward()\n"
SHARDED = """
def init_device_mesh(kind, shape, mesh_dim_names):
    return of_devices("cpu", (hosts, dist.get_world_size() // hosts), mesh_dim_names=mesh_dim_names)


hosts, data = 2, [[batch(0), batch(1)] for _ in range(3)]
"""
TABBED = """
def loss(outputs, targets):
    return (outputs - targets).square()


data = [(batch(step), 1.0) for step in range(60)]
"""
LOCAL = """
for step in range(3):
    loss(model, batch(step)).backward()
    {way}.step()
    {way}.zero_grad()
{way}.handle.detach()
"""
SAME = """
total = torch.stack([parameter.detach().double().sum() for parameter in model.parameters()]).sum()
others = [torch.empty_like(total) for _ in range(dist.get_world_size())]
dist.all_gather(others, total)
assert len(set(map(float, others))) == 1
"""
ENDED = "dist.destroy_process_group()\nos._exit(0)\n"
"""DDP still refers to the group, whose threads may let go of the last collective while Python goes down: that aborts a
process, with plain DDP as well."""
TOLD = """
STEPS, host, port = 12, "127.0.0.1", int(os.environ["PORT"])
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
loaded = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
loaded.add("loaded", 1)
while loaded.add("loaded", 0) < 3:  # a process that comes 5 seconds after the others is a newcomer
    time.sleep(0.05)
"""
LOST = """
def batch(step):
    if os.environ["NUMBER"] == "2" and step == 5:
        os._exit(1)
    return torch.randn(4, 16)
"""
LOGGED = "import logging\nlog = logging.getLogger()\n"
SENDS_SIGTERM = """
import signal

STEPS, step = 100, 0


def train():
    global step
    loss(ddp, batch(step)).backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 5 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGTERM)


"""
ENDED_AT_TEN = """
assert step == 10
assert int(handle.state_dict(all_ranks=True)["step"]) == 10
"""
