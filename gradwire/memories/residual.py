"""Error feedback."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gradwire.compressors import DoubleBuffer
from gradwire.memories.memory import RESIDUAL, Memory
from gradwire.ops.lazy_sum import LazySum
from gradwire.slots import Layout
from gradwire.torch_private.foreach import norms_of


@dataclass(frozen=True)
class Residual(Memory, recordable=True):
    """Error feedback: what was not sent is added to the next gradient (Seide et al., Interspeech 2014;
    Karimireddy et al., ICML 2019, https://arxiv.org/abs/1901.09847). It holds gradients, as PowerSGD's does; EF-SGD's
    has them times the learning rate, which then is that of the step in which they were made."""

    decay: float = 1.0
    """Multiplies the residual before that, in (0, 1]."""
    limit: float | None = None
    """The most that a step's residual is longer than the one before it, by their norms, so that one batch of huge
    gradients does not come back for many steps; it is scaled down to that, and the rest is lost. A group's first
    residual has no limit, nor has one that follows zeros."""
    dtype: torch.dtype = torch.float32
    """In which the residual is kept. `torch.bfloat16` takes half of the memory, `torch.int8` a quarter, with a power of
    two as the scale of each 128 elements: gradient and residual are added up in float32 all the same, and what remains
    is rounded stochastically, so that no part of it is lost on average."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay={self.decay} must lie in (0, 1]; 1 keeps all of it")
        if self.limit is not None and self.limit <= 1:
            raise ValueError(f"limit={self.limit} would let no residual grow; use e.g. limit=4, or None")
        if self.dtype not in (torch.float32, torch.bfloat16, torch.int8):
            raise ValueError(f"dtype={self.dtype} holds no residual; use torch.int8, torch.bfloat16 or torch.float32")
        if self.limit is not None and self.dtype == torch.int8:
            raise ValueError("limit= needs the residual before, which int8 no longer has; use dtype=torch.bfloat16")

    @property
    def residual_dtype(self) -> torch.dtype:
        return self.dtype

    def add(self, flat: Mapping[str, DoubleBuffer], gradient: LazySum, layout: Layout, ranks: int) -> LazySum:
        # decay·residual + gradient
        return gradient.onto(*flat[RESIDUAL], self.decay)

    def sent(self, flat: Mapping[str, DoubleBuffer]) -> None:
        if self.limit is not None:
            # limit·|old| / |new|, where it is below 1
            residual = flat[RESIDUAL]
            old, new = norms_of([residual.read, residual.write]).unbind()
            scale = torch.where(old > 0, self.limit * old / new, 1.0)
            residual.write.mul_(scale.nan_to_num(1.0).clamp(max=1.0))
