"""FSDP2 inside of hosts, Gradwire between them: 2 hosts share the ranks.

torchrun --nproc-per-node 4 examples/with_fsdp2.py
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradwire as gw


def main() -> None:
    dist.init_process_group()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(kind, (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(kind)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    handle = gw.attach(model, gw.TopK(0.05), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for number in range(16):  # two micro-batches a step
        inputs, targets = torch.randn(16, 32, device=kind), torch.randint(10, (16,), device=kind)
        last = number % 2 == 1
        with nullcontext() if last else handle.accumulate():
            (nn.functional.cross_entropy(model(inputs), targets) / 2).backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    stats = handle.stats()
    checksum = sum(parameter.full_tensor().detach().double().sum() for parameter in model.parameters())
    print(f"{checksum:.12f}, {stats.steps} steps, {stats.dense_bytes / stats.wire_bytes:.1f} times fewer bytes")
    handle.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
