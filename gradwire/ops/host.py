"""Numbers that the host wants to know, without waiting for a GPU."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a host's tensor on a device, without waiting for it."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the host. Of a GPU's tensor it is there once what the current stream was given so far is done."""
    if tensor.device.type == "cpu":
        return tensor.detach().clone()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
