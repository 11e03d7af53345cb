"""`attach`: compresses what a framework reduces."""

import weakref
from collections.abc import Sequence
from functools import partial

import torch
from torch.nn.parallel import DistributedDataParallel

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.controllers import Controller
from gradwire.frontends.ddp import DDPFrontEnd
from gradwire.frontends.handle import Handle
from gradwire.frontends.job import Choices, Dense, device_of, let_go, mesh_of, parameters_of, scale_from, slots_of
from gradwire.groups import Grouping
from gradwire.memories import Memory
from gradwire.plans import Group, Plan
from gradwire.runtime.runtime import Runtime
from gradwire.runtime.settings import Settings
from gradwire.transports import Mesh, ProcessGroup, Transport
from gradwire.tuner import profiler_for


def attach(
    ddp: DistributedDataParallel,
    compressor: Compressor | Plan | None = None,
    *,
    memory: Memory | None = None,
    communicator: Communicator | None = None,
    dense: Dense | None = None,
    groups: Grouping | None = None,
    candidates: Sequence[Compressor | Group] = (),
    transport: Transport | Mesh | None = None,
    controller: Controller | None = None,
    scaler: torch.amp.GradScaler | None = None,
    seed: int = 0,
) -> Handle:
    """Compresses the gradients that `ddp` reduces; train as before.

    Memory and communicator default to what suits the compressor, `groups` to some 8 of 8 MB or more. Parameters for
    which `dense(name, parameter)` holds travel uncompressed; by default those of fewer than two dimensions. With the
    GradScaler that multiplies losses as `scaler`, memories hold gradients without its factor, which may change.
    `seed` starts all randomness. Instead of a compressor, a `Plan` says all this group by group. A `controller`
    changes the plan while training. With neither, the fastest plan is found while training, from `candidates` or from
    what is always safe: see `gradwire.Auto`.

    Call it on all ranks, before training. Raises ValueError, naming the call that works, for pairings that make
    no sense, for ranks that differ, and where `ddp` has a hook already or mixed precision of its own.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(f"attach() takes a DistributedDataParallel, not {type(ddp).__name__}; wrap the model first")
    if ddp.mixed_precision is not None:
        raise ValueError("DDP(mixed_precision=...) takes the hook that Gradwire needs; use torch.autocast instead")
    choices = Choices(
        compressor=compressor, memory=memory, communicator=communicator, dense=dense, groups=groups,
        candidates=candidates, controller=controller,
    )  # fmt: skip
    choices.check()
    front_end = DDPFrontEnd.of(ddp)
    parameters, others = parameters_of(ddp.module)
    slots, device = slots_of(parameters), device_of(parameters)
    plan = choices.plan(parameters)
    mesh = mesh_of(transport, partial(ProcessGroup.own, ddp.process_group), device)
    if mesh.ranks == 1:
        let_go(mesh, transport)
        return Handle(None, front_end)
    settings = Settings(
        seed=seed, controller=choices.controlled_by(), profiler=profiler_for(slots, mesh, device),
        follow_order=None if isinstance(compressor, Plan) else plan, can_be_native=not ddp.static_graph,
        find_unused=ddp.find_unused_parameters,
        scale=scale_from(scaler), others=others, owns_mesh=transport is None,
        words={"front end": "DDP", "scaler": "yes" if scaler else "no"},
    )  # fmt: skip
    runtime = Runtime(partial(plan, slots), slots, mesh, device, settings)
    front_end.hook_in(runtime, parameters)
    weakref.finalize(ddp, _let_go, front_end)
    return Handle(runtime, front_end)


def _let_go(front_end: DDPFrontEnd) -> None:
    """The DDP is gone: so are its hooks, the thread and the memories."""
    if runtime := front_end.runtime:
        front_end.unhook()
        runtime.close()
