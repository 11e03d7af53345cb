"""What a replica under torchft is, and how it hands its gradients over."""

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule

from gradwire.frontends import replica
from gradwire.frontends.hooks import GradientHooks, Whole
from gradwire.frontends.job import device_of, parameters_of
from gradwire.frontends.replica import Replica
from gradwire.frontends.shards import Shards, locals_of, reshard
from gradwire.frontends.stateful import Placed
from gradwire.runtime.ending import Interrupted
from gradwire.runtime.runtime import Runtime
from gradwire.torch_private import fsdp_groups


def replica_of(model: nn.Module, manager: Any) -> Replica:
    """A whole model on one rank, or one that fully_shard has wrapped on the ranks of torch.distributed, which are those
    of one replica under torchft. Raises ValueError for a whole model on several."""
    if isinstance(model, FSDPModule):
        parameters, _ = parameters_of(model)
        mesh = init_device_mesh(
            device_of(parameters).type, (1, dist.get_world_size()), mesh_dim_names=("replicate", "shard")
        )
        return replica.replica_of(model, mesh, None)
    if manager._group_world_size > 1:
        raise ValueError(
            f"a replica of {manager._group_world_size} ranks holds its model in shards; call fully_shard(model) first, "
            "or start replicas of one rank"
        )
    return replica.replica_of(model, None, None)


class ReplicaGradients(GradientHooks):
    """As they are, or those of shards, which FSDP has averaged inside the replica. Where a replica is lost, the step
    goes on without means, and the manager hears why. `reduced` says that the step has its means."""

    def __init__(
        self, report: Callable[[Exception], None], model: nn.Module, own: Replica, replicas: int, find_unused: bool
    ) -> None:
        places = Shards(fsdp_groups(model), replicas) if isinstance(model, FSDPModule) else Whole()
        super().__init__(own.parameters, model, places, find_unused)
        self._report, self._own, self.reduced = report, own, False

    def placed(self) -> Mapping[str, Placed]:
        """On this replica's ranks."""
        return self._own.placed()

    def held(self) -> Mapping[str, Tensor]:
        """What this rank has of them."""
        reshard(self._model)
        return locals_of(self._parameters) if isinstance(self._model, FSDPModule) else self._parameters

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        self._unless_lost(super()._forward_begins, module, arguments)

    def _gradient_ready(self, slot: int, parameter: Tensor) -> None:
        self._unless_lost(super()._gradient_ready, slot, parameter)

    def _backward_begins(self, runtime: Runtime) -> None:
        if self.reduced:
            runtime.refuse("two backward passes in one step; all but the last belong under optimizer.no_sync()")
        super()._backward_begins(runtime)

    def _backward_done(self) -> None:
        self._unless_lost(super()._backward_done)
        self.reduced = True

    def _unless_lost(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._runtime is None:
            return
        try:
            call(*arguments)
        except Interrupted as error:
            self.unhook()
            self._report(error)
