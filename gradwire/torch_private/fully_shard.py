"""FSDP2: fully_shard, and replicate, which is made of the same."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import DataParallelMeshInfo, FSDPMeshInfo
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard


def is_fsdp(model: nn.Module) -> bool:
    """Whether fully_shard has wrapped the model itself."""
    return isinstance(model, FSDPModule)


def fsdp_modules(model: nn.Module) -> list[Any]:
    """The model's modules that fully_shard has wrapped, itself among them."""
    return [module for module in model.modules() if is_fsdp(module)]


def fsdp_groups(model: nn.Module) -> list[Any]:
    """The groups of parameters that fully_shard reduces together, in all of the model's modules."""
    # modules that were wrapped as a list share one state
    states = {id(state): state for module in fsdp_modules(model) if (state := module._get_fsdp_state())}
    return [group for state in states.values() for group in _groups_of(state)]


def _groups_of(state: Any) -> list[Any]:
    """The groups of a module's parameters: one, or none, before torch 2.13."""
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def parameters_of_fsdp(group: Any) -> list[nn.Parameter]:
    """The sharded parameters of one of `fsdp_groups`."""
    return [parameter.sharded_param for parameter in group.fsdp_params]


def shard_ranks(group: Any) -> set[int]:
    """The ranks over which one of `fsdp_groups` shards its parameters; none where it only replicates them."""
    info = group.mesh_info
    return set() if info.shard_mesh_dim is None else {*dist.get_process_group_ranks(info.shard_process_group)}


def is_gathered(group: Any) -> bool:
    """Whether one of `fsdp_groups` has whole parameters now, as between a forward pass and its backward pass."""
    return not group.is_sharded


def offloaded_in(group: Any) -> dict[Tensor, Any]:
    """What FSDP knows of each sharded parameter of one of `fsdp_groups` whose gradient it copies to the host."""
    return {parameter.sharded_param: parameter for parameter in group.fsdp_params if parameter.offload_to_cpu}


def wait_for_copy(offloaded: Any) -> None:
    """Waits until one of `offloaded_in`'s gradients is on the host: before torch 2.13 FSDP calls hooks with its copy
    under way."""
    if offloaded.grad_offload_event is not None:
        offloaded.grad_offload_event.synchronize()


def is_cut(model: nn.Module) -> bool:
    """Whether fully_shard has cut any of the model's parameters over several ranks."""
    parameters: list[Any] = [p for group in fsdp_groups(model) for p in parameters_of_fsdp(group)]
    return any(map(cuts_of, parameters))


def cuts_of(parameter: DTensor) -> dict[int, Any]:
    """How a sharded tensor is cut over several ranks, by dimension of its mesh. What FSDP2 cuts of a tensor that tensor
    parallelism has cut along the same dimension is no `Shard`."""
    return {
        dim: placement
        for dim, placement in enumerate(parameter.placements)
        if parameter.device_mesh.size(dim) > 1 and not (placement.is_replicate() or placement.is_partial())
    }


def cut_over(parameter: DTensor) -> tuple[int, ...]:
    """The ranks that hold one copy of a sharded tensor together, with this rank."""
    mesh, cuts = parameter.device_mesh, cuts_of(parameter)
    place = tuple(slice(None) if dim in cuts else mesh.get_local_rank(dim) for dim in range(mesh.ndim))
    return tuple(mesh.mesh[place].flatten().tolist())


def behind_rows(cut: Any) -> Any:
    """One of `cuts_of` a tensor, for the same one with a dimension more in front."""
    if cut.is_replicate():
        return cut
    strided = {"split_factor": cut.split_factor} if isinstance(cut, _StridedShard) else {}
    return type(cut)(cut.dim + 1, **strided)


def only_inside_replicas(group: Any) -> Callable[[], None] | None:
    """Has FSDP add up gradients over shards only and not over replicas. Returns a function that undoes that, or None
    where it does not reduce over replicas at all. It looks at the mesh's description at every step."""
    before = group.mesh_info
    if before.replicate_mesh_dim is None:
        return None
    # FSDP decides by the class of the description whether it reduces over replicas
    if before.shard_mesh_dim is None:
        inside = DataParallelMeshInfo(before.mesh, replicate_mesh_dim=before.replicate_mesh_dim)
    else:
        inside = FSDPMeshInfo(before.mesh, shard_mesh_dim=before.shard_mesh_dim)
        inside.reduce_scatter_process_group = getattr(before, "reduce_scatter_process_group", None)
    _describe(group, inside)
    return partial(_describe, group, before)


def _describe(group: Any, mesh_info: Any) -> None:
    # where both are one, FSDP reshards after forward to where parameters were, and else to a mesh of fewer ranks
    if group.post_forward_mesh_info is group.mesh_info:
        group.post_forward_mesh_info = mesh_info
    group.mesh_info = mesh_info


def fsdp_accumulates(group: Any) -> bool:
    """Whether set_requires_all_reduce(False) was called."""
    return not group.all_reduce_grads


def fsdp_is_in_backward(model: Any) -> bool:
    """Whether a backward pass of a wrapped model has begun, and FSDP has not seen its end. After a pass that failed it
    stays so: the callback in which FSDP sees the end never runs."""
    return model._get_fsdp_state()._state_ctx.post_backward_final_callback_queued


