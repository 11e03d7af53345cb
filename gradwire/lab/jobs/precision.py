"""Mixed precision: forward passes under autocast, and for float16 a factor of the loss."""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.amp import GradScaler  # pyright: ignore[reportPrivateImportUsage]
from torch.optim import Optimizer

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class MixedPrecision:
    """Autocast of a training's forward passes, where a type is named, and the GradScaler that float16 needs."""

    def __init__(self, autocast: str | None, device: torch.device) -> None:
        self._dtype, self._device = DTYPES.get(autocast or ""), device
        self._scaler = GradScaler(device.type, enabled=autocast == "fp16")

    @property
    def scaler(self) -> GradScaler | None:
        """The scaler in use."""
        return self._scaler if self._scaler.is_enabled() else None

    def forward(self) -> AbstractContextManager[object]:
        """Context of a forward pass."""
        return torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to run backward from."""
        return self._scaler.scale(loss)

    def step(self, optimizer: Optimizer, parameters: Iterable[nn.Parameter], clip: float | None = None) -> None:
        """Steps the optimizer with gradients of the norm `clip` at most, unless float16 has overflowed."""
        if clip:
            self._scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, clip)
        self._scaler.step(optimizer)
        self._scaler.update()
