"""Batches of any form, to a device or copied."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`; tuples, lists and mappings are looked into."""
    return _with_tensors(batch, lambda tensor: tensor.to(device))


def copied(batch: Any) -> Any:
    """The batch with copies of its tensors, which have no part in their graphs; what else is in it is the same."""
    return _with_tensors(batch, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad).clone())


def _with_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with another tensor for each."""
    match batch:
        case Tensor():
            return change(batch)
        case Mapping():
            return {name: _with_tensors(part, change) for name, part in batch.items()}
        case tuple() | list():
            parts = [_with_tensors(part, change) for part in batch]
            return batch._make(parts) if hasattr(batch, "_make") else type(batch)(parts)  # pyright: ignore
        case _:
            return batch
