"""Models whose replicas are sharded by FSDP2."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradwire.frontends.values import full_tensor as whole_of
from gradwire.lab.configuration import Configuration


def mesh_of(shard: int, device: torch.device) -> DeviceMesh:
    """The mesh of all ranks, of which `shard` neighbours hold a replica together. Raises ValueError where ranks share a
    GPU: FSDP2 shards over NCCL alone."""
    if device.type == "cuda" and dist.get_backend() != "nccl":
        raise ValueError("ranks share a GPU, so each holds a whole model; leave out --shard, or start one for each GPU")
    shape = (dist.get_world_size() // shard, shard)
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


def sharded(model: nn.Module, mesh: DeviceMesh, configuration: Configuration) -> nn.Module:
    """The model, sharded block by block. Plain HSDP reduces between replicas by itself, other configurations do not
    yet."""
    # FSDP reduces between replicas itself where nothing else is to
    where = mesh["shard"] if configuration.compressor or configuration.plan or configuration.silent else mesh
    for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for block in blocks:
            fully_shard(block, mesh=where)
    fully_shard(model, mesh=where)
    return model


@torch.no_grad()
def gather_into(whole: nn.Module, model: nn.Module) -> nn.Module:
    """`whole`, with the parameters and buffers that the ranks hold of the sharded `model`."""
    pairs: Any = zip(
        [*whole.parameters(), *whole.buffers()], [*model.parameters(), *model.buffers()], strict=True
    )  # fmt: skip
    for mine, shard in pairs:
        mine.copy_(whole_of(shard))
    return whole
