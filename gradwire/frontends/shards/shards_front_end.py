"""The front end for FSDP2: dense inside a replica, by FSDP itself; compressed between replicas."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from gradwire.compressors import FP32
from gradwire.frontends.checkpoints.distributed_checkpoint import ShardSpec, sharded_specs
from gradwire.frontends.front_end import FrontEnd
from gradwire.frontends.handle import Handle
from gradwire.frontends.hooks.gradient_hooks import GradientHooks
from gradwire.frontends.hooks.module_hooks import Hook, RegisteredHooks
from gradwire.frontends.options.choices import StepChoices
from gradwire.frontends.options.parameters import device_of, parameters_of, slots_of
from gradwire.frontends.owners import check_free, is_owned
from gradwire.frontends.shards.shard_gradients import ShardedGradients, local_of
from gradwire.frontends.trained import Check, TrainedParameters
from gradwire.frontends.values import is_sharded, share_values, values_of
from gradwire.runtime.runtime import Runtime
from gradwire.slots import Slot
from gradwire.torch_private.autograd import has_gradient_hooks
from gradwire.torch_private.compiled import named_parameters
from gradwire.torch_private.fully_shard import (
    cut_over,
    cuts_of,
    fsdp_groups,
    fsdp_modules,
    is_fsdp,
    is_gathered,
    only_inside_replicas,
    parameters_of_fsdp,
    without_whole_gradients,
)
from gradwire.transports import ProcessGroup

RECIPE = (
    'mesh = init_device_mesh(device, (hosts, ranks_per_host), mesh_dim_names=("replicate", "shard")), '
    'fully_shard(model, mesh=mesh["shard"]) and pass mesh=mesh'
)


def attach_shards(model: nn.Module, choices: StepChoices, mesh: DeviceMesh | None) -> Handle:
    """`attach` for a model that fully_shard wrapped."""
    if choices.elastic:
        raise ValueError("a lost rank's shards are nowhere else; resume from a checkpoint, without elastic=True")
    trained, mesh = checked_replicas(model, mesh)
    # the parameters that are trained now must be sharded inside the mesh's replicas
    check_free(trained.fit)
    now = trained.parameters()
    if mesh.size(0) == 1:
        choices.try_out(trained.fit, planned_slots(trained.fit), trained=now.keys())
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
        choices.let_go(axes)
        return Handle(None, front_end)
    runtime = choices.runtime(
        "FSDP2", trained.fit, slots_of(locals_of(trained.fit)), axes, planned=planned_slots(trained.fit),
        trained=now.keys(), others=trained.others, values=values,
    )  # fmt: skip
    with ExitStack() as on_error:
        on_error.callback(runtime.close)
        share_values(model, axes, device)
        on_error.pop_all()
    front_end.hook_in(model, runtime)
    return Handle(runtime, front_end)


class ShardsFrontEnd(FrontEnd):
    """Hooks on sharded parameters, which FSDP calls as soon as it has summed a gradient over the shards. So along the
    axis "shard" FSDP's own collectives come first, on its streams; then ours along "replica", on the worker's.

    The step ends behind FSDP's own end of backward. FSDP is kept from averaging over replicas, if the model was wrapped
    on a mesh that has some, until `unhook`. A model that was wrapped on shards alone raises in its next forward pass
    after that, for nothing averages over replicas any more. A plan for parameters that were frozen or thawed is agreed
    before the forward pass, ahead of FSDP's collectives.
    """

    def __init__(self, model: nn.Module, trained: TrainedParameters, mesh: DeviceMesh, find_unused: bool) -> None:
        groups = fsdp_groups(model)
        self._model = model
        self._groups = groups
        self._parameters = trained.fit
        self._mesh = mesh
        self._hooks = GradientHooks(
            trained.fit, model, ShardedGradients(groups, mesh.size(0)), find_unused, trained=trained
        )
        self._undo: list[Callable[[], None]] = []
        self._runtime: Runtime | None = None
        self._registered, self._to_check = RegisteredHooks(), True

    def hook_in(self, model: nn.Module, runtime: Runtime) -> None:
        """Gradients go to the runtime from now on."""
        self._runtime = runtime
        self._undo = [undo for group in self._groups if (undo := only_inside_replicas(group))]
        self._hooks.hook_in(runtime)
        self._hooks.own(self._parameters.values(), "attach()")
        # parameters that are replaced lose their hooks: looked for here
        self._registered.keep(
            model.register_forward_pre_hook(Hook(partial(self._forward_begins, runtime)), prepend=True),
            model.register_load_state_dict_post_hook(Hook(self._loaded)),
        )

    def unhook(self) -> None:
        """Submits no more gradients."""
        self._hooks.unhook()
        self._registered.remove()
        for undo in reversed(self._undo):
            undo()
        # FSDP reduces over replicas again, or they would drift apart
        if self._runtime and not self._undo:
            self._registered.keep(self._model.register_forward_pre_hook(Hook(self._check_reduced), prepend=True))
        self._runtime = None

    def accumulate(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the next one outside reduces the sum."""
        return self._hooks.accumulate()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose backward passes' gradients stay inside the replica, and are not kept."""
        with self._hooks.paused(), without_whole_gradients(self._groups):
            yield

    def skip(self) -> None:
        """Takes back the last step."""
        self._hooks.skip()

    def placed(self) -> Mapping[str, ShardSpec]:
        """The parameters' placement, as FSDP has sharded them."""
        return sharded_specs(self._mesh, self._parameters)

    def held(self) -> Mapping[str, Tensor]:
        """This rank's shards, which all replicas hold, and what is not sharded; a single zero for an empty one."""
        reshard(self._model)
        return {name: local_of(p) for name, p in named_parameters(self._model) if p.numel()}

    def _loaded(self, module: nn.Module, incompatible: Any) -> None:
        self._to_check = True

    def _forward_begins(self, runtime: Runtime, module: nn.Module, arguments: Any) -> None:
        if not torch.is_grad_enabled():
            return
        # a state was loaded, or a step begins: are the parameters still those with hooks?
        if self._to_check:
            reshard(module)
        if self._to_check or self._hooks.waiting:
            self._check_same(module, runtime)
            self._to_check = False
        self._hooks.follow()

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
        # instead of those that FSDP has gathered, the module has whole parameters
        gathered = {p for group in self._groups if is_gathered(group) for p in parameters_of_fsdp(group)}
        for name, parameter in self._parameters.items():
            if present.get(name) is not parameter and parameter not in gathered:
                runtime.refuse(
                    f"parameter {name!r} was replaced after attach(), as load_state_dict(assign=True) and to_empty() "
                    "do; call attach() after that"
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


# Models and meshes that fit


def checked_replicas(
    model: nn.Module, mesh: DeviceMesh | None, optimizer: Optimizer | None = None
) -> tuple[TrainedParameters, DeviceMesh]:
    """The sharded parameters, of those that an `optimizer` holds if one is given, and the mesh of all ranks, by default
    the one that the model was wrapped on. Raises ValueError, naming the call that works, where they do not fit."""
    # a wrapped model, as FSDP keeps it between passes
    if not is_fsdp(model):
        raise ValueError(f"mesh= is for models that fully_shard has wrapped, not {type(model).__name__}; use {RECIPE}")
    reshard(model)
    parameters, _ = parameters_of(model)
    # the mesh of all ranks, and the parameters that are sharded inside its replicas
    mesh = _replicas_of(model, parameters) if mesh is None else mesh
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
        _check_fits(name, parameter, replica, peers)
        Slot.of(name, local_of(parameter))

    return check


def _check_fits(name: str, parameter: DTensor, replica: list[int], peers: list[int]) -> None:
    own = parameter.device_mesh
    # every sharded dimension must lie inside this replica, or across the same places of all
    for dim, placement in enumerate(parameter.placements):
        ranks = dist.get_process_group_ranks(own.get_group(dim))
        if not set(ranks) <= set(replica) and not (placement.is_replicate() and ranks == peers):
            raise ValueError(
                f"parameter {name!r} is sharded over ranks {ranks}, and a replica of the mesh is {replica}; "
                f"use {RECIPE}"
            )


def _replicas_of(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> DeviceMesh:
    """The mesh that the model was wrapped on, if that has replicas."""
    # HSDP: the first dimension has the replicas, and what tensor parallelism has cut one dimension more than the rest
    sharded = [p for p in parameters.values() if is_sharded(p) and p.placements[0].is_replicate()]
    if sharded:
        return max((parameter.device_mesh for parameter in sharded), key=lambda mesh: mesh.ndim)
    raise ValueError(
        f"the model is sharded over one dimension, and mesh= says where its replicas are; use {RECIPE}. Where "
        "there are none, gw.compress_shards(model, gw.QSGD()) compresses what shards exchange"
    )
