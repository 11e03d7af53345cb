"""Memories: what becomes of the part of a gradient that was not sent.

The buffer x (n,) that a compressor reads belongs to the memory: gradients are added into it, divided by the
number of ranks, and what was sent is taken out of it. So x is this rank's share of what the mean still lacks,
and the sum over the ranks stays right when their number changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors import Compressor, SignSGD
from gradwire.layout import spans


class Memory(ABC):
    """A frozen dataclass. `flat_state` names its tensors of gradient size; "x" is the one that is compressed."""

    flat_state: ClassVar[tuple[str, ...]] = ("x",)
    remembers: ClassVar[bool] = True

    def check(self, compressor: Compressor) -> None:
        """Raises ValueError, naming the pairing that works, where this one makes no sense."""
        if isinstance(compressor, SignSGD):
            raise ValueError(
                f"{type(compressor).__name__} votes, so nothing can be taken out of a memory; "
                "use memory=NoMemory(), or EFSignSGD() with Residual()"
            )
        if not compressor.biased and compressor.sparse:
            raise ValueError(
                f"{compressor} multiplies what it sends to be unbiased; use memory=NoMemory(), or rescale=False"
            )

    @abstractmethod
    def add(self, state: Mapping[str, Tensor], grad: Tensor, share: float) -> None:
        """Adds share·grad to one slot's tensors, all of grad's shape."""

    @abstractmethod
    def undo(self, state: Mapping[str, Tensor], grad: Tensor, share: float, skip: Tensor) -> None:
        """Takes the last `add` back where skip () is 1, and does nothing where it is 0."""

    def sent(self, state: Mapping[str, Tensor], skip: Tensor) -> None:  # noqa: B027
        """Called with the whole group's tensors (n,) once what was sent is out of x; skip (1,) is True, on CUDA
        alone, where nothing was."""


@dataclass(frozen=True)
class NoMemory(Memory):
    """What is not sent is dropped. For compressors that are unbiased, or vote."""

    remembers: ClassVar[bool] = False

    def check(self, compressor: Compressor) -> None:
        """Everything may be forgotten."""

    def add(self, state: Mapping[str, Tensor], grad: Tensor, share: float) -> None:
        torch.mul(grad, share, out=state["x"])

    def undo(self, state: Mapping[str, Tensor], grad: Tensor, share: float, skip: Tensor) -> None:
        """Nothing was kept."""


@dataclass(frozen=True)
class Residual(Memory):
    """Error feedback: what was not sent is added to the next gradient (Seide et al., Interspeech 2014;
    Karimireddy et al., ICML 2019, https://arxiv.org/abs/1901.09847). `decay` multiplies it before that."""

    decay: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay={self.decay} must lie in (0, 1]; 1 forgets nothing")

    def add(self, state: Mapping[str, Tensor], grad: Tensor, share: float) -> None:
        if self.decay != 1:
            state["x"].mul_(self.decay)
        state["x"].add_(grad, alpha=share)

    def undo(self, state: Mapping[str, Tensor], grad: Tensor, share: float, skip: Tensor) -> None:
        x = state["x"]
        x.addcmul_(grad, skip * share, value=-1)
        if self.decay != 1:
            x.mul_(1 + skip * (1 / self.decay - 1))


@dataclass(frozen=True)
class DGCMemory(Memory):
    """Deep Gradient Compression's memory: momentum is accumulated before compressing (momentum correction), and
    momentum of coordinates that were sent is forgotten (factor masking) (Lin et al., ICLR 2018,
    https://arxiv.org/abs/1712.01887).

    Use a plain optimizer with it: its own momentum would count twice. `clip` is the largest norm of one
    parameter's gradient; each rank clips its own at clip / sqrt(ranks).
    """

    momentum: float = 0.9
    masking: bool = True
    clip: float | None = None
    flat_state: ClassVar[tuple[str, ...]] = ("x", "velocity")

    def __post_init__(self) -> None:
        if not 0 < self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} must lie in (0, 1); without momentum use Residual()")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip={self.clip} is no norm; use a positive number or None")

    def check(self, compressor: Compressor) -> None:
        super().check(compressor)
        if not compressor.sparse:
            raise ValueError(
                f"DGCMemory masks the coordinates that were sent, and {type(compressor).__name__} sends all; "
                "pair it with DGC(), TopK() or RandomK(), or use Residual()"
            )

    def add(self, state: Mapping[str, Tensor], grad: Tensor, share: float) -> None:
        velocity = state["velocity"].mul_(self.momentum)
        velocity.addcmul_(grad, self._factor(grad, share))
        state["x"].add_(velocity)

    def undo(self, state: Mapping[str, Tensor], grad: Tensor, share: float, skip: Tensor) -> None:
        x, velocity = state["x"], state["velocity"]
        x.addcmul_(velocity, skip, value=-1)
        velocity.addcmul_(grad, self._factor(grad, share) * skip, value=-1)
        velocity.mul_(1 + skip * (1 / self.momentum - 1))

    def sent(self, state: Mapping[str, Tensor], skip: Tensor) -> None:
        if not self.masking:
            return
        x, velocity = state["x"], state["velocity"]
        for start, end in spans(len(x)):
            velocity[start:end].mul_(x[start:end].ne(0).logical_or_(skip))

    def _factor(self, grad: Tensor, share: float) -> Tensor:
        """What grad is multiplied by, (): share, and less where the gradient's norm is too large."""
        factor = torch.full((), share, device=grad.device)
        if self.clip is None:
            return factor
        limit = self.clip * sqrt(share)  # share is 1 / ranks
        norm = torch.linalg.vector_norm(grad, dtype=torch.promote_types(grad.dtype, torch.float32))
        return factor.mul_(limit).div_(norm.clamp_min_(limit))
