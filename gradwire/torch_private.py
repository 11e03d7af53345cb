"""All that Gradwire uses of torch and is not public there, in one place. A test runs each of these against the oldest
and the newest torch that pyproject.toml claims."""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import DataParallelMeshInfo, FSDPMeshInfo
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

T = TypeVar("T")

# One call for many small tensors


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """targets[i] becomes sources[i]."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))  # pyright: ignore[reportPrivateImportUsage]


def add_each(targets: Sequence[Tensor], sources: Sequence[Tensor], alpha: float = 1.0) -> None:
    """targets[i] += alpha·sources[i]."""
    if targets:
        torch._foreach_add_(list(targets), list(sources), alpha=alpha)  # pyright: ignore[reportPrivateImportUsage]


def scale_each(targets: Sequence[Tensor], factor: float | Tensor) -> None:
    """targets[i] *= factor, a number or a tensor ()."""
    if targets:
        torch._foreach_mul_(list(targets), factor)  # pyright: ignore[reportPrivateImportUsage]


def scale_each_by(targets: Sequence[Tensor], factors: Sequence[Tensor]) -> None:
    """targets[i] *= factors[i], tensors ()."""
    torch._foreach_mul_(list(targets), list(factors))  # pyright: ignore[reportPrivateImportUsage]


def zero_each(targets: Sequence[Tensor]) -> None:
    """targets[i] = 0."""
    if targets:
        torch._foreach_zero_(list(targets))  # pyright: ignore[reportPrivateImportUsage]


def largest_of(tensors: Sequence[Tensor]) -> Tensor:
    """The largest absolute value of each tensor, NaN where one of its elements is, (len(tensors),)."""
    return torch.stack(torch._foreach_norm(list(tensors), float("inf")))  # pyright: ignore[reportPrivateImportUsage]


def norms_of(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of each tensor, (len(tensors),)."""
    return torch.stack(torch._foreach_norm(list(tensors)))  # pyright: ignore[reportPrivateImportUsage]


# torch.distributed


def default_store() -> Any:
    """The store that the default process group was made with."""
    return dist.distributed_c10d._get_default_store()


def store_of(group: Any) -> Any:
    """The store that a group was made with."""
    return group.get_group_store()


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long the group's collectives wait for a rank."""
    return group._get_backend(group._device_types[0]).options._timeout


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """The name of the backend that carries tensors of this device, such as "gloo", however the group was made; "none"
    where there is none."""
    try:
        return group._get_backend(device).name()
    except RuntimeError:
        return "none"


def new_group_of_members(name: str, ranks: list[int], like: dist.ProcessGroup) -> Any:
    """A group of these ranks, this one among them, with the backends and the timeout of `like`; only its members call
    this. `dist.new_group` either wants all ranks, or makes up a name from how many groups each rank has, which comes
    again after a group was destroyed and may differ between ranks."""
    return new_group_over(default_store(), name, ranks.index(dist.get_rank()), ranks, like)


def new_group_over(store: Any, name: str, rank: int, ranks: list[int], like: dist.ProcessGroup) -> Any:
    """The same, where ranks find each other in any `store`; it needs no default group."""
    store = dist.distributed_c10d.PrefixStore(name, store)
    group: Any = dist.ProcessGroup(store, rank, len(ranks))
    made: dict[str, Any] = {}
    for device in like._device_types:
        backend = backend_of(like, device)
        if backend not in made:
            made[backend] = _new_backend(backend, store, rank, ranks, timeout_of(like))
            group._set_default_backend(_KINDS[backend])
        group._register_backend(device, _KINDS[backend], made[backend])
    group._set_group_name(name)
    return group


_KINDS: dict[str, Any] = {"gloo": dist.ProcessGroup.BackendType.GLOO, "nccl": dist.ProcessGroup.BackendType.NCCL}


def _new_backend(name: str, store: Any, rank: int, ranks: list[int], timeout: timedelta) -> Any:
    if name == "gloo":
        backend = dist.ProcessGroupGloo(store, rank, len(ranks), timeout)
    else:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout, options.global_ranks_in_group = timeout, ranks
        backend = dist.ProcessGroupNCCL(store, rank, len(ranks), options)
    backend._set_sequence_number_for_group()
    return backend


def close_group(group: dist.ProcessGroup) -> None:
    """Ends a group: one that torch.distributed knows, or one of `new_group_over`."""
    if group in dist.distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)
    else:
        group.shutdown()


def abort_group(group: dist.ProcessGroup) -> None:
    """Ends a group with all that is under way in it; gloo's connections close when nothing refers to them any more."""
    if any(backend_of(group, device) == "nccl" for device in group._device_types):
        group.abort()
    else:
        close_group(group)


def world_size() -> int:
    """How many processes torch.distributed joins; 1 where it was not initialised."""
    return dist.get_world_size() if dist.is_initialized() else 1


# torch.compile


def uncompiled(model: nn.Module) -> nn.Module:
    """The model that torch.compile wrapped, whose hooks it calls."""
    return getattr(model, "_orig_mod", model)


# torch.amp


def scale_of(scaler: Any) -> Tensor | None:
    """A GradScaler's factor (), where it lies, without waiting for a GPU; None before it has scaled a loss."""
    return scaler._scale if scaler.is_enabled() else None


# Autograd


def when_backward_ends(call: Callable[[], None]) -> None:
    """Has autograd call this when the backward pass under way is over, on the thread that runs it."""
    torch.autograd.Variable._execution_engine.queue_callback(call)  # pyright: ignore[reportAttributeAccessIssue]


