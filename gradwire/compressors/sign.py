"""Sign compressors: one bit per element."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.compressors.blockwise import Blockwise
from gradwire.compressors.compressor import SimpleCodec
from gradwire.compressors.context import GroupContext
from gradwire.ops.backend import backend_for
from gradwire.ops.formats import Code, one_bit, sign
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.tiles import tile_bounds


@dataclass(frozen=True)
class EFSignSGD(Blockwise, recordable=True):
    """The sign of each element times the mean magnitude of its block (Karimireddy et al., ICML 2019,
    https://arxiv.org/abs/1901.09847). Zero counts as positive. Wants `memory.Residual`."""

    block: int = 256
    """Elements that share a scale."""
    for_shards = "with memory"

    @property
    def code(self) -> Code:
        return sign(self.block)


@dataclass(frozen=True)
class OneBit(Blockwise, recordable=True):
    """Negative elements become the mean of their block's negatives, the others the mean of its others (Seide
    et al., Interspeech 2014, https://www.isca-archive.org/interspeech_2014/seide14_interspeech.html). Wants
    `memory.Residual`."""

    block: int = 4096
    """Elements that share two means."""

    @property
    def code(self) -> Code:
        return one_bit(self.block)


@dataclass(frozen=True)
class SignSGD(SimpleCodec, recordable=True):
    """The sign of the majority of the ranks' signs: -1, 0 at a tie, or 1, whatever the gradients' size
    (Bernstein et al., ICML 2018, https://arxiv.org/abs/1802.04434). Choose the learning rate as for Adam.

    Zero votes plus and minus in turn, by rank and step, so that a parameter without gradients does not drift. Works
    without a memory: votes estimate no gradient, so there is no error to keep.
    """

    sign_vote = True

    def phase(self, step: int) -> int:
        return step % 2

    def payload_bytes(self, n: int) -> int:
        return -(-n // 8)

    def compress(self, x: Tensor, payload: Tensor, context: GroupContext) -> None:
        # alternate by rank and step, so that zeros cancel
        zero_is_plus = (context.rank + context.step) % 2 == 0
        # pack signs
        for start, end in tile_bounds(x):
            backend_for(x).pack_signs(x[start:end], payload[start // 8 : -(-end // 8)], zero_is_plus)

    def decompress(self, rows: Tensor, out: Tensor, context: GroupContext) -> None:
        for start, end in tile_bounds(out):
            votes = out[start:end]
            # sum the votes, and take the majority's sign
            backend_for(out).add_signs(rows[:, start // 8 : -(-end // 8)], votes, context.scratch)
            votes.sign_()


@dataclass(frozen=True)
class Signum(SignSGD, recordable=True):
    """SignSGD with momentum: each rank votes with the sign of its gradients' running mean (Bernstein et al.,
    ICLR 2019, https://arxiv.org/abs/1810.05291). Use an optimizer without momentum: its own would count twice."""

    momentum: float = 0.9
    """The weight of the mean so far: 1 - momentum is that of a new gradient."""
    flat_state: ClassVar[tuple[str, ...]] = ("momentum",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} must lie in [0, 1), e.g. momentum=0.9")

    def compress(self, x: Tensor, payload: Tensor, context: GroupContext) -> None:
        # update the running mean
        before, momentum = context.flat["momentum"]
        mean = LazySum(momentum, before, x, self.momentum, 1 - self.momentum)
        # vote with its signs
        super().compress(mean.total(), payload, context)
