"""Sign compressors: one bit per element."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors.base import Codec, State
from gradwire.compressors.bits import pack_signs, unpack_signs
from gradwire.compressors.blockwise import Blockwise
from gradwire.layout import spans


@dataclass(frozen=True)
class EFSignSGD(Blockwise):
    """The sign of each element times the mean magnitude of its block (Karimireddy et al., ICML 2019,
    https://arxiv.org/abs/1901.09847). Zero counts as positive. Wants `memory.Residual`."""

    block: int = 256
    bits: ClassVar[int] = 1

    def encode(self, x: Tensor, payload: Tensor, state: State) -> None:
        for part, scales, codes in self.tiles(x, payload):
            magnitude = torch.abs(part, out=state.scratch.tensor("magnitude", tuple(part.shape)))
            torch.mean(magnitude, 1, keepdim=True, out=scales)
            pack_signs(part.view(-1), codes)

    def dequantize(self, scales: Tensor, codes: Tensor, out: Tensor) -> None:
        unpack_signs(codes, out)
        out.mul_(scales)


@dataclass(frozen=True)
class OneBit(Blockwise):
    """Negative elements become the mean of their block's negatives, the others the mean of its others (Seide
    et al., Interspeech 2014, https://www.isca-archive.org/interspeech_2014/seide14_interspeech.html). Wants
    `memory.Residual`."""

    block: int = 4096
    bits: ClassVar[int] = 1
    scales: ClassVar[int] = 2

    def encode(self, x: Tensor, payload: Tensor, state: State) -> None:
        for part, scales, codes in self.tiles(x, payload):
            pack_signs(part.view(-1), codes)
            signs = state.scratch.tensor("signs", tuple(part.shape))
            unpack_signs(codes, signs)
            width = part.shape[1]
            positives = signs.sum(1).add_(width).div_(2)
            total, absolute = part.sum(1), torch.abs(part, out=signs).sum(1)
            scales[:, 0] = (total - absolute) / (2 * (width - positives).clamp_min_(1))
            scales[:, 1] = (total + absolute) / (2 * positives.clamp_min_(1))

    def dequantize(self, scales: Tensor, codes: Tensor, out: Tensor) -> None:
        unpack_signs(codes, out)
        negative, positive = scales[:, :1], scales[:, 1:]
        out.mul_((positive - negative) / 2).add_((positive + negative) / 2)


@dataclass(frozen=True)
class SignSGD(Codec):
    """The sign of the majority of the ranks' signs: -1, 0 at a tie, or 1, whatever the gradients' size
    (Bernstein et al., ICML 2018, https://arxiv.org/abs/1802.04434). Choose the learning rate as for Adam.

    Zero votes plus and minus in turn, by rank and step, so that what no rank has a gradient for does not drift.
    Keeps no memory: what it sends is no estimate of the gradient that anything could be taken from.
    """

    def payload_bytes(self, n: int) -> int:
        return -(-n // 8)

    def encode(self, x: Tensor, payload: Tensor, state: State) -> None:
        zero_is_plus = (state.rank + state.step) % 2 == 0
        for start, end in spans(len(x)):
            pack_signs(x[start:end], payload[start // 8 : -(-end // 8)], zero_is_plus)

    def decode(self, rows: Tensor, out: Tensor, state: State) -> None:
        for start, end in spans(len(out)):
            votes = out[start:end]
            other = state.scratch.tensor("votes", (end - start,))
            for rank, row in enumerate(rows):
                unpack_signs(row[start // 8 : -(-end // 8)], other if rank else votes)
                if rank:
                    votes.add_(other)
            votes.sign_()

    def commit(self, payload: Tensor, x: Tensor, state: State) -> None:
        raise AssertionError("SignSGD keeps no memory")


@dataclass(frozen=True)
class Signum(SignSGD):
    """SignSGD with momentum: each rank votes with the sign of its gradients' running mean (Bernstein et al.,
    ICLR 2019, https://arxiv.org/abs/1810.05291)."""

    momentum: float = 0.9
    flat_state: ClassVar[tuple[str, ...]] = ("momentum",)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} must lie in [0, 1), e.g. momentum=0.9")

    def prepare(self, x: Tensor, state: State) -> Tensor:
        return state.flat["momentum"].lerp_(x, 1 - self.momentum)

    def undo(self, x: Tensor, state: State, skip: Tensor) -> None:
        if self.momentum:  # without it nothing is kept from step to step
            state.flat["momentum"].lerp_(x, skip * (1 - 1 / self.momentum))
