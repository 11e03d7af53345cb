"""Seeded noise and draws. A CPU has fast generators; a GPU hashes an element's number, so that what it launches is the
same at every step: see `gradwire.recordable`."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.host import on_host
from gradwire.ops.workspace import Workspace

SALT = 0x7FFF_FFFF
"""The largest salt."""
GOLDEN = -1640531527
ROUNDS = (16, -2048144789), (13, -1028477387)
"""Of MurmurHash3's last step: how far to shift, and what to multiply by."""


class StepWord:
    """The number of the present step, on the device: `tensor` (1,) int64."""

    def __init__(self, step: int, device: torch.device) -> None:
        self.tensor, self._step = torch.full((1,), step, dtype=torch.int64, device=device), step

    def count(self, step: int) -> None:
        """Writes it, once a step; a CPU needs none."""
        if step != self._step and not on_host(self.tensor.device):
            self.tensor.fill_(step)
            self._step = step


def step_word(step: int, scratch: Workspace) -> Tensor:
    """The word (1,) of a job, whose scratch this is; made at this step if there was none."""
    return scratch.once(StepWord, lambda: StepWord(step, scratch.device)).tensor


def count_step(step: int, scratch: Workspace) -> None:
    """Has the word of a job, if any of its groups has asked for it, be this step."""
    if word := scratch.kept(StepWord):
        word.count(step)


@dataclass(frozen=True, eq=False)
class Seed:
    """The seed of one call at one step: a `number` for a CPU; a GPU hashes a `word` (1,) int64 that counts steps with a
    `salt`, which is the same at every step. Without a word the number is the salt."""

    number: int
    salt: int = 0
    word: Tensor | None = None

    def on(self, device: torch.device) -> tuple[Tensor, int]:
        """Word and salt, for a GPU."""
        if self.word is not None:
            return self.word, self.salt
        return torch.zeros(1, dtype=torch.int64, device=device), self.number & SALT


class Noise:
    """Adds uniform numbers in [-1/2, 1/2) to tensors; on a CPU the next ones of a sequence."""

    def __init__(self, seed: Seed, device: torch.device) -> None:
        self._seed = seed
        if on_host(device):
            self._bits = np.random.SFC64(seed.number)

    def add_to(self, x: Tensor) -> None:
        if not on_host(x.device):
            x.add_(hashed(x.numel(), self._seed, x.device).bitwise_right_shift_(8).view_as(x), alpha=2.0**-24)
            return
        words = self._bits.random_raw(-(-x.numel() // 4))
        sixteen = torch.from_numpy(words.view(np.int16)[: x.numel()]).view_as(x)
        x.add_(sixteen, alpha=2.0**-16)


def draws(n: int, seed: Seed, device: torch.device) -> Tensor:
    """n uniform numbers in [0, 1), float64, the same on all ranks whose devices are of a kind."""
    if on_host(device):
        generator = torch.Generator().manual_seed(seed.number)
        return torch.rand(n, generator=generator, device="cpu", dtype=torch.float64)
    return hashed_draws(n, seed, device)


def hashed_draws(n: int, seed: Seed, device: torch.device) -> Tensor:
    """The draws of a GPU, on any device."""
    return hashed(n, seed, device).double().mul_(2.0**-32).add_(0.5)


def hashed(n: int, seed: Seed, device: torch.device) -> Tensor:
    """n int32 of which all bits are noise, by exact arithmetic."""
    word, salt = seed.on(device)
    key = (word * 0x5851F42D + salt * 0x14057B7E).bitwise_and_(0xFFFF_FFFF).to(torch.int32)
    x = torch.arange(n, dtype=torch.int32, device=device).mul_(GOLDEN).add_(key)
    for shift, factor in ROUNDS:
        _fold(x, shift).mul_(factor).bitwise_xor_(key)
    return _fold(x, 16)


def _fold(x: Tensor, shift: int) -> Tensor:
    """x becomes x xor its upper bits."""
    return x.bitwise_xor_((x >> shift).bitwise_and_((1 << 32 - shift) - 1))


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers in [-1, 1), bit for bit the same on every machine: torch's normal ones are computed by instructions that
    differ from processor to processor, its uniform ones are whole numbers."""
    return torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu").mul_(2).sub_(1)
