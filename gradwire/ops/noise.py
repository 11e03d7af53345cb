"""Seeded noise and draws. A CPU uses numpy's and torch's generators; a GPU hashes each element's number, so that it
launches the same work at every step: see `gradwire.recordable`."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.host import on_host
from gradwire.ops.workspace import Workspace

SALT_MASK = 0x7FFF_FFFF
"""The largest salt."""
GOLDEN = -1640531527
"""2^32 over the golden ratio, as int32: spreads an element's number over all bits."""
ROUNDS = (16, -2048144789), (13, -1028477387)
"""Shifts and factors of MurmurHash3's last step."""


class StepCounter:
    """The number of the present step, on the device: `tensor` (1,) int64."""

    def __init__(self, step: int, device: torch.device) -> None:
        self.tensor, self._step = torch.full((1,), step, dtype=torch.int64, device=device), step

    def count(self, step: int) -> None:
        """Writes the number of a step, once; a CPU needs none."""
        if step != self._step and not on_host(self.tensor.device):
            self.tensor.fill_(step)
            self._step = step


def step_word(step: int, scratch: Workspace) -> Tensor:
    """The word (1,) of the job that has this scratch; made at this step if there was none."""
    return scratch.once(StepCounter, lambda: StepCounter(step, scratch.device)).tensor


def count_step(step: int, scratch: Workspace) -> None:
    """Sets the word of the job that has this scratch to this step, if any of its groups uses it."""
    if word := scratch.kept(StepCounter):
        word.count(step)


@dataclass(frozen=True, eq=False)
class Seed:
    """The seed of one call at one step."""

    number: int
    """For a CPU."""
    salt: int = 0
    """For a GPU, the same at every step; it is hashed with the word."""
    word: Tensor | None = None
    """(1,) int64 on a GPU, which counts steps; without it the number is the salt."""

    def on(self, device: torch.device) -> tuple[Tensor, int]:
        """Word and salt, for a GPU."""
        if self.word is not None:
            return self.word, self.salt
        return torch.zeros(1, dtype=torch.int64, device=device), self.number & SALT_MASK


class Noise:
    """Uniform noise in [-1/2, 1/2], whose mean is 0; on a CPU a sequence that goes on from call to call."""

    def __init__(self, seed: Seed, device: torch.device) -> None:
        self._seed = seed
        if on_host(device):
            self._bits = np.random.SFC64(seed.number)

    def add_to(self, x: Tensor) -> None:
        """Adds noise to x."""
        # a GPU: 32 bits per element, odd numbers, of which as many are above zero as below
        if not on_host(x.device):
            x.add_(hashed(x.numel(), self._seed, x.device).bitwise_or_(1).view_as(x), alpha=2.0**-32)
            return
        # a CPU: 16 bits per element
        self.add_sixteen_bits_to(x)

    def add_sixteen_bits_to(self, x: Tensor) -> None:
        """Adds noise of 16 bits per element to x, which takes none of its whole numbers below 2^7 to another one."""
        x.add_(self.sixteen_bits(x), alpha=2.0**-16).add_(2.0**-17)

    def sixteen_bits(self, x: Tensor) -> Tensor:
        """A random whole number in [-2^15, 2^15) for each element of x."""
        if not on_host(x.device):
            return hashed(x.numel(), self._seed, x.device).bitwise_right_shift_(16).view_as(x)
        # four of each word of 64 bits
        words = self._bits.random_raw(-(-x.numel() // 4))
        return torch.from_numpy(words.view(np.int16)[: x.numel()]).view_as(x)


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
    """n random int32, by exact integer arithmetic: the same on all GPUs."""
    word, salt = seed.on(device)
    # one key for the call, of step and salt
    key = (word * 0x5851F42D + salt * 0x14057B7E).bitwise_and_(0xFFFF_FFFF).to(torch.int32)
    # number the elements, and mix
    x = torch.arange(n, dtype=torch.int32, device=device).mul_(GOLDEN).add_(key)
    for shift, factor in ROUNDS:
        _fold(x, shift).mul_(factor).bitwise_xor_(key)
    return _fold(x, 16)


def _fold(x: Tensor, shift: int) -> Tensor:
    """x ^= x >> shift, as if x were unsigned."""
    return x.bitwise_xor_((x >> shift).bitwise_and_((1 << 32 - shift) - 1))


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform numbers in [-1, 1), float32, bit for bit the same on every machine: torch computes normal ones by
    instructions that differ from processor to processor, and uniform ones from integers."""
    return torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu").mul_(2).sub_(1)
