"""`attach`: compresses the gradients that a framework reduces."""

from dataclasses import replace
from functools import partial
from typing import Unpack

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from gradwire.compressors import Compressor
from gradwire.frontends.ddp.ddp_front_end import DDPFrontEnd
from gradwire.frontends.handle import Handle
from gradwire.frontends.hooks.sparse_gradients import sparse_in
from gradwire.frontends.null_job import NullFrontEnd, NullRuntime
from gradwire.frontends.options.choices import StepChoices
from gradwire.frontends.options.keywords import AttachOptions
from gradwire.frontends.options.parameters import check_decides, device_of, parameters_of, slots_of
from gradwire.frontends.options.weighted import asked_in_backward
from gradwire.frontends.owners import check_free, claim
from gradwire.frontends.shards.shards_front_end import attach_shards
from gradwire.options import called_as, check_type
from gradwire.plans import Plan
from gradwire.torch_private.compiled import uncompiled
from gradwire.torch_private.fully_shard import is_fsdp
from gradwire.torch_private.process_groups import world_size
from gradwire.torch_private.reducer import (
    is_ddp,
    is_shard,
    managed_by,
    reduces_in_python,
    shard_in,
    skips_unused,
    steps_in_backward,
    wait_for_delayed,
)  # fmt: skip
from gradwire.transports import ProcessGroup, forked

KIND = "attach(ddp)"
INSTEAD = {
    "deepspeed.DeepSpeedEngine": "gradwire.integrations.deepspeed.attach(engine, gw.TopK(0.01))",
    "lightning._FabricModule": "gw.attach(model._forward_module, gw.TopK(0.01))",
    "lightning_fabric._FabricModule": "gw.attach(model._forward_module, gw.TopK(0.01))",
    "megatron.DistributedDataParallel": "gradwire.integrations.megatron.attach(ddp, gw.TopK(0.01))",
    "torch.FullyShardedDataParallel": "fully_shard(model) in its place, and gw.attach(model, gw.TopK(0.01), mesh=mesh)",
    "torchft.DistributedDataParallel": "gradwire.integrations.torchft.Optimizer, with the model inside",
    "torchft.PureDistributedDataParallel": "gradwire.integrations.torchft.Optimizer, with the model inside",
}
"""By package and name of a wrapper that `attach` does not take: the call for it."""


@called_as("gw.attach(ddp, gw.TopK(0.01), memory=gw.Residual())")
def attach(
    model: nn.Module,
    compressor: Compressor | Plan | str | None = None,
    *,
    mesh: DeviceMesh | None = None,
    **options: Unpack[AttachOptions],
) -> Handle:
    """Compresses the gradients that a DistributedDataParallel reduces, or between its replicas a model that fully_shard
    wrapped; train as before. Either may be compiled. In a process alone a plain model will do; nothing is reduced.

    A compressor may be written as on the command line, "topk:0.01+residual". A `Plan` in its place says all group by
    group; `rules` say it layer by layer, as in [("*.norm.*", gw.FP32()), ("numel>65535", gw.PowerSGD(4))]. Without
    one, the plan with the most progress per second is found while training: see `gradwire.Auto`. The
    options are memory, communicator, dense, groups, rules, transport, seed, weight, candidates, fidelity, controller,
    find_unused_parameters, scaler, rows and elastic; `gradwire.frontends.options.keywords` describes each.

    For FSDP2, `mesh` is the mesh of all ranks, whose first dimension counts replicas (hosts); the model was wrapped on
    what remains of it, `fully_shard(model, mesh=mesh["shard"])`, or on all of it, where `mesh` may be left out. Its
    `find_unused_parameters` is the option here; DDP has an argument of that name itself.

    Call it on all ranks, before training. Raises ValueError, naming the call that works, for pairings that make
    no sense, for ranks that differ, where hooks are taken already, for DDP with mixed precision of its own, and for a
    mesh that does not fit the model; RuntimeError where a rank does not come.
    """
    # options by themselves, before anything is looked at
    choices = StepChoices.of(compressor, ["mesh"], **options)
    choices.check()
    # the model: FSDP2's is wrapped itself, any other is to be in DDP
    check_type("model", model, (nn.Module,), "DistributedDataParallel(model)", optional=False)
    check_type(
        "mesh", mesh, (DeviceMesh,), 'init_device_mesh("cuda", (hosts, 8), mesh_dim_names=("replicate", "shard"))'
    )
    model = uncompiled(model)
    _check_wrapper(model)
    if mesh is None and not is_fsdp(model):
        return _attach_ddp(model, choices)
    return attach_shards(model, choices, mesh)


def _check_wrapper(model: nn.Module) -> None:
    """Raises ValueError, naming the call that works, for a model in another library's wrapper."""
    for kind in type(model).__mro__:
        package, name = kind.__module__.partition(".")[0], kind.__name__
        if instead := INSTEAD.get(f"{package}.{name}"):
            raise ValueError(f"attach() does not take {package}'s {name}; use {instead}")


