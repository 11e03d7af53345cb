"""Local steps: what a replica is, whole on every rank or sharded by FSDP2 over several."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from gradwire.frontends import optimizer, shards
from gradwire.frontends.job import parameters_of, slots_of
from gradwire.frontends.stateful import Placed, cut_on, whole_on
from gradwire.slots import Slot
from gradwire.torch_private import fsdp_groups, only_inside_replicas
from gradwire.transports import Mesh, ProcessGroup, Transport
from gradwire.transports.process_group import world_or


@dataclass(frozen=True)
class Replica:
    """`parameters` by name, and what this rank holds of each, `local`; `others` are not reduced. Plans are made for the
    slots `planned`, which are the same on all ranks. `axes` opens what replicas exchange over, `share` gives all of
    them the first one's values, and `isolate` keeps the framework from averaging over them; it returns what undoes
    that. `placed` says where the parameters lie on the mesh of all ranks."""

    parameters: Mapping[str, nn.Parameter]
    others: set[str]
    local: Mapping[str, Tensor]
    slots: Sequence[Slot]
    planned: Sequence[Slot]
    axes: Callable[[], Transport | Mesh]
    share: Callable[[Mesh], None]
    placed: Callable[[], Mapping[str, Placed]]
    isolate: Callable[[], Sequence[Callable[[], None]]] = field(default=tuple)


def replica_of(model: nn.Module, mesh: DeviceMesh | None, group: dist.ProcessGroup | None) -> Replica:
    """A rank's whole model; or with a `mesh`, or where fully_shard has wrapped it, one that several ranks hold.

    Raises ValueError, naming the call that works, where model and mesh do not fit."""
    if mesh is None and not isinstance(model, FSDPModule):
        parameters, others = parameters_of(model)
        slots = slots_of(parameters)
        axes, share = partial(ProcessGroup.own, group), partial(optimizer.share_initial_values, model)
        return Replica(
            parameters, others, parameters, slots, slots, axes, share, lambda: whole_on(world_or(group), parameters)
        )
    return _sharded(model, mesh)


def _sharded(model: nn.Module, mesh: DeviceMesh | None) -> Replica:
    trained, mesh = shards.fitting(model, mesh)
    parameters, others = trained.parameters(), trained.others
    local = shards.locals_of(parameters)
    return Replica(
        parameters, others, local, slots_of(local), shards.planned_slots(parameters),
        partial(ProcessGroup.by_replica, mesh), lambda axes: shards.share_initial_values(model, axes.replica),
        partial(cut_on, mesh, parameters),
        lambda: [undo for group in fsdp_groups(model) if (undo := only_inside_replicas(group))],
    )  # fmt: skip
