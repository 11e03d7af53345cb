"""Seeded uniform noise, fast: torch's CPU generator would cost more than all else that a quantiser does."""

import numpy as np
import torch
from torch import Tensor


class Noise:
    """Adds uniform numbers in [-1/2, 1/2) to tensors; the same seed gives the same sequence."""

    def __init__(self, seed: int, device: torch.device) -> None:
        if device.type == "cpu":
            self._bits = np.random.SFC64(seed)
        else:
            self._generator = torch.Generator(device).manual_seed(seed)

    def add_to(self, x: Tensor) -> None:
        if x.device.type != "cpu":
            x.add_(torch.rand(x.shape, generator=self._generator, dtype=torch.float32, device=x.device)).sub_(0.5)
            return
        words = self._bits.random_raw(-(-x.numel() // 4))
        sixteen = torch.from_numpy(words.view(np.int16)[: x.numel()]).view_as(x)
        x.add_(sixteen, alpha=2.0**-16)


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers in [-1, 1), bit for bit the same on every machine: torch's normal ones are computed by instructions that
    differ from processor to processor, its uniform ones are whole numbers."""
    return torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu").mul_(2).sub_(1)