def fsdp_waits_for_call(model: Any) -> bool:
    """Whether `set_manual_backward_finalization(True)` was called, so that FSDP reduces what is left of a backward pass
    in `finalize_backward()`, as torch's pipeline stages have it from torch 2.15 on."""
    return getattr(model._get_fsdp_state()._state_ctx, "manual_backward_finalization", False)


def reset_drops_whole_gradients(model: Any) -> None:
    """Makes `reset_iter_state()` of a wrapped model drop whole gradients, for good. torch 2.13 and 2.14 document that
    it does, but keep them, and FSDP adds them to the next ones. Before torch 2.13 there is no such method."""
    reset = getattr(type(model), "reset_iter_state", None)
    if not reset or "reset_iter_state" in vars(model):
        return

    def reset_iter_state() -> None:
        reset(model)
        for group in fsdp_groups(model):
            for parameter in group.fsdp_params:
                _put_whole_gradients(parameter, None, None)

    model.reset_iter_state = reset_iter_state


@contextmanager
def without_whole_gradients(groups: Iterable[Any]) -> Iterator[None]:
    """A context in which `fsdp_groups` begin without the whole gradients that FSDP adds up after
    set_requires_gradient_sync(False); afterwards they have those again, and none of what backward passes made."""
    own = [parameter for group in groups for parameter in group.fsdp_params]
    before = [_whole_gradients(parameter) for parameter in own]
    for parameter in own:
        _put_whole_gradients(parameter, None, None)
    try:
        yield
    finally:
        for parameter, gradients in zip(own, before, strict=True):
            _put_whole_gradients(parameter, *gradients)


def has_whole_gradients(groups: Iterable[Any]) -> bool:
    """Whether any of `fsdp_groups` holds whole gradients, as after set_requires_gradient_sync(False)."""
    own = (parameter for group in groups for parameter in group.fsdp_params)
    return any(gradient is not None for parameter in own for gradient in _whole_gradients(parameter))


def _whole_gradients(parameter: Any) -> tuple[Tensor | None, Tensor | None]:
    # of the gathered parameter, which is there from the first forward pass on; before torch 2.15 also in reduce_dtype
    whole = getattr(parameter, "_unsharded_param", None)
    return None if whole is None else whole.grad, vars(parameter).get("unsharded_accumulated_grad")


def _put_whole_gradients(parameter: Any, gradient: Tensor | None, accumulated: Tensor | None) -> None:
    if (whole := getattr(parameter, "_unsharded_param", None)) is not None:
        whole.grad = gradient
    if "unsharded_accumulated_grad" in vars(parameter):
        parameter.unsharded_accumulated_grad = accumulated


def fsdp_sums(group: Any) -> bool:
    """Whether FSDP divides by a factor of the user's, and else adds gradients up instead of averaging them."""
    return group.gradient_divide_factor is not None


def fsdp_is_hooked(group: Any) -> bool:
    """Whether a hook is called with what FSDP has reduced, which then ends on another stream than without one."""
    return group._all_reduce_hook is not None


class TimesReplicas:
    """Where `fsdp_sums`, has FSDP multiply its sum over the shards by the number of replicas, before that is added to
    gradients of earlier backward passes. A hook of the user's runs first."""

    def __init__(self, group: Any, replicas: int) -> None:
        self._group = group
        self._replicas = replicas
        self._before = group._all_reduce_hook
        group._all_reduce_hook = self._multiply

    def remove(self) -> None:
        """FSDP does that no more."""
        self._group._all_reduce_hook = self._before

    def _multiply(self, summed: Tensor) -> None:
        if self._before:
            self._before(summed)
        if fsdp_sums(self._group):
            summed.mul_(self._replicas)
        # FSDP calls hooks on another stream than that on which it has allocated this, and frees it itself
        stream = self._group.device_handle.current_stream()
        if isinstance(stream, torch.Stream):
            summed.record_stream(stream)


def can_reduce_unused() -> bool:
    """Whether FSDP can reduce zeros for parameters without a gradient, as from torch 2.13 on."""
    return hasattr(FSDPModule, "set_reduce_scatter_unused_params")


def reduces_unused(group: Any) -> Callable[[], None]:
    """Has FSDP reduce zeros for those of one of `fsdp_groups` that got no gradient. Returns a function that undoes
    that."""
    before, group.reduce_scatter_unused_params = group.reduce_scatter_unused_params, True
    return partial(setattr, group, "reduce_scatter_unused_params", before)


def collectives_of(group: Any) -> list[Any]:
    """What one of `fsdp_groups` reduces and gathers with."""
    return [group._reduce_scatter_comm, group._all_gather_comm]


def replace_collectives(group: Any, reduce_scatter: Any, all_gather: Any) -> Callable[[], None]:
    """Has one of `fsdp_groups` use these instead of its own, where they are not None. Returns a function that
    undoes that. FSDPModule's set_custom_reduce_scatter and set_custom_all_gather fail with several groups to a module,
    and cannot be undone."""
    given = {"_reduce_scatter_comm": reduce_scatter, "_all_gather_comm": all_gather}
    before = {name: getattr(group, name) for name, comm in given.items() if comm is not None}

    def put(comms: dict[str, Any]) -> None:
        for name, comm in comms.items():
            setattr(group, name, comm)

    put({name: given[name] for name in before})
    return lambda: put(before)
