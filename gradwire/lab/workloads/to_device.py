"""Moving batches of any form to a device."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on `device`; tuples, lists and mappings are looked into."""
    match batch:
        case Tensor():
            return batch.to(device)
        case Mapping():
            return {name: to_device(part, device) for name, part in batch.items()}
        case tuple() | list():
            parts = [to_device(part, device) for part in batch]
            return batch._make(parts) if hasattr(batch, "_make") else type(batch)(parts)  # pyright: ignore
        case _:
            return batch
