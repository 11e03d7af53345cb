"""DDP's communication hooks that come with torch, as configurations to compare with."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

Share = Callable[[int], float]
"""The share of plain DDP's bytes that a rank has sent in so many steps."""


class TorchHook(ABC):
    """One of torch's hooks (torch.distributed.algorithms.ddp_comm_hooks) with its options."""

    keeps_state = False
    """Whether steps depend on what the hook kept of earlier ones."""

    @abstractmethod
    def register(self, ddp: DistributedDataParallel, seed: int) -> Share:
        """Makes a fresh `ddp` reduce by this hook."""


@dataclass(frozen=True)
class TorchFP16(TorchHook):
    """Torch's hook of DDP that averages gradients in float16: `fp16_compress_hook`."""

    def register(self, ddp: DistributedDataParallel, seed: int) -> Share:
        return _half(ddp, fp16_compress_hook)


@dataclass(frozen=True)
class TorchBF16(TorchHook):
    """Torch's hook of DDP that averages gradients in bfloat16: `bf16_compress_hook`."""

    def register(self, ddp: DistributedDataParallel, seed: int) -> Share:
        return _half(ddp, _bf16_compress_hook)


@dataclass(frozen=True)
class TorchPowerSGD(TorchHook):
    """Torch's hook of DDP for PowerSGD with error feedback and warm start: `powerSGD_hook` (Vogels et al., 2019,
    https://arxiv.org/abs/1905.13727).

    Over gloo each bucket is waited for before the next: the hook starts its later all-reduces when the first has ended,
    in another order on each rank, which hangs there."""

    keeps_state = True

    rank: int = 1
    """Of the approximation of a matrix."""
    start: int = 3
    """Steps before it that send all, 2 or more."""

    def __post_init__(self) -> None:
        if self.rank < 1 or self.start < 2:
            raise ValueError(
                f"rank={self.rank}, start={self.start} cannot be: torch's hook takes a rank of 1 or more after 2 steps "
                "or more; use e.g. torch-powersgd:4"
            )

    def register(self, ddp: DistributedDataParallel, seed: int) -> Share:
        state = PowerSGDState(ddp.process_group, self.rank, self.start, random_seed=seed)
        # on CPUs the ranks have gloo
        ddp.register_comm_hook(state, _one_by_one if ddp.device.type == "cpu" else powerSGD_hook)
        numel = sum(p.numel() for p in ddp.parameters() if p.requires_grad)

        def share(steps: int) -> float:
            _, before, after = state.compression_stats()
            return 1 - (before - after) / (max(1, steps) * numel)

        return share


TORCH_HOOKS: dict[str, type[TorchHook]] = {
    "torch-bf16": TorchBF16,
    "torch-fp16": TorchFP16,
    "torch-powersgd": TorchPowerSGD,
}
"""By their names in configurations."""


def _half(ddp: DistributedDataParallel, hook: Callable[[Any, GradBucket], Future[Tensor]]) -> Share:
    ddp.register_comm_hook(ddp.process_group, hook)
    trained = [parameter for parameter in ddp.parameters() if parameter.requires_grad]
    share = 2 * sum(p.numel() for p in trained) / sum(p.nbytes for p in trained)
    return lambda steps: share


def _bf16_compress_hook(group: Any, bucket: GradBucket) -> Future[Tensor]:
    # under another name: DDP refuses that one on CPUs, where gloo adds bfloat16 all the same
    return bf16_compress_hook(group, bucket)


def _one_by_one(state: PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    future = powerSGD_hook(state, bucket)
    future.wait()
    return future
