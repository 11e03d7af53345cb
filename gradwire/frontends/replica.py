"""Local steps: what a replica is, whole on every rank or sharded by FSDP2 over several."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from gradwire.frontends import shards
from gradwire.frontends.job import parameters_of, slots_of
from gradwire.frontends.optimizer import share_initial_values
from gradwire.frontends.stateful import Placed, cut_on, whole_on
from gradwire.frontends.trained import Trained, on_one_device
from gradwire.slots import Slot
from gradwire.torch_private import fsdp_groups, only_inside_replicas
from gradwire.transports import Mesh, ProcessGroup, Transport
from gradwire.transports.process_group import world_or


@dataclass(frozen=True)
class Replica:
    """`parameters` by name, and what this rank holds of each, `local`; `others` are not reduced. Plans are made for the
    slots `planned`, which are the same on all ranks. `axes` opens what replicas exchange over, `share` gives all of
    them the first one's values, and `isolate` keeps the framework from averaging over them; it returns what undoes
    that. `placed` says where the parameters lie on the mesh of all ranks. With an optimizer, `parameters` are all that
    can be trained, and `trained` says which of them are, of those that it holds."""

    parameters: Mapping[str, nn.Parameter]
    others: set[str]
    local: Mapping[str, Tensor]
    slots: Sequence[Slot]
    planned: Sequence[Slot]
    axes: Callable[[], Transport | Mesh]
    share: Callable[[Mesh], None]
    placed: Callable[[], Mapping[str, Placed]]
    trained: Trained
    isolate: Callable[[], Sequence[Callable[[], None]]] = field(default=tuple)


def replica_of(
    model: nn.Module, mesh: DeviceMesh | None, group: dist.ProcessGroup | None, optimizer: Optimizer | None = None
) -> Replica:
    """A rank's whole model; or with a `mesh`, or where fully_shard has wrapped it, one that several ranks hold.

    Raises ValueError, naming the call that works, where model and mesh do not fit."""
    if mesh is None and not isinstance(model, FSDPModule):
        trained = Trained(model, on_one_device(model), optimizer)
        trained.parameters()
        parameters, others = (trained.fit, trained.others) if optimizer else parameters_of(model)
        slots = slots_of(parameters)
        axes, share = partial(ProcessGroup.own, group), partial(share_initial_values, model)
        return Replica(
            parameters, others, parameters, slots, slots, axes, share, lambda: whole_on(world_or(group), parameters),
            trained,
        )  # fmt: skip
    return _sharded(model, mesh, optimizer)


def _sharded(model: nn.Module, mesh: DeviceMesh | None, optimizer: Optimizer | None) -> Replica:
    trained, mesh = shards.fitting(model, mesh, optimizer)
    parameters = trained.fit if optimizer else trained.parameters()
    others = trained.others if optimizer else dict(model.named_parameters()).keys() - parameters.keys()
    local = shards.locals_of(parameters)
    return Replica(
        parameters, others, local, slots_of(local), shards.planned_slots(parameters),
        partial(ProcessGroup.by_replica, mesh), lambda axes: shards.share_initial_values(model, axes.replica),
        partial(cut_on, mesh, parameters), trained,
        lambda: [undo for group in fsdp_groups(model) if (undo := only_inside_replicas(group))],
    )  # fmt: skip
