"""A model that fully_shard has wrapped: this rank's shards, their slots, and the mesh of all ranks that fits them."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from gradwire.frontends.options.parameters import parameters_of, slots_of
from gradwire.frontends.shards.shard_gradients import local_of
from gradwire.frontends.trained import Check, TrainedParameters
from gradwire.frontends.values import is_sharded
from gradwire.slots import Slot
from gradwire.torch_private.autograd import has_gradient_hooks
from gradwire.torch_private.fully_shard import cut_over, cuts_of, fsdp_modules, is_fsdp

RECIPE = (
    'mesh = init_device_mesh(device, (hosts, ranks_per_host), mesh_dim_names=("replicate", "shard")), '
    'fully_shard(model, mesh=mesh["shard"]) and pass mesh=mesh'
)


def locals_of(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`local_of` each parameter."""
    return {name: local_of(parameter) for name, parameter in parameters.items()}


def planned_slots(parameters: Mapping[str, Any]) -> list[Slot]:
    """Slots of the largest shards' sizes, for which plans are made, the same on all ranks."""
    over = {name: frozenset(cut_over(parameter)) for name, parameter in parameters.items()}
    kinds = list(dict.fromkeys(over.values()))
    slots = slots_of({name: _largest_shard(parameter) for name, parameter in parameters.items()})
    return [replace(slot, cut=kinds.index(over[slot.name])) for slot in slots]


def _largest_shard(parameter: Tensor) -> Tensor:
    """A meta tensor of the largest shard's shape."""
    assert is_sharded(parameter)
    # along every mesh dimension that cuts it, the first ranks have the largest parts
    shape = list(parameter.shape)
    for dim, cut in cuts_of(parameter).items():
        shape[cut.dim] = ceil(shape[cut.dim] / parameter.device_mesh.size(dim))
    return torch.empty(shape, dtype=parameter.dtype, device="meta")


def reshard(model: nn.Module) -> None:
    """Makes the model's parameters the sharded ones again, whatever pass has gathered them."""
    for module in fsdp_modules(model):
        module.reshard()


def checked_replicas(
    model: nn.Module, mesh: DeviceMesh | None, optimizer: Optimizer | None = None
) -> tuple[TrainedParameters, DeviceMesh]:
    """The sharded parameters, with an `optimizer` only what it holds, and the mesh of all ranks, by default the one on
    which the model was wrapped. Raises ValueError, naming the call that works, where they do not fit."""
    # a wrapped model, as FSDP keeps it between passes
    if not is_fsdp(model):
        raise ValueError(f"mesh= is for models that fully_shard has wrapped, not {type(model).__name__}; use {RECIPE}")
    reshard(model)
    parameters, _ = parameters_of(model)
    # the mesh of all ranks, and the parameters that are sharded inside its replicas
    mesh = _replicas_of(parameters) if mesh is None else mesh
    trained = TrainedParameters(model, checked_on(mesh), optimizer)
    # the hooks that will be registered must be the only ones
    for name, parameter in trained.parameters().items():
        if has_gradient_hooks(parameter):
            raise ValueError(
                f"parameter {name!r} has a post-accumulate-grad hook already; call detach() of the handle that is "
                "attached, and step optimizers after backward, not in it"
            )
    return trained, mesh


def checked_on(mesh: DeviceMesh) -> Check:
    """A check that refuses, naming the call that works, a parameter that is not sharded inside the mesh's replicas.
    Raises ValueError for a mesh without this rank."""
    # this rank's replica, and the ranks that hold the same shard of the others
    ranks = mesh.mesh.reshape(mesh.size(0), -1)  # (replicas, ranks of each)
    # the rank's place: its replica, and its place in that
    place = (ranks == dist.get_rank()).nonzero()
    if not len(place):
        raise ValueError(f"rank {dist.get_rank()} is not in the mesh {mesh.mesh.tolist()}; use {RECIPE}")
    replica, peers = ranks[place[0, 0]].tolist(), ranks[:, place[0, 1]].tolist()

    def check(name: str, parameter: nn.Parameter) -> None:
        if not is_sharded(parameter):
            raise ValueError(f"parameter {name!r} is not sharded; call fully_shard() on the whole model as well")
        if parameter.is_meta:
            raise ValueError(f"parameter {name!r} has no values yet; call to_empty() and initialise, then attach()")
        # every sharded dimension must lie inside this replica, or across the same places of all
        for dim, placement in enumerate(parameter.placements):
            own = dist.get_process_group_ranks(parameter.device_mesh.get_group(dim))
            if not set(own) <= set(replica) and not (placement.is_replicate() and own == peers):
                raise ValueError(
                    f"parameter {name!r} is sharded over ranks {own}, and a replica of the mesh is {replica}; "
                    f"use {RECIPE}"
                )
        Slot.of(name, local_of(parameter))

    return check


def _replicas_of(parameters: Mapping[str, nn.Parameter]) -> DeviceMesh:
    """The mesh that the model was wrapped on, if that has replicas."""
    # HSDP: the first dimension has the replicas, and what tensor parallelism has cut one dimension more than the rest
    sharded = [p for p in parameters.values() if is_sharded(p) and p.placements[0].is_replicate()]
    if sharded:
        return max((parameter.device_mesh for parameter in sharded), key=lambda mesh: mesh.ndim)
    raise ValueError(
        f"the model is sharded over one dimension, and mesh= says where its replicas are; use {RECIPE}. Where "
        "there are none, gw.compress_shards(model, gw.QSGD()) compresses what shards exchange"
    )
