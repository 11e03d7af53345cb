"""DistributedDataParallel: its hook, its buckets, and which parameters it reduces."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeGuard

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.torch_private.autograd import when_backward_ends


def is_ddp(model: nn.Module) -> TypeGuard[DistributedDataParallel]:
    """Whether it is a DistributedDataParallel."""
    return isinstance(model, DistributedDataParallel)


def in_ddp() -> bool:
    """Whether this is inside of a DDP's forward pass."""
    return DistributedDataParallel._get_active_ddp_module() is not None


def averaged_over(parameters: Collection[Tensor]) -> int:
    """The ranks over which DDP will average gradients of some of these, as this is inside of its forward pass; else
    0."""
    ddp = DistributedDataParallel._get_active_ddp_module()
    if ddp is None or ddp.process_group is None or not ddp.require_backward_grad_sync:
        return 0
    own = any(parameter.requires_grad and parameter in parameters for parameter in ddp._module_parameters)
    return ddp.process_group.size() if own else 0


def hooks_of(ddp: DistributedDataParallel) -> list[Any]:
    """The communication hooks that were registered."""
    return [hook for hook, _ in ddp._comm_hooks]


def steps_in_backward(ddp: DistributedDataParallel) -> bool:
    """Whether optimizers step its parameters in backward, for which it takes its one hook itself, in its first forward
    pass."""
    return any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp._module_parameters)


def reduces_in_python(ddp: DistributedDataParallel) -> bool:
    """Whether it was made to reduce gradient by gradient inside of what torch.compile makes of a backward pass."""
    return ddp._use_python_reducer


def copies_together(ddp: DistributedDataParallel) -> bool:
    """Whether it copies a bucket's gradients when it has the last one, as `batched_grad_copy` says from torch 2.13 on,
    not each when it comes."""
    return getattr(ddp, "batched_grad_copy", False)


def frees_buckets(ddp: DistributedDataParallel) -> bool:
    """Whether it has memory for its buckets in backward passes alone: `lazy_bucket_allocation`, from torch 2.15 on."""
    return getattr(ddp, "lazy_bucket_allocation", False)


def skips_unused(ddp: DistributedDataParallel) -> bool:
    """Whether it calls no hook for a bucket that no rank has used."""
    return getattr(ddp, "skip_all_reduce_unused_params", False)


def parts_of(bucket: Any) -> list[tuple[Tensor, Tensor]]:
    """The parameters of a bucket that are not empty, and the part of it that has the numbers of each one's gradient, in
    their order in memory. Of channels-last parameters `bucket.gradients()` has another order, of complex ones other
    places."""
    parameters = [parameter for parameter in bucket.parameters() if parameter.numel()]
    sizes = [parameter.numel() * (1 + parameter.is_complex()) for parameter in parameters]
    return list(zip(parameters, bucket.buffer().split(sizes), strict=True))


def is_joining(ddp: DistributedDataParallel) -> bool:
    """Whether it is used under DDP.join()."""
    return ddp._join_config.enable


def managed_by(ddp: DistributedDataParallel) -> set[Tensor]:
    """The parameters in its buckets: those that needed a gradient, and were not to be ignored, when it was made.

    Raises ValueError where it reduces every parameter outside of its buckets."""
    if ddp._delay_all_reduce_all_params:
        raise ValueError("delay_all_reduce_named_params has DDP reduce every parameter by itself; leave some out of it")
    # tensors are compared by identity here
    try:
        buckets = ddp.reducer._get_zeros_like_grad_buckets()
        return {parameter for bucket in buckets for parameter in bucket.parameters()}
    except RuntimeError:  # before the first step the bucket of a sparse gradient has no buffer
        return _trained_since_made(ddp)


def _trained_since_made(ddp: Any) -> set[Tensor]:
    """The parameters that need a gradient now. Raises ValueError where these are more or fewer than when DDP was
    made."""
    parameters = set(ddp._build_params_for_reducer()[0])
    if len(parameters) != ddp._get_ddp_logging_data()["num_parameter_tensors"]:
        raise ValueError("DDP has sparse gradients, and parameters were frozen or thawed since; make it anew")
    return parameters


def shard_in(parameters: Iterable[Any]) -> str:
    """Which shard of a model this rank's DDP has, where tensor parallelism has cut its parameters; else ""."""
    # DDP itself has plain tensors, on which torch notes how they were cut
    specs = [parameter._st_info for parameter in parameters if hasattr(parameter, "_st_info")]
    meshes = [spec.mesh.mesh.flatten().tolist() for spec in specs]
    return next((f"shard {ranks.index(dist.get_rank())} of {len(ranks)}" for ranks in meshes if len(ranks) > 1), "")


def is_shard(parameter: Any) -> bool:
    """Whether tensor parallelism has cut one of its parameters."""
    spec = getattr(parameter, "_st_info", None)
    return spec is not None and any(
        spec.mesh.size(dim) > 1 and not placement.is_replicate() for dim, placement in enumerate(spec.placements)
    )


def delayed_by(ddp: DistributedDataParallel) -> list[Tensor]:
    """The parameters of `delay_all_reduce_named_params`, which it reduces by itself, outside of its buckets."""
    return ddp._delay_all_reduce_params


def ignored_by(ddp: DistributedDataParallel) -> set[Tensor]:
    """The parameters that `_set_params_and_buffers_to_ignore_for_model` has named."""
    return {parameter for name, parameter in ddp.module.named_parameters() if name in ddp.parameters_to_ignore}


def wait_for_delayed(ddp: DistributedDataParallel) -> None:
    """From now on backward passes end after the sum of the delayed parameters. DDP begins it and never waits: on the
    same group its buckets' sums mostly end later, but not those of a hook."""

    def reduce(gradient: Tensor) -> Tensor:
        # runs once all delayed gradients are in DDP's buffer
        buffer, group = ddp._delay_grad_buffer, ddp.process_group
        assert buffer is not None
        assert group is not None
        # the mean, as DDP makes it; the end of backward waits for it
        work: Any = dist.all_reduce(buffer.div_(group.size()), group=group, async_op=True)
        when_backward_ends(work.wait)
        return gradient

    # put in the place of DDP's own hook, on whichever parameter that is; Accelerate's copy of a DDP has the first one's
    for parameter in ddp.module.parameters() if delayed_by(ddp) else ():
        hooks = parameter._backward_hooks or {}
        for key, hook in hooks.items():
            if hook == getattr(ddp, "_orig_mod", ddp)._delayed_all_reduce_hook:
                hooks[key] = reduce


def without_hook(ddp: DistributedDataParallel, named: Mapping[str, Tensor], sparse: Collection[str]) -> None:
    """Gives it a new reducer, without a hook, as it gets one when it is unpickled; of these parameters, all of which
    need a gradient now, `sparse` ones by name."""
    it: Any = ddp
    flags = [name in sparse for name in named]
    it._ddp_init_helper([*named.values()], flags, dict(enumerate(named)), it.static_graph)


def with_hook(ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
    """Gives its new reducer the hook that its old one had."""
    dist._register_comm_hook(ddp.reducer, None, hook)  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]


def retire(ddp: DistributedDataParallel) -> None:
    """Ends its reducing for good, even where a step was under way. It lets go of its process group, whose
    connections close with the last reference."""
    it: Any = ddp
    it.reducer = it.logger = it.process_group = None
