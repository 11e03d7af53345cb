"""The interface of memories: error feedback, which keeps what was not sent of a gradient.

A memory computes the vector x (n,) that is compressed: its residual plus the gradient, weighted by 1 / ranks. What the
compressor leaves in x is the next residual. So residuals add up over the ranks to what the mean still lacks, and stay
right when the number of ranks changes.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch

from gradwire.compressors import Compressor, DoubleBuffer
from gradwire.compressors.companion import Companion
from gradwire.ops.lazy_sum import LazySum
from gradwire.slots import Layout

RESIDUAL = "residual"
"""The name of the tensor that is compressed: this rank's part of what the mean still lacks."""


class Memory(Companion):
    """An error feedback algorithm: a frozen dataclass of its hyperparameters."""

    flat_state: ClassVar[tuple[str, ...]] = (RESIDUAL,)
    """The names of its tensors of gradient size, "residual" among them; none where nothing is kept."""
    wants_sparse: ClassVar[bool] = False
    """Works only with compressors that send coordinates exactly or not at all."""
    masks_sent: ClassVar[bool] = False
    """Keeps nothing of coordinates that were sent."""

    @property
    def residual_dtype(self) -> torch.dtype:
        """The type in which the residual is kept from step to step: float32, or bfloat16 or int8, to which what remains
        is rounded stochastically."""
        return torch.float32

    @property
    def error_feedback(self) -> bool:
        """Whether it keeps what was not sent."""
        return bool(self.flat_state)

    @property
    def keeps_momentum(self) -> bool:
        """Whether it keeps more than the residual: what it sends is then momentum, or the like, in place of gradients,
        for an optimizer that has none. Override it with False where what it keeps besides is no momentum."""
        return not {*self.flat_state} <= {RESIDUAL}

    def for_dense(self) -> "Memory | None":
        """The memory of what travels dense beside the rest, such as biases, so that momentum moves all parameters; None
        where these need none."""
        return self if self.keeps_momentum else None

    def check(self, compressor: Compressor) -> None:
        """Raises ValueError, naming a pairing that works, for a compressor whose error this memory cannot keep."""
        # a vote estimates no gradient
        if compressor.sign_vote:
            raise ValueError(
                f"{type(compressor).__name__} votes, so nothing can be taken out of a memory; "
                "use memory=NoMemory(), or EFSignSGD() with Residual()"
            )
        # a rescaled value is larger than what is left to subtract it from
        if not compressor.biased and compressor.sparse:
            raise ValueError(
                f"{compressor} multiplies what it sends to be unbiased; use memory=NoMemory(), or rescale=False"
            )
        # means would become more than ten times as long as gradients
        if not compressor.biased and compressor.coarse:
            raise ValueError(
                f"{compressor} has an error longer than what it sends, which a memory would build up; "
                "use memory=NoMemory(), or Quantized(3)"
            )

    @abstractmethod
    def add(self, flat: Mapping[str, DoubleBuffer], gradient: LazySum, layout: Layout, ranks: int) -> LazySum:
        """The vector to compress: the sum of the read buffers of `flat` and of the `gradient` (n,), which is weighted
        for a mean over `ranks` ranks, into the residual's write buffer. Writes the write buffers of all other names.
        All are float32 (n,), but for the residual's read buffer: it is bfloat16 where `residual_dtype` is; of int8 it
        is the decoded residual, valid until the sum is made."""

    def sent(self, flat: Mapping[str, DoubleBuffer]) -> None:
        """Called once the next residual is what was not sent."""