def in_backward() -> bool:
    """Whether this thread is inside a backward pass, as in a hook."""
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage]


# DistributedDataParallel


def hooks_of(ddp: DistributedDataParallel) -> list[Any]:
    """The communication hooks that were registered."""
    return [hook for hook, _ in ddp._comm_hooks]


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

    Raises ValueError where it expects sparse gradients, or reduces every parameter outside of its buckets."""
    if ddp._delay_all_reduce_all_params:
        raise ValueError("delay_all_reduce_named_params has DDP reduce every parameter by itself; leave some out of it")
    try:
        buckets = ddp.reducer._get_zeros_like_grad_buckets()
    except RuntimeError as error:  # the bucket of a sparse gradient has no buffer
        raise ValueError("DDP expects a sparse gradient; use Embedding(sparse=False)") from error
    return {parameter for bucket in buckets for parameter in bucket.parameters()}


def delayed_by(ddp: DistributedDataParallel) -> list[Tensor]:
    """The parameters of `delay_all_reduce_named_params`, which it reduces by itself, outside of its buckets."""
    return ddp._delay_all_reduce_params


def wait_for_delayed(ddp: DistributedDataParallel) -> None:
    """From now on backward passes end after the sum of the delayed parameters. DDP begins it and never waits: on the
    same group its buckets' sums mostly end later, but not those of a hook."""

    def reduce(gradient: Tensor) -> Tensor:
        buffer, group = ddp._delay_grad_buffer, ddp.process_group
        assert buffer is not None
        assert group is not None
        work: Any = dist.all_reduce(buffer.div_(group.size()), group=group, async_op=True)
        when_backward_ends(work.wait)
        return gradient

    for parameter in ddp.module.parameters() if delayed_by(ddp) else ():
        hooks = parameter._backward_hooks or {}
        for key, hook in hooks.items():
            if hook == ddp._delayed_all_reduce_hook:
                hooks[key] = reduce


def without_hook(ddp: DistributedDataParallel, managed: Collection[Tensor]) -> None:
    """Gives it a new reducer, without a hook, as it gets one when it is unpickled; of the same parameters, all of which
    need a gradient now."""
    it: Any = ddp
    named = {name: p for name, p in it.module.named_parameters() if p in managed}
    it._ddp_init_helper([*named.values()], [False] * len(named), dict(enumerate(named)), it.static_graph)


def with_hook(ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
    """Gives its new reducer the hook that its old one had."""
    dist._register_comm_hook(ddp.reducer, None, hook)  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]


def retire(ddp: DistributedDataParallel) -> None:
    """It reduces no more, even if a step was under way, and lets go of its process group, whose connections close when
    nobody refers to them."""
    it: Any = ddp
    it.reducer = it.logger = it.process_group = None


# Tensors that are made of others


def plain_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensors in which a subclass such as DTensor, or a quantized weight, keeps its values; of any other itself."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    parts = [getattr(tensor, name) for name in names]  # a DTensor's mesh is one of them
    return [plain for part in parts if isinstance(part, Tensor) for plain in plain_tensors(part)]


# Hooks of parameters


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether somebody's post-accumulate-grad hooks are on it."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


# FSDP2: fully_shard, and replicate, which is made of the same


def fsdp_groups(model: nn.Module) -> list[Any]:
    """The groups of parameters that fully_shard reduces together, in all of the model's modules."""
    states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
    return [group for state in states for group in state._fsdp_param_groups]


def parameters_of_fsdp(group: Any) -> list[nn.Parameter]:
    """The sharded parameters of one of `fsdp_groups`."""
    return [parameter.sharded_param for parameter in group.fsdp_params]


def only_inside_replicas(group: Any) -> Callable[[], None] | None:
    """Has FSDP add up gradients over shards only and not over replicas; what undoes that, or None where it does not
    reduce over replicas at all. It looks at the mesh's description at every step."""
    before = group.mesh_info
    if before.replicate_mesh_dim is None:
        return None
    if before.shard_mesh_dim is None:
        group.mesh_info = DataParallelMeshInfo(before.mesh, replicate_mesh_dim=before.replicate_mesh_dim)
    else:
        group.mesh_info = FSDPMeshInfo(before.mesh, shard_mesh_dim=before.shard_mesh_dim)
        group.mesh_info.reduce_scatter_process_group = getattr(before, "reduce_scatter_process_group", None)

    def undo() -> None:
        group.mesh_info = before

    return undo


def fsdp_accumulates(group: Any) -> bool:
    """Whether set_requires_all_reduce(False) was called."""
    return not group.all_reduce_grads


def fsdp_sums(group: Any) -> bool:
    """Whether FSDP divides by a factor of the user's, and else adds gradients up instead of averaging them."""
    return group.gradient_divide_factor is not None


def replace_collectives(group: Any, reduce_scatter: Any, all_gather: Any) -> Callable[[], None]:
    """Has one of `fsdp_groups` use these instead of its own, where they are not None; what undoes that. FSDPModule's
    set_custom_reduce_scatter and set_custom_all_gather do not where a module has several groups, nor back."""
    given = {"_reduce_scatter_comm": reduce_scatter, "_all_gather_comm": all_gather}
    before = {name: getattr(group, name) for name, comm in given.items() if comm is not None}

    def put(comms: dict[str, Any]) -> None:
        for name, comm in comms.items():
            setattr(group, name, comm)

    put({name: given[name] for name in before})
    return lambda: put(before)
