"""The front end for FSDP2: dense inside a replica, by FSDP itself; compressed between replicas."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from gradwire.compressors import FP32
from gradwire.frontends.checkpoints.distributed_checkpoint import ShardSpec, sharded_specs
from gradwire.frontends.handle import Handle
from gradwire.frontends.hooks.gradient_hooks import GradientHooks
from gradwire.frontends.hooks.module_hooks import Hook
from gradwire.frontends.options.choices import StepChoices
from gradwire.frontends.options.parameters import device_of, slots_of
from gradwire.frontends.owners import check_free, is_owned
from gradwire.frontends.shards.failed_passes import FailedPasses
from gradwire.frontends.shards.shard_gradients import ShardedGradients, local_of
from gradwire.frontends.shards.sharded_models import checked_replicas, locals_of, planned_slots, reshard
from gradwire.frontends.trained import TrainedParameters
from gradwire.frontends.values import share_values, values_of
from gradwire.runtime.runtime import Runtime
from gradwire.torch_private.compiled import named_parameters
from gradwire.torch_private.fully_shard import (
    fsdp_groups,
    fsdp_waits_for_call,
    is_gathered,
    only_inside_replicas,
    parameters_of_fsdp,
    without_whole_gradients,
)
from gradwire.transports import ProcessGroup

ONE_REPLICA = "one replica: nothing to compress"
BY_CALL = (
    "FSDP reduces gradients in finalize_backward(), after the backward pass, as in torch's pipeline stages; call "
    "model.set_manual_backward_finalization(False), and train without pipeline stages"
)


def attach_shards(model: nn.Module, choices: StepChoices, mesh: DeviceMesh | None) -> Handle:
    """`attach` for a model that fully_shard wrapped."""
    if choices.elastic:
        raise ValueError("a lost rank's shards are nowhere else; resume from a checkpoint, without elastic=True")
    trained, mesh = checked_replicas(model, mesh)
    # the parameters that are trained now must be sharded inside the mesh's replicas
    check_free(trained.reducible)
    now = trained.parameters()
    if mesh.size(0) == 1:
        choices.try_out(trained.reducible, planned_slots(trained.reducible), trained=now.keys())
        # nothing to compress; a loaded residual goes into the next gradient
        choices = StepChoices(
            compressor=FP32(), transport=choices.transport, scaler=choices.scaler, seed=choices.seed,
            find_unused_parameters=choices.find_unused_parameters,
        )  # fmt: skip
    values, device = values_of(model), device_of(now)
    # open the axes, agree over the store, and only then take over the first replica's values
    axes = choices.mesh(partial(ProcessGroup.by_replica, mesh), device)
    front_end = ShardsFrontEnd(model, trained, mesh, choices.find_unused_parameters)
    if axes.ranks == 1:
        choices.close_own(axes)
        front_end.watch_passes()
        return Handle(None, front_end)
    runtime = choices.runtime(
        "FSDP2", trained.reducible, slots_of(locals_of(trained.reducible)), axes,
        planned=planned_slots(trained.reducible), trained=now.keys(), others=trained.others, values=values,
    )  # fmt: skip
    with ExitStack() as on_error:
        on_error.callback(runtime.close)
        share_values(model, axes, device)
        on_error.pop_all()
    front_end.hook_in(runtime)
    return Handle(runtime, front_end, remark=lambda: ONE_REPLICA if mesh.size(0) == 1 else "")


class ShardsFrontEnd(GradientHooks):
    """Hooks on sharded parameters, which FSDP calls as soon as it has summed a gradient over the shards. So along the
    axis "shard" FSDP's own collectives come first, on its streams; then ours along "replica", on the worker's.

    The step ends behind FSDP's own end of backward. If the model was wrapped on a mesh with replicas, FSDP averages
    over shards alone until `unhook`. After that a model that was wrapped on shards alone raises in its next forward
    pass, since nothing averages over replicas any more. A plan for parameters that were frozen or thawed is agreed
    before the forward pass, ahead of FSDP's collectives.
    """

    def __init__(self, model: nn.Module, trained: TrainedParameters, mesh: DeviceMesh, find_unused: bool) -> None:
        self._fsdp_groups, self._mesh = fsdp_groups(model), mesh
        gradients = ShardedGradients(self._fsdp_groups, mesh.size(0))
        super().__init__(trained.reducible, model, gradients, find_unused, trained=trained)
        self._undo: list[Callable[[], None]] = []
        self._to_check = True

    def hook_in(self, runtime: Runtime) -> None:
        self._undo = [undo for group in self._fsdp_groups if (undo := only_inside_replicas(group))]
        super().hook_in(runtime)
        self.claim(self._parameters.values(), "attach()")
        self._registered.keep(self._model.register_load_state_dict_post_hook(Hook(self._loaded)))
        self.watch_passes(runtime.refuse)

    def watch_passes(self, refuse: Callable[[str], Any] | None = None) -> None:
        """Has the forward pass after a backward pass that failed call `refuse`, and raise RuntimeError."""
        self._registered.keep(FailedPasses(self._model, refuse))

    def unhook(self) -> None:
        attached = self._runtime is not None
        super().unhook()
        for undo in reversed(self._undo):
            undo()
        # FSDP does not reduce over replicas by itself, so they would drift apart
        if attached and not self._undo:
            self._registered.keep(self._model.register_forward_pre_hook(Hook(self._check_reduced), prepend=True))

    @contextmanager
    def paused(self) -> Iterator[None]:
        with super().paused(), without_whole_gradients(self._fsdp_groups):
            yield

    def placed(self) -> Mapping[str, ShardSpec]:
        return sharded_specs(self._mesh, self._parameters)

    def held(self) -> Mapping[str, Tensor]:
        """This rank's shards, which all replicas hold, and what is not sharded; a single zero for an empty one."""
        reshard(self._model)
        return {name: local_of(p) for name, p in named_parameters(self._model) if p.numel()}

    def _loaded(self, module: nn.Module, incompatible: Any) -> None:
        self._to_check = True

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        if self._runtime and torch.is_grad_enabled():
            # a state was loaded, or a step begins: parameters that were replaced since have no hooks
            if self._to_check:
                reshard(module)
            if self._to_check or self._forward:
                self._check_same(module, self._runtime)
                self._to_check = False
            if fsdp_waits_for_call(module):
                self._runtime.refuse(BY_CALL)
            self.follow()
        super()._forward_begins(module, arguments)

    def _check_reduced(self, module: nn.Module, arguments: Any) -> None:
        """Raises RuntimeError, after `unhook`, where replicas would drift apart unnoticed."""
        if not torch.is_grad_enabled():
            return
        if not any(map(is_owned, self._parameters.values())):
            raise RuntimeError("detach() ended the exchange between replicas; call attach() again before training")
        # another front end reduces them now
        self._registered.remove()

    def _check_same(self, module: nn.Module, runtime: Runtime) -> None:
        """Ends the job where parameters were replaced: new ones have no hooks."""
        present = dict(named_parameters(module))
        # while FSDP has gathered a group, the module has whole parameters in place of its shards
        gathered = {p for group in self._fsdp_groups if is_gathered(group) for p in parameters_of_fsdp(group)}
        for name, parameter in self._parameters.items():
            if present.get(name) is not parameter and parameter not in gathered:
                runtime.refuse(
                    f"parameter {name!r} was replaced after attach(), as load_state_dict(assign=True) and to_empty() "
                    "do; call attach() after that"
                )
