"""torchrun --nproc-per-node 4 examples/with_accelerate_hsdp.py: dense inside of 2 hosts, compressed between them."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import gradwire as gw

torch.manual_seed(0)
accelerator = Accelerator(cpu=not torch.cuda.is_available())  # with a ParallelismConfig on GPUs; CPUs know none
kind, shape = accelerator.device.type, (2, max(1, accelerator.num_processes // 2))
mesh = init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(kind)
for module in (model[0], model[2], model):
    fully_shard(module, mesh=mesh)
data = DataLoader(TensorDataset(torch.randn(512, 32), torch.randint(10, (512,))), batch_size=16)
optimizer, data = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=1e-3), data)  # the model is wrapped
handle = gw.attach(model, gw.TopK(0.05))
for inputs, targets in data:
    accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
total = sum(parameter.full_tensor().detach().double().sum() for parameter in model.parameters())
print(f"{total:.12f} {handle}")
accelerator.end_training()
