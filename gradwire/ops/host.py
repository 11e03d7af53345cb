"""Copies between the host and a device without waiting, and questions about devices."""

import torch
from torch import Tensor

NOT_YET = 77
"""The number that a host's tensor holds until a copy to it has come."""


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a host's tensor on a device, without waiting for it."""
    return tensor if on_host(device) else tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the host. From a GPU it comes once all work that the current stream has so far is done."""
    if on_host(tensor.device):
        return tensor.detach().clone()
    pinned = torch.full(tensor.shape, NOT_YET, dtype=tensor.dtype, device="cpu", pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def has_come(copy: Tensor) -> bool:
    """Whether a copy from `to_host`, of numbers other than NOT_YET, has come. Asks no GPU."""
    return bool(copy[0] != NOT_YET)


def kind_of(device: torch.device) -> str:
    """The kind of a device, such as "cuda", without its number."""
    return device.type


def on_host(device: torch.device) -> bool:
    """Whether a device is the host, whose cores the training uses too."""
    return device.type == "cpu"


def number_in(x: Tensor) -> float | Tensor:
    """x () as a number where the host can read it at once; on a GPU x itself."""
    return float(x) if on_host(x.device) else x


def computing_threads(device: torch.device) -> int:
    """The host's threads that compute for a device: torch's for a CPU, none for a GPU."""
    return torch.get_num_threads() if on_host(device) else 0


def processor_of(device: torch.device) -> str:
    """A GPU's name; of a host the instruction set that torch uses."""
    return torch.backends.cpu.get_cpu_capability() if on_host(device) else torch.cuda.get_device_name(device)


def stream_of(device: torch.device) -> int:
    """The number of the stream on which a device's work is queued now; 0 for the host, which has none."""
    return 0 if on_host(device) else torch.accelerator.current_stream(device).stream_id


def synchronize(device: torch.device) -> None:
    """Waits until a device has done all its work."""
    if not on_host(device):
        torch.accelerator.synchronize(device)
