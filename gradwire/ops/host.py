"""What lies between the host and a device: copies that wait for nothing, and the question where numbers are."""

import torch
from torch import Tensor

NOT_YET = 77
"""Stands where a copy to the host will be."""


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a host's tensor on a device, without waiting for it."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the host. Of a GPU's tensor it is there once what the current stream was given so far is done."""
    if tensor.device.type == "cpu":
        return tensor.detach().clone()
    pinned = torch.full(tensor.shape, NOT_YET, dtype=tensor.dtype, device="cpu", pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def has_come(copy: Tensor) -> bool:
    """Whether what `to_host` returned is there, of numbers that are not NOT_YET. Asks no GPU."""
    return bool(copy[0] != NOT_YET)


def kind_of(device: torch.device) -> str:
    """What sort of device it is, such as "cuda", whichever of them."""
    return device.type


def on_host(device: torch.device) -> bool:
    """Whether the host itself computes, with the cores that the training computes with."""
    return device.type == "cpu"


def number_in(x: Tensor) -> float | Tensor:
    """The number of x () where the host can read it at once; on a GPU x itself."""
    return float(x) if on_host(x.device) else x


def computing_threads(device: torch.device) -> int:
    """The host's threads that compute what is on a device: torch's for a CPU, none for a GPU."""
    return torch.get_num_threads() if on_host(device) else 0


def synchronize(device: torch.device) -> None:
    """Waits until a device has done all that it was given."""
    if not on_host(device):
        torch.accelerator.synchronize(device)
