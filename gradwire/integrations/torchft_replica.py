"""Replicas under torchft, and the front end that hands their gradients over."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from gradwire.frontends import model_replica
from gradwire.frontends.checkpoints.distributed_checkpoint import ShardSpec
from gradwire.frontends.hooks.gradient_access import FullGradients
from gradwire.frontends.hooks.gradient_hooks import GradientHooks
from gradwire.frontends.model_replica import ModelReplica
from gradwire.frontends.options.parameters import device_of, parameters_of
from gradwire.frontends.shards.failed_passes import FailedPasses
from gradwire.frontends.shards.shard_gradients import ShardedGradients
from gradwire.frontends.shards.sharded_models import locals_of, reshard
from gradwire.frontends.values import is_sharded, local
from gradwire.runtime.failures.job_errors import PeerFailed
from gradwire.runtime.runtime import Runtime
from gradwire.torch_private.fully_shard import fsdp_groups, is_fsdp


def replica_of(model: nn.Module, manager: Any) -> ModelReplica:
    """A whole model on one rank, or one that fully_shard has wrapped on the ranks of torch.distributed, which are those
    of one replica under torchft; a forward pass after a backward pass that failed raises RuntimeError.

    Raises ValueError for a whole model on several ranks, and for other ranks than the manager's."""
    if is_fsdp(model):
        # torch.distributed has this replica's ranks alone
        own, managed = (dist.get_rank(), dist.get_world_size()), (manager._group_rank, manager._group_world_size)
        if own != managed:
            raise ValueError(
                f"this is rank {own[0]} of {own[1]} in torch.distributed, and rank {managed[0]} of {managed[1]} to the "
                "manager; give both those of the replica: Manager(rank=..., world_size=...)"
            )
        # one replica here: torchft joins the others to it
        kind = device_of(parameters_of(model)[0]).type
        mesh = init_device_mesh(kind, (1, dist.get_world_size()), mesh_dim_names=("replicate", "shard"))
        replica = model_replica.replica_of(model, mesh, None)
        FailedPasses(model)
        return replica
    if manager._group_world_size > 1:
        raise ValueError(
            f"a replica of {manager._group_world_size} ranks holds its model in shards; call fully_shard(model) first, "
            "or start replicas of one rank"
        )
    return model_replica.replica_of(model, None, None)


def least(own: ModelReplica, number: int) -> int:
    """The minimum of a number over the ranks of a replica, which all call this."""
    if not is_sharded(next(iter(own.parameters.values()))):
        return number
    smallest = torch.tensor(number, dtype=torch.int64, device=device_of(own.parameters))
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return int(smallest)


def thawed(own: ModelReplica, since: str) -> str:
    """An error message about a parameter that is trained now, and was not when `since` was made; empty if none is."""
    new = [name for name in own.trained.now() if name not in own.parameters]
    return f"parameter {new[0]!r} was thawed after {since} was made; begin anew from a checkpoint" if new else ""


class ReplicaGradients(GradientHooks):
    """Hooks on a replica's gradients, whole or in shards that FSDP has averaged inside it. Where a replica is lost,
    the step goes on without means, and the manager gets the error. `reduced` is whether the step has its means."""

    def __init__(
        self, report: Callable[[Exception], None], model: nn.Module, own: ModelReplica, replicas: int, find_unused: bool
    ) -> None:
        gradients = ShardedGradients(fsdp_groups(model), replicas) if is_fsdp(model) else FullGradients()
        super().__init__(own.parameters, model, gradients, find_unused)
        self._report = report
        self._own = own
        self.reduced = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose backward passes' gradients are neither sent nor kept, by FSDP either."""
        with super().paused(), self._own.aside():
            yield

    def placed(self) -> Mapping[str, ShardSpec]:
        """Where the parameters lie on this replica's ranks."""
        return self._own.placed()

    def held(self) -> Mapping[str, Tensor]:
        """This rank's part of the parameters."""
        reshard(self._model)
        return locals_of(self._parameters) if is_fsdp(self._model) else self._parameters

    def check(self) -> None:
        """Checks the means before a vote. Raises RuntimeError, on all replicas, where there are none; reports means
        that are not finite, which the others see as well."""
        if self._runtime is None:  # a replica was lost, which is reported
            return
        self._check_same(self._runtime)
        if not self.reduced:
            self._runtime.refuse(
                "optimizer.step() without means: call zero_grad() first, and one backward pass outside no_sync()"
            )
        self.reduced = False
        # one number is enough to see whether the step was good: a bad one makes all means NaN
        present = [local(p.grad) for p in self._parameters.values() if p.grad is not None]
        smallest = min((each for each in present if each.numel()), key=Tensor.numel, default=None)
        if smallest is not None and not smallest.isfinite().all():
            # where there are memories, then none of them is
            self._report(RuntimeError("the means of this step are not finite; it counts for no replica"))

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        self._unless_lost(super()._forward_begins, module, arguments)

    def _gradient_ready(self, slot: int, parameter: Tensor) -> None:
        self._unless_lost(super()._gradient_ready, slot, parameter)

    def _backward_begins(self, runtime: Runtime) -> None:
        if self.reduced:
            runtime.refuse("two backward passes in one step; all but the last belong under optimizer.no_sync()")
        super()._backward_begins(runtime)

    def _open_step(self, runtime: Runtime) -> None:
        self._check_same(runtime)
        super()._open_step(runtime)

    def _check_same(self, runtime: Runtime) -> None:
        """Ends the job where other parameters are trained than those that have hooks."""
        if why := thawed(self._own, "Optimizer"):
            runtime.refuse(why)
        frozen = [name for name, parameter in self._parameters.items() if not parameter.requires_grad]
        if frozen and not self._find_unused:
            runtime.refuse(
                f"parameter {frozen[0]!r} was frozen after Optimizer was made; pass find_unused_parameters=True, or "
                "begin anew from a checkpoint"
            )

    def _backward_ends(self) -> None:
        self._unless_lost(super()._backward_ends)

    def _wait(self, left: dict[int, Tensor]) -> None:
        self._unless_lost(super()._wait, left)
        self.reduced = True

    def _unless_lost(self, call: Callable[..., None], *arguments: Any) -> None:
        # lost in this step already: the hooks do nothing more
        if self._runtime is None:
            return
        try:
            call(*arguments)
        # a replica was lost: backward ends without means, and the vote will be no
        except PeerFailed as error:
            self.unhook()
            self._report(error)