def _attach_ddp(ddp: nn.Module, choices: StepChoices) -> Handle:
    if not is_ddp(ddp):
        return _attach_alone(ddp, choices)
    _check_ddp(ddp, choices)
    # the parameters in DDP's buckets, which it chose when it was made
    managed, module = managed_by(ddp), ddp.module
    front_end = DDPFrontEnd.of(ddp)
    if not (present := {*module.parameters()}):
        raise ValueError(
            "the model has had no parameters since its first forward pass, for it has tensors of tensor parallelism in "
            "their place; attach() before the first forward pass, and replan() in place of attaching again"
        )
    if not managed <= present:
        raise ValueError("DDP reduces a parameter that the model has no more; make DDP anew, after the last change")
    parameters, others = parameters_of(module, managed.__contains__)
    # an earlier DDP of the same module may not be collected yet
    check_free(parameters, beside=KIND)
    # a slot for each; tensor parallelism may have cut some of them
    slots = [replace(slot, cut=int(is_shard(parameters[slot.name]))) for slot in slots_of(parameters)]
    check_decides(choices.controlled_by(), slots)
    # open a process group; with one rank nothing is sent, and DDP keeps its reducer
    mesh = choices.mesh(partial(ProcessGroup.own, ddp.process_group), device_of(parameters))
    sparse = sparse_in(module, parameters)
    no_native = _no_native(ddp, choices)
    if mesh.ranks == 1 and not choices.elastic:
        choices.close_own(mesh)
        choices.try_out(parameters, sparse=sparse, no_native=no_native)
        return Handle(None, front_end)
    choices = replace(choices, find_unused_parameters=ddp.find_unused_parameters)
    # the ranks meet over the store: they compare model, plan and options, or all of them raise
    runtime = choices.runtime(
        "DDP", parameters, slots, mesh, others=others, no_native=no_native,
        shard=shard_in(parameters.values()), weight=asked_in_backward(choices.weight), sparse=sparse,
    )  # fmt: skip
    # from here on gradients go to the runtime
    front_end.hook_in(runtime, parameters, managed)
    claim(parameters.values(), runtime, KIND)
    wait_for_delayed(ddp)
    forked.finalize(ddp, _ddp_is_gone, front_end)
    return Handle(runtime, front_end, remark=front_end.unreduced.remark)


def _check_ddp(ddp: DistributedDataParallel, choices: StepChoices) -> None:
    """Raises ValueError, naming what works, for a DDP whose own options rule out Gradwire's hook."""
    if ddp.mixed_precision is not None:
        raise ValueError("DDP(mixed_precision=...) takes the hook that Gradwire needs; use torch.autocast instead")
    # DDP waits for a future of its first bucket, and a step ends with its last one
    if skips_unused(ddp):
        raise ValueError(
            "DDP(skip_all_reduce_unused_params=True) hands no unused bucket over; leave it out, "
            "find_unused_parameters=True will do"
        )
    if steps_in_backward(ddp):
        raise ValueError(
            "optimizers step this DDP's parameters in backward, for which it takes the hook that Gradwire needs; step "
            "them after backward()"
        )
    if reduces_in_python(ddp):
        raise ValueError('DDP was made under optimize_ddp = "python_reducer", without buckets; make it without that')
    if choices.find_unused_parameters and not ddp.find_unused_parameters:
        raise ValueError(
            "find_unused_parameters=True is DDP's own option; pass it to DistributedDataParallel(model, "
            "find_unused_parameters=True)"
        )


def _no_native(ddp: DistributedDataParallel, choices: StepChoices) -> str:
    """Why a DDP cannot reduce by itself; "" where it can."""
    ruled_out_by = {
        "DDP(static_graph=True)": ddp.static_graph, "elastic=True": choices.elastic,
        "weight=": choices.weight is not None,
    }  # fmt: skip
    option = next((option for option, given in ruled_out_by.items() if given), None)
    if option is None:
        return ""
    return f"a native plan leaves reducing to DDP, which {option} rules out; leave that out, or use FP32() instead"


def _attach_alone(model: nn.Module, choices: StepChoices) -> Handle:
    """The handle of a model without DDP in a process alone, where nothing is reduced."""
    if choices.transport is not None or world_size() > 1:
        raise ValueError(f"attach() takes a DistributedDataParallel, not {type(model).__name__}; wrap the model first")
    parameters, _ = parameters_of(model)
    choices.try_out(parameters, sparse=sparse_in(model, parameters), no_native="")
    return Handle(NullRuntime(elastic=choices.elastic), NullFrontEnd(parameters.values()))


def _ddp_is_gone(front_end: DDPFrontEnd) -> None:
    """Ends the job of a DDP that is gone."""
    if runtime := front_end.runtime:
        front_end.unhook()
        runtime.close()
