"""Values of a model's parameters and buffers: all replicas start with the first one's; a rank's shard of each."""

from collections.abc import Iterator
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from gradwire.torch_private.compiled import named_buffers, named_parameters
from gradwire.torch_private.foreach import plain_tensors
from gradwire.transports.mesh import SAME, Mesh


def values_of(model: nn.Module) -> dict[str, str]:
    """Type and shape of each tensor by name, which must be equal on all ranks before values are sent. Raises
    ValueError, naming it, for a tensor whose values do not lie in memory one by one."""
    return {name: _described(name, tensor) for name, tensor in _named(model)}


def share_values(model: nn.Module, mesh: Mesh, device: torch.device) -> None:
    """Broadcasts a model's values from the first to all ranks that hold the same part of it."""
    mesh.share([plain for _, tensor in _named(model) for plain in plain_tensors(tensor)], device, axes=SAME)


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is cut over several ranks, as FSDP2's parameters are."""
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, or all of it where it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself; of a sharded one all of it, gathered from the ranks, which call this together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def or_zero(shard: Tensor) -> Tensor:
    """The shard, or a single zero where it is empty, so that all ranks have the same slots."""
    return shard if shard.numel() else shard.new_zeros((1,) * shard.dim())


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from named_parameters(model)
    yield from named_buffers(model)


def _described(name: str, tensor: Tensor) -> str:
    # values must lie in memory one by one, to be sent
    if is_lazy(tensor):
        raise ValueError(f"{name!r} has no shape yet; call the model once with a batch before")
    for plain in plain_tensors(tensor):
        if plain.is_meta:
            raise ValueError(f"{name!r} is on no device; call to_empty() and initialise the model before")
        if plain.layout != torch.strided or plain.is_quantized:
            kind = "quantized" if plain.is_quantized else "sparse"
            raise ValueError(f"{name!r} is {kind}, and ranks share dense values; keep it out of the model, or dense")
    # a dimension of stride 0 repeats one value
    own = tuple(
        min(size, 1) if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    expanded = "" if own == tuple(tensor.shape) else f" expanded from {own}"
    return f"{tensor.dtype} {tuple(tensor.shape)}{expanded}"
