"""Parameters whose gradients are sparse."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from gradwire.slots import Slot
from gradwire.transports import Mesh


def sparse_in(model: nn.Module, parameters: Mapping[str, Tensor]) -> set[str]:
    """The names of a model's parameters whose gradients are sparse: the weights of Embedding(sparse=True) and
    EmbeddingBag(sparse=True), as DDP has it."""
    weights = {m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse}
    return {name for name, parameter in parameters.items() if parameter in weights}


def no_rows(parameter: Tensor) -> Tensor:
    """A sparse gradient of zero."""
    parameter = parameter.detach()
    indices, rows = parameter.new_empty((1, 0), dtype=torch.int64), parameter.new_empty((0, *parameter.shape[1:]))
    return torch.sparse_coo_tensor(indices, rows, parameter.shape, is_coalesced=True, check_invariants=False)


def check_sparse(sparse: Collection[str], dense: Collection[Slot], mesh: Mesh) -> None:
    """Raises ValueError where sparse gradients cannot travel beside dense ones."""
    if sparse and mesh.host:
        raise ValueError(
            f"parameter {min(sparse)!r} has a sparse gradient, which is not summed inside hosts; use "
            "transport=gw.ProcessGroup.own(), or Embedding(sparse=False)"
        )
    if sparse and not dense:
        raise ValueError("all gradients are sparse, and there is nothing to compress; leave the model to DDP alone")
