"""A user's codec is tried before the first step: its mistakes would make gradients wrong in silence."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.plans import uniform
from tests.support.harness import slots_of
from tests.support.outside import Truncated

SLOTS = slots_of({"w": torch.empty(13, 5)})


@dataclass(frozen=True)
class LeavesAll(Truncated):
    def compress(self, x: Tensor, payload: Tensor, context: gw.GroupContext) -> None:
        payload.view(torch.bfloat16).copy_(x)
        x = x - payload.view(torch.bfloat16)


@dataclass(frozen=True)
class WritesNothing(Truncated):
    def decompress(self, rows: Tensor, out: Tensor, context: gw.GroupContext) -> None:
        out = rows.view(torch.bfloat16).float().sum(0)  # noqa: F841


@dataclass(frozen=True)
class Averages(Truncated):
    def decompress(self, rows: Tensor, out: Tensor, context: gw.GroupContext) -> None:
        torch.mean(rows.view(torch.bfloat16).float(), dim=0, out=out)


@dataclass(frozen=True)
class ByItsRank(Truncated):
    def decompress(self, rows: Tensor, out: Tensor, context: gw.GroupContext) -> None:
        super().decompress(rows, out, context)
        out.mul_(1 + context.rank)


@dataclass(frozen=True)
class HalfABytes(Truncated):
    def payload_bytes(self, n: int) -> int:
        return 2.0 * n  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class WantsMore(Truncated):
    """Works on larger groups than the one that it is tried on."""

    def compress(self, x: Tensor, payload: Tensor, context: gw.GroupContext) -> None:
        x.topk(1_000_000)
        super().compress(x, payload, context)


@dataclass(frozen=True)
class ByLayer(Truncated):
    """Knows the layers of its own model alone."""

    def group_bytes(self, layout: gw.Layout, step: int) -> int:
        return sum({"w": 2}[slot.name] * slot.numel for slot in layout.slots)


@dataclass(frozen=True)
class Unsorted(gw.Sparse):
    """Its selection is not in order; it leaves `value_bits` out, which are 32 then."""

    ratio: float = 0.1

    def select(self, x: Tensor, k: int, context: gw.GroupContext) -> Tensor:
        return x.abs().topk(k).indices


class Sorted(Unsorted):
    def select(self, x: Tensor, k: int, context: gw.GroupContext) -> Tensor:
        return super().select(x, k, context).sort().values


class Narrow(Sorted):
    def select(self, x: Tensor, k: int, context: gw.GroupContext) -> Tensor:
        return super().select(x, k, context).int()


class TooMany(Sorted):
    def select(self, x: Tensor, k: int, context: gw.GroupContext) -> Tensor:
        return super().select(x, k + 1, context)


@pytest.mark.parametrize("memory", [gw.Residual(), gw.NoMemory()], ids=str)
@pytest.mark.parametrize("codec", [Unsorted(), Narrow(), TooMany()], ids=lambda codec: type(codec).__name__)
def test_a_selection_that_no_payload_can_hold_is_named(codec: gw.Sparse, memory: gw.Memory):
    why = rf"^{type(codec).__name__}\.select\(x, k, context\) is to return ascending indices, int64, k at most"
    with pytest.raises(ValueError, match=why):
        uniform(SLOTS, codec, memory).check(SLOTS)


@pytest.mark.parametrize(
    ("codec", "why"),
    [
        (LeavesAll(), r"^LeavesAll loses or adds gradients: .*x\.sub_\(sent\)"),
        (WritesNothing(), "^WritesNothing does not write all of out"),
        (HalfABytes(), r"^HalfABytes\.payload_bytes\(\) returns 3072\.0, no whole number of bytes"),
    ],
    ids=str,
)
def test_a_codec_that_loses_gradients_is_refused(codec: gw.Compressor, why: str):
    with pytest.raises(ValueError, match=why) as refusal:
        uniform(SLOTS, codec).check(SLOTS)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("memory", [gw.Residual(), gw.NoMemory()], ids=str)
@pytest.mark.parametrize(
    ("codec", "why"),
    [
        (Averages(), r"^Averages decodes no sum: .*torch\.sum\(numbers, dim=0, out=out\), or set divisible"),
        (ByItsRank(), r"^ByItsRank decodes the same payloads to other numbers on rank 1"),
    ],
    ids=str,
)
def test_a_codec_that_decodes_no_sum_over_the_ranks_is_refused(codec: gw.Codec, why: str, memory: gw.Memory):
    with pytest.raises(ValueError, match=why):
        uniform(SLOTS, codec, memory).check(SLOTS)


@dataclass(frozen=True)
class Largest(Truncated):
    """Of the ranks' numbers the largest: no sum, and so not sent in parts of a group."""

    divisible: ClassVar[bool] = False

    def decompress(self, rows: Tensor, out: Tensor, context: gw.GroupContext) -> None:
        torch.amax(rows.view(torch.bfloat16).float(), dim=0, out=out)


def test_a_codec_that_takes_whole_groups_may_decode_something_else_than_a_sum():
    uniform(SLOTS, Largest(), gw.NoMemory()).check(SLOTS)


@dataclass(frozen=True)
class Halves(Truncated):
    """Each rank sends its own part of the group: a payload means what its row says."""

    divisible: ClassVar[bool] = False

    def compress(self, x: Tensor, payload: Tensor, context: gw.GroupContext) -> None:
        own = x.tensor_split(context.world)[context.rank]
        payload[: 2 * len(own)].view(torch.bfloat16).copy_(own)
        own.sub_(payload[: 2 * len(own)].view(torch.bfloat16))

    def decompress(self, rows: Tensor, out: Tensor, context: gw.GroupContext) -> None:
        for row, part in zip(rows, out.tensor_split(context.world), strict=True):
            part.copy_(row[: 2 * len(part)].view(torch.bfloat16))


@pytest.mark.parametrize("codec", [Truncated(), WantsMore(), ByLayer(), Sorted(), Halves()], ids=str)
def test_others_are_not_and_random_numbers_stay_as_they_are(codec: gw.Compressor):
    before = torch.get_rng_state()
    uniform(SLOTS, codec).check(SLOTS)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_memory_nothing_needs_to_be_left():
    uniform(SLOTS, LeavesAll(), gw.NoMemory()).check(SLOTS)


@dataclass(frozen=True)
class Counting(Truncated):
    packed: ClassVar[list[int]] = []

    def compress(self, x: Tensor, payload: Tensor, context: gw.GroupContext) -> None:
        self.packed.append(x.numel())
        super().compress(x, payload, context)


def test_a_codec_is_tried_once():
    """A controller's plans are checked on the runtime's thread, where drawing numbers anew takes others' back."""
    for _ in range(3):
        uniform(SLOTS, Counting()).check(SLOTS)
    assert len(Counting.packed) == 2  # one payload of each of two ranks
