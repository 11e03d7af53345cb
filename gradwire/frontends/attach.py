"""`attach`: compresses what a framework reduces."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.controllers import Controller
from gradwire.frontends.choices import (
    Choices,
    Dense,
    check_type,
    device_of,
    let_go,
    mesh_of,
    parameters_of,
    runtime_of,
    slots_of,
)
from gradwire.frontends.ddp import DDPFrontEnd
from gradwire.frontends.handle import Handle
from gradwire.frontends.idle import Nothing
from gradwire.frontends.owners import check_free, own
from gradwire.frontends.shards import attach_shards
from gradwire.groups import Grouping
from gradwire.memories import Memory
from gradwire.plans import Group, Plan
from gradwire.torch_private.autograd import uncompiled
from gradwire.torch_private.process_groups import world_size
from gradwire.torch_private.reducer import managed_by, wait_for_delayed
from gradwire.transports import Mesh, ProcessGroup, Transport, forked

KIND = "attach(ddp)"


def attach(
    model: nn.Module,
    compressor: Compressor | Plan | str | None = None,
    *,
    memory: Memory | None = None,
    communicator: Communicator | None = None,
    dense: Dense | None = None,
    groups: Grouping | None = None,
    candidates: Sequence[Compressor | Group] = (),
    fidelity: float | None = None,
    mesh: DeviceMesh | None = None,
    find_unused_parameters: bool = False,
    transport: Transport | Mesh | None = None,
    controller: Controller | None = None,
    scaler: torch.amp.GradScaler | None = None,
    elastic: bool = False,
    seed: int = 0,
) -> Handle:
    """Compresses the gradients that a DistributedDataParallel reduces, or between its replicas a model that fully_shard
    wrapped; train as before. Either may be compiled. In a process alone any model will do, and nothing is reduced.

    Memory and communicator default to what suits the compressor, `groups` to some 8 of 8 MB or more. Parameters for
    which `dense(name, parameter)` holds travel uncompressed; by default those of fewer than two dimensions. With the
    GradScaler that multiplies losses as `scaler`, memories hold gradients without its factor, which may change.
    `seed` starts all randomness. A compressor may be written as on the command line, "topk:0.01+residual". Instead of
    one, a `Plan` says all this group by group. A `controller` changes the plan while training. With neither, the plan
    with the most progress per second is found meanwhile, from `candidates` or from what is always safe; with
    `fidelity`, such as 0.01, one whose steps lose at most that share of what dense ones are worth: see `gradwire.Auto`.

    For FSDP2, `mesh` is the mesh of all ranks, whose first dimension counts replicas (hosts); the model was wrapped on
    what remains of it, `fully_shard(model, mesh=mesh["shard"])`, or on all of it, where `mesh` may be left out. Where
    some parameters may get no gradient, pass `find_unused_parameters`; DDP has an argument of that name itself.
    With `elastic`, ranks may be lost and come while training goes on: see `gradwire.Rendezvous`.

    Call it on all ranks, before training. Raises ValueError, naming the call that works, for pairings that make
    no sense, for ranks that differ, where hooks are taken already, for DDP with mixed precision of its own, and for a
    mesh that does not fit the model; RuntimeError where a rank does not come.
    """
    choices = Choices.of(
        compressor, memory=memory, communicator=communicator, dense=dense, groups=groups, candidates=candidates,
        fidelity=fidelity, controller=controller, elastic=elastic,
    )  # fmt: skip
    choices.check()
    if not isinstance(model, nn.Module):
        raise ValueError(f"attach() takes a model, not {model!r}; pass DistributedDataParallel(model)")
    _check_types(transport, scaler, seed)
    model = uncompiled(model)
    if mesh is None and not isinstance(model, FSDPModule):
        return _attach_ddp(model, choices, transport, scaler, seed)
    return attach_shards(model, choices, mesh, transport, find_unused=find_unused_parameters, scaler=scaler, seed=seed)


def _check_types(transport: object, scaler: object, seed: object) -> None:
    check_type("transport", transport, (Transport, Mesh), "gw.ProcessGroup.own()")
    check_type("scaler", scaler, (torch.amp.GradScaler,), "torch.amp.GradScaler()")
    check_type("seed", seed, (int,), "0")


def _attach_ddp(
    ddp: nn.Module,
    choices: Choices,
    transport: Transport | Mesh | None,
    scaler: torch.amp.GradScaler | None,
    seed: int,
) -> Handle:
    if not isinstance(ddp, DistributedDataParallel) and transport is None and world_size() == 1:
        parameters, _ = parameters_of(ddp)
        choices.plan(parameters)(slots_of(parameters))  # what would be refused with several ranks
        return Handle(None, Nothing(parameters.values()))
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(f"attach() takes a DistributedDataParallel, not {type(ddp).__name__}; wrap the model first")
    if ddp.mixed_precision is not None:
        raise ValueError("DDP(mixed_precision=...) takes the hook that Gradwire needs; use torch.autocast instead")
    managed = managed_by(ddp)
    front_end = DDPFrontEnd.of(ddp)
    if not managed <= {*ddp.module.parameters()}:
        raise ValueError("DDP reduces a parameter that the model has no more; make DDP anew, after the last change")
    parameters, others = parameters_of(ddp.module, managed.__contains__)
    check_free(parameters, beside=KIND)  # an earlier DDP of the same module may not be collected yet
    mesh = mesh_of(transport, partial(ProcessGroup.own, ddp.process_group), device_of(parameters))
    if mesh.ranks == 1 and not choices.elastic:
        let_go(mesh, transport)
        return Handle(None, front_end)
    words = {"front end": "DDP", "find_unused_parameters": str(ddp.find_unused_parameters)}
    runtime = runtime_of(
        choices, parameters, slots_of(parameters), mesh, scaler=scaler, words=words, seed=seed,
        can_be_native=not (ddp.static_graph or choices.elastic), find_unused=ddp.find_unused_parameters, others=others,
        owns_mesh=transport is None,
    )  # fmt: skip
    front_end.hook_in(runtime, parameters, managed)
    own(parameters.values(), runtime, KIND)
    wait_for_delayed(ddp)
    forked.finalize(ddp, _let_go, front_end)
    return Handle(runtime, front_end, remark=front_end.left_alone)


def _let_go(front_end: DDPFrontEnd) -> None:
    """The DDP is gone: so are its hooks, the thread and the memories."""
    if runtime := front_end.runtime:
        front_end.unhook()
        runtime.close()
