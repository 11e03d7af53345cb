"""torch.distributed: groups that their members make alone, stores and timeouts."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Which has had its newer name since torch 2.13."""
_KINDS: dict[str, Any] = {"gloo": dist.ProcessGroup.BackendType.GLOO, "nccl": dist.ProcessGroup.BackendType.NCCL}

FEW_CTAS = 4
"""Enough for 400 Gbit/s."""


def default_store() -> Any:
    """The store that the default process group was made with."""
    return dist.distributed_c10d._get_default_store()


def store_of(group: Any) -> Any:
    """The store that a group was made with."""
    return group.get_group_store()


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """The time limit of the group's collectives."""
    return group._get_backend(group._device_types[0]).options._timeout


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """The name of the backend that carries tensors of this device, such as "gloo", however the group was made; "none"
    where there is none; "nccl" for each of torch's over NCCL: what torch 2.15 makes for "nccl" calls itself nccl2."""
    try:
        name = group._get_backend(device).name()
    except RuntimeError:
        return "none"
    return "nccl" if name.startswith("nccl") else name


def error_of(group: dist.ProcessGroup) -> str | None:
    """The name of the error that a group's NCCL has reported to its watchdog, such as "COMM_ERROR"; None if there is
    none. Asks no GPU."""
    gpu = torch.device("cuda")
    name = group._get_backend(gpu).get_error().name if backend_of(group, gpu) == "nccl" else "SUCCESS"
    return None if name == "SUCCESS" else name


def options_of(like: dist.ProcessGroup, few: bool) -> Any:
    """NCCL's options for a new group with the backends and the timeout of `like`; None where it has no NCCL. Its
    streams go first, and with `few` its kernels hold FEW_CTAS multiprocessors (NCCL_MAX_CTAS overrides that)."""
    if backend_of(like, torch.device("cuda")) != "nccl":
        return None
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout_of(like)
    # kernels that wait for a slow link leave multiprocessors to the model
    if few:
        options.config.max_ctas = FEW_CTAS
    return options


def new_group_over(
    store: Any, name: str, rank: int, ranks: list[int], like: dist.ProcessGroup, few: bool = False
) -> Any:
    """A group of these ranks, in which this one has number `rank`, with the backends and the timeout of `like`; its
    members alone call this, and meet in any `store`. `dist.new_group` either wants all ranks, or makes up a name from
    how many groups each rank has, which comes again after a group was destroyed and may differ between ranks."""
    store = dist.distributed_c10d.PrefixStore(name, store)
    group: Any = dist.ProcessGroup(store, rank, len(ranks))
    # a backend for each type of device that `like` has; one may serve several
    made: dict[str, Any] = {}
    for device in like._device_types:
        backend = backend_of(like, device)
        if backend not in made:
            made[backend] = _new_backend(like, device, store, rank, ranks, few)
            group._set_default_backend(_KINDS[backend])
        group._register_backend(device, _KINDS[backend], made[backend])
    group._set_group_name(name)
    group.bound_device_id = like.bound_device_id
    return group


def _new_backend(
    like: dist.ProcessGroup, device: torch.device, store: Any, rank: int, ranks: list[int], few: bool
) -> Any:
    # NCCL has its options; gloo its timeout alone
    if backend_of(like, device) == "gloo":
        return dist.ProcessGroupGloo(store, rank, len(ranks), timeout_of(like))
    options = options_of(like, few)
    options.global_ranks_in_group = ranks
    # of torch's two over NCCL the one that `like` has; the newer one opens its communicator here, on the bound GPU
    if like._get_backend(device).name() == "nccl":
        return dist.ProcessGroupNCCL(store, rank, len(ranks), options)
    distributed: Any = dist
    return distributed.ProcessGroupNCCL2(store, rank, len(ranks), options, like.bound_device_id)


def at_once(group: dist.ProcessGroup, device: torch.device, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The works of sends and receives that are made together. NCCL takes them as one, over the group's communicator:
    one by one each pair of ranks would make a communicator, and ranks that both send first would wait for each other.
    `batch_isend_irecv` wants a group that torch.distributed knows."""
    if not calls or not group._get_backend(device).supports_coalescing:
        return [call() for call in calls]
    # NCCL: one work for all of them
    group._start_coalescing(device)
    for call in calls:
        call()
    return [group._end_coalescing(device)]


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


def nccl_groups() -> list[dist.ProcessGroup]:
    """The groups that torch.distributed knows and that are NCCL's on GPUs."""
    return [group for group in dist.distributed_c10d._world.pg_map if backend_of(group, torch.device("cuda")) == "nccl"]


def leave_default_group() -> None:
    """Ends torch.distributed, with all that is under way: NCCL's own end would wait for that."""
    world = dist.group.WORLD
    if world is not None and backend_of(world, torch.device("cuda")) == "nccl":
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()


def world_size() -> int:
    """The number of torch.distributed's processes; 1 where it was not initialised."""
    return dist.get_world_size() if dist.is_initialized() else 1
