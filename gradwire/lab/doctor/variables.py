"""The environment variables that docs/gpu.md speaks about: the values that do harm, and those that help."""

from collections.abc import Callable
from dataclasses import dataclass

LEAST_CONNECTIONS = 8


@dataclass(frozen=True)
class Variable:
    """A rule about one variable: `harm` says why a value is wrong ("" where it is not), `remedy` what to set instead.
    `hint` is for GPUs, where the variable is not set, or not to the value that it `wants`."""

    harm: Callable[[str], str] = lambda value: ""
    remedy: str = ""
    hint: str = ""
    wants: str = ""

    def hint_for(self, value: str | None) -> str:
        """The hint for a value, None where it is not set."""
        return self.hint if value is None or (self.wants and value != self.wants) else ""


def _async(value: str) -> str:
    return "torch's watchdog aborts communicators before Gradwire has noted the loss" if value == "2" else ""


def _connections(value: str) -> str:
    few = value.isdigit() and int(value) < LEAST_CONNECTIONS
    return "nothing is hidden behind backward, and beside FSDP or SyncBatchNorm ranks may hang" if few else ""


def _launch_order(value: str) -> str:
    return "NCCL wants one thread to launch all collectives, and Gradwire's is a second one" if value != "0" else ""


def _detail(value: str) -> str:
    # torch takes small letters as well
    refused = value.upper() == "DETAIL"
    return "groups cannot be aborted; a lost rank ends the job at the group's timeout" if refused else ""


VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": Variable(
        _async,
        "unset TORCH_NCCL_ASYNC_ERROR_HANDLING, or set it to 0 with elastic=True or torch 2.15",
        "for elastic=True, Rendezvous or torch 2.15: TORCH_NCCL_ASYNC_ERROR_HANDLING=0 (torchrun sets 1)",
        wants="0",
    ),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": Variable(
        hint="for elastic=True or Rendezvous: TORCH_NCCL_DUMP_ON_TIMEOUT=0", wants="0"
    ),
    "TORCH_DISTRIBUTED_DEBUG": Variable(_detail, "unset TORCH_DISTRIBUTED_DEBUG, or set it to INFO"),
    "CUDA_DEVICE_MAX_CONNECTIONS": Variable(_connections, "unset CUDA_DEVICE_MAX_CONNECTIONS, or set it to 8 or more"),
    "NCCL_LAUNCH_ORDER_IMPLICIT": Variable(_launch_order, "unset NCCL_LAUNCH_ORDER_IMPLICIT"),
    "CUDA_MODULE_LOADING": Variable(hint="where the first steps hang: CUDA_MODULE_LOADING=EAGER", wants="EAGER"),
    "NCCL_DEBUG": Variable(hint="NCCL_DEBUG=WARN has NCCL say which link or peer failed"),
    "NCCL_SOCKET_IFNAME": Variable(hint="with several networks, NCCL_SOCKET_IFNAME names the one that NCCL takes"),
    "NCCL_IB_HCA": Variable(hint="with several InfiniBand cards, NCCL_IB_HCA names those that NCCL takes"),
    "NCCL_MAX_CTAS": Variable(hint="between hosts above 400 Gbit/s, NCCL_MAX_CTAS allows more than 4 multiprocessors"),
}
