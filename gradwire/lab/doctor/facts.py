"""Facts about one rank: versions, variables, host and GPU."""

import os
import platform
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from socket import gethostname

import torch

from gradwire.lab.doctor.variables import VARIABLES
from gradwire.sources import version

Facts = dict[str, str]
VERSIONS = ("gradwire", "torch", "Triton", "NCCL", "driver", "Python")
DEVICE, HOST, LOCAL_RANK, LOCAL_WORLD, GPU, GPUS, CURRENT = (
    "device", "host", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GPU", "GPUs", "current GPU",
)  # fmt: skip
NONE = "none"
_DRIVER = Path("/proc/driver/nvidia/version")


def facts_here(device: torch.device) -> Facts:
    """The facts of this process, which computes on `device`."""
    variables = {name: os.environ[name] for name in (*VARIABLES, LOCAL_RANK, LOCAL_WORLD) if name in os.environ}
    return _versions() | _place(device) | variables


def _versions() -> Facts:
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else NONE  # pyright: ignore
    numbers = (version(), torch.__version__, _triton(), nccl, _driver(), platform.python_version())
    return dict(zip(VERSIONS, numbers, strict=True))


def _triton() -> str:
    # the module: its distribution may be pytorch-triton or triton-rocm; a mere folder has no version
    try:
        return getattr(import_module("triton"), "__version__", NONE)
    except ImportError:
        return NONE


def _driver() -> str:
    found = re.search(r"Module.*?\s(\d+\.[\d.]+)", _DRIVER.read_text()) if _DRIVER.exists() else None
    return found[1] if found else NONE


def _place(device: torch.device) -> Facts:
    """Its host, and which GPU it has, by a name that no other GPU of the host has."""
    place = {DEVICE: device.type, HOST: gethostname()}
    if device.type != "cuda":
        return place
    place |= {GPUS: str(torch.cuda.device_count())}
    # the GPU that LOCAL_RANK names is not there
    if device.index >= torch.cuda.device_count():
        return place | {GPU: NONE}
    properties = torch.cuda.get_device_properties(device)
    name = str(getattr(properties, "uuid", device.index))
    return place | {GPU: f"{properties.name} {name}", CURRENT: str(torch.cuda.current_device())}


def hosts_of(everyone: Sequence[Facts]) -> list[int]:
    """Each rank's host as a number: as torchrun says how many ranks share one, or else by the hosts' names."""
    sizes = {facts.get(LOCAL_WORLD, "0") for facts in everyone}
    size = int(sizes.pop()) if len(sizes) == 1 else 0
    if size and len(everyone) % size == 0:
        return [rank // size for rank in range(len(everyone))]
    # hosts are numbered in the order of their first ranks
    numbers: dict[str, int] = {}
    return [numbers.setdefault(facts[HOST], len(numbers)) for facts in everyone]


def names_of(everyone: Sequence[Facts]) -> list[str]:
    """The name of each rank's host; numbered where several hosts have one name, as emulated ones have."""
    hosts = hosts_of(everyone)
    shared = len({facts[HOST] for facts in everyone}) < len(set(hosts))
    return [f"{facts[HOST]}#{host}" if shared else facts[HOST] for facts, host in zip(everyone, hosts, strict=True)]


def ranks_by(everyone: Sequence[Facts], fact: str) -> dict[str, list[int]]:
    """The ranks by their value of a fact."""
    values: dict[str, list[int]] = {}
    for rank, facts in enumerate(everyone):
        values.setdefault(facts.get(fact, NONE), []).append(rank)
    return values
