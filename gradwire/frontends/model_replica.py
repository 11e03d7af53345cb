"""A replica of local steps: a model, whole on every rank or sharded by FSDP2 over several."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from gradwire.frontends.checkpoints.distributed_checkpoint import ShardSpec, replicated_specs, sharded_specs
from gradwire.frontends.hooks.module_hooks import CheckHook
from gradwire.frontends.options.parameters import parameters_of, slots_of
from gradwire.frontends.shards.failed_passes import FailedPasses
from gradwire.frontends.shards.sharded_models import checked_replicas, locals_of, planned_slots
from gradwire.frontends.trained import TrainedParameters, on_one_device
from gradwire.frontends.values import local
from gradwire.runtime.runtime import Runtime
from gradwire.slots import Slot, real
from gradwire.torch_private.compiled import named_parameters
from gradwire.torch_private.fully_shard import fsdp_groups, is_fsdp, only_inside_replicas, without_whole_gradients
from gradwire.torch_private.process_groups import world_size
from gradwire.torch_private.reducer import averaged_over, in_ddp
from gradwire.transports import Mesh, ProcessGroup, Transport
from gradwire.transports.process_group import world_or


@dataclass(frozen=True)
class ModelReplica:
    """A model that takes local steps by itself."""

    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    """By name; with an optimizer, all that can be trained."""
    others: set[str]
    """Parameters that are not reduced."""
    local: Mapping[str, Tensor]
    """This rank's part of each parameter, by name; complex ones as views of real numbers."""
    slots: Sequence[Slot]
    """The slots of this rank's parts."""
    planned: Sequence[Slot]
    """The slots that plans are made for, the same on all ranks."""
    axes: Callable[[], Transport | Mesh]
    """Opens the axes over which replicas exchange."""
    placed: Callable[[], Mapping[str, ShardSpec]]
    """The parameters' placement on the mesh of all ranks."""
    trained: TrainedParameters
    isolate: Callable[[Runtime], Sequence[Callable[[], None]]]
    """Keeps the framework from averaging over replicas; returns functions that undo it."""
    aside: Callable[[], AbstractContextManager[None]] = nullcontext
    """A context in which the framework keeps no gradients beside `p.grad`; afterwards it has the earlier ones again."""
    all_of: Callable[[bool], bool] = bool
    """Whether something holds on all ranks of the replica, which call this together."""

    def moved(self) -> bool:
        """Whether a parameter's values lie elsewhere than `local` has them."""
        with torch.no_grad():
            pairs = [(own, local(self.parameters[name])) for name, own in self.local.items()]
        return any(own is not now and now.numel() and own.data_ptr() != now.data_ptr() for own, now in pairs)


def replica_of(
    model: nn.Module, mesh: DeviceMesh | None, group: dist.ProcessGroup | None, optimizer: Optimizer | None = None
) -> ModelReplica:
    """A rank's whole model; or with a `mesh`, or where fully_shard has wrapped it, one that several ranks hold.

    Raises ValueError, naming the call that works, where model and mesh do not fit."""
    # every rank holds the whole model, as with DDP
    if mesh is None and not is_fsdp(model):
        trained = TrainedParameters(model, on_one_device(model), optimizer)
        trained.parameters()
        parameters, others = (trained.reducible, trained.others) if optimizer else parameters_of(model)
        slots = slots_of(parameters)
        axes = partial(ProcessGroup.own, group)
        local = _real(parameters)
        placed = lambda: replicated_specs(world_or(group), parameters)  # noqa: E731
        isolate = partial(_outside_ddp, model)
        return ModelReplica(model, parameters, others, local, slots, slots, axes, placed, trained, isolate)
    return _sharded(model, mesh, optimizer)


def _sharded(model: nn.Module, mesh: DeviceMesh | None, optimizer: Optimizer | None) -> ModelReplica:
    trained, mesh = checked_replicas(model, mesh, optimizer)
    parameters = trained.reducible if optimizer else trained.parameters()
    others = trained.others if optimizer else dict(named_parameters(model)).keys() - parameters.keys()
    local = locals_of(parameters)
    return ModelReplica(
        model, parameters, others, _real(local), slots_of(local), planned_slots(parameters),
        partial(ProcessGroup.by_replica, mesh), partial(sharded_specs, mesh, parameters), trained,
        partial(_inside_replica, model),
        lambda: without_whole_gradients(fsdp_groups(model)), partial(_all_of, mesh),
    )  # fmt: skip


def _outside_ddp(model: nn.Module, runtime: Runtime) -> list[Callable[[], None]]:
    """Ends the job where a DDP of all ranks trains the model, not one of a host's. Looks until a forward pass comes
    outside of DDP: a model that is scripted or exported later has no hook."""

    def forward_begins(module: nn.Module, arguments: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if runtime.mesh.replica.world > 1 and averaged_over(runtime.owned) == world_size():
            runtime.refuse(
                "DistributedDataParallel averages gradients over all ranks in every step, so that local steps save "
                "nothing; train the model outside of it, or give it the process group of a host's ranks"
            )
        if not in_ddp():
            registered.remove()

    registered = model.register_forward_pre_hook(CheckHook(forward_begins))
    return [registered.remove]


def _inside_replica(model: nn.Module, runtime: Runtime) -> list[Callable[[], None]]:
    """Makes FSDP average inside a replica alone; the forward pass after a backward pass that failed ends the job."""
    undo = [undo for group in fsdp_groups(model) if (undo := only_inside_replicas(group))]
    return [*undo, FailedPasses(model, runtime.refuse).remove]


def _all_of(mesh: DeviceMesh, holds: bool) -> bool:
    answer = torch.tensor(float(holds), dtype=torch.float32, device=mesh.device_type)
    for dim in range(1, mesh.ndim):
        dist.all_reduce(answer, dist.ReduceOp.MIN, mesh.get_group(dim))
    return bool(answer.item())


def _real(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: real(tensor.detach()) if tensor.is_complex() else tensor for name, tensor in tensors.items()}
