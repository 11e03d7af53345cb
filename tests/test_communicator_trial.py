"""A user's communicator is tried before the first step: its mistakes would part replicas, or hang, in silence."""

from dataclasses import dataclass

import pytest
import torch

import gradwire as gw
from gradwire.plans import uniform
from tests.support.harness import slots_of
from tests.support.outside import InTurns, SharedScale, Truncated

SLOTS = slots_of({"w": torch.empty(13, 5)})


@dataclass(frozen=True)
class Own(InTurns):
    """Sends rows in turns, as the one that works; `rows`, `source` and `after` are where others differ."""

    def reduce(
        self, compressor: gw.Compressor, vector: gw.LazySum, mean: gw.Mean, context: gw.GroupContext
    ) -> gw.Reduction:
        assert isinstance(compressor, gw.Codec)
        payloads = self.payloads(compressor.group_bytes(context.layout, context.step), context)
        compressor.encode(vector, payloads.row(context.rank).body[None], context.whole)
        for rank in range(context.world):
            yield gw.Broadcast(payloads.row(rank), self.source(rank, context))
        compressor.decode(payloads.body[None], mean, context.whole)
        self.after(vector, mean, context)

    def payloads(self, size: int, context: gw.GroupContext) -> gw.Message:
        return context.message("payloads", size, context.world)

    def source(self, rank: int, context: gw.GroupContext) -> int:
        return rank

    def after(self, vector: gw.LazySum, mean: gw.Mean, context: gw.GroupContext) -> None: ...


class Divides(Own):
    def after(self, vector: gw.LazySum, mean: gw.Mean, context: gw.GroupContext) -> None:
        mean.vector().div_(context.world)


class KeepsAll(Own):
    def after(self, vector: gw.LazySum, mean: gw.Mean, context: gw.GroupContext) -> None:
        vector.total().add_(1)


class ByItsRank(Own):
    def after(self, vector: gw.LazySum, mean: gw.Mean, context: gw.GroupContext) -> None:
        mean.vector()[0] += context.rank


class FromAll(Own):
    def source(self, rank: int, context: gw.GroupContext) -> int:
        return context.rank


class FewerRounds(Own):
    def rounds(self, compressor: gw.Compressor, world: int) -> int:
        return world - 1


class MoreRounds(Own):
    def rounds(self, compressor: gw.Compressor, world: int) -> int:
        return world + 1


class WithoutFlags(Own):
    def payloads(self, size: int, context: gw.GroupContext) -> gw.Message:
        return gw.Message.plain(torch.zeros(context.world, size, dtype=torch.uint8))


class InScratch(Own):
    def payloads(self, size: int, context: gw.GroupContext) -> gw.Message:
        framed = -(-(size + 4) // 16) * 16
        return gw.Message.of_bytes(context.scratch.tensor("rows", (context.world, framed), torch.uint8), size)


class ToANeighbour(Own):
    """Which sends to itself."""

    def rounds(self, compressor: gw.Compressor, world: int) -> int:
        return 1

    def reduce(
        self, compressor: gw.Compressor, vector: gw.LazySum, mean: gw.Mean, context: gw.GroupContext
    ) -> gw.Reduction:
        message = context.numbers("numbers", len(vector.total()))
        yield gw.SendReceive(message, message, target=(context.rank + 1) % context.world, source=context.rank)


RESIDUAL, NONE = gw.Residual(), gw.NoMemory()


@pytest.mark.parametrize(
    ("communicator", "compressor", "memory", "why"),
    [
        (Divides(), gw.TopK(0.1), RESIDUAL, "loses or adds gradients: .*, without dividing by the ranks"),
        (Divides(), gw.BF16(), NONE, "loses or adds gradients"),
        (KeepsAll(), Truncated(), RESIDUAL, "loses or adds gradients"),
        (ByItsRank(), gw.TopK(0.1), NONE, "makes other sums on some ranks than on others"),
        (FromAll(), Truncated(), RESIDUAL, "yields collective 1 that does not fit on all ranks: "),
        (ToANeighbour(), Truncated(), RESIDUAL, "yields collective 1 that does not fit on all ranks: "),
        (FewerRounds(), Truncated(), RESIDUAL, r"yields other collectives than the 2 that rounds\(\) says"),
        (MoreRounds(), Truncated(), RESIDUAL, r"yields other collectives than the 4 that rounds\(\) says"),
        (WithoutFlags(), Truncated(), RESIDUAL, "does not tell all ranks that a gradient was not finite"),
        (InScratch(), Truncated(), RESIDUAL, "makes other sums|loses or adds|does not tell"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_communicator_that_would_be_wrong_in_silence_is_refused(
    communicator: gw.Communicator, compressor: gw.Compressor, memory: gw.Memory, why: str
):
    with pytest.raises(ValueError, match=rf"^{type(communicator).__name__}\.reduce\(\) ({why})"):
        uniform(SLOTS, compressor, memory, communicator).check(SLOTS)


class Gathers(gw.AllGather):
    """Of a kind of Gradwire's."""


class Sums(gw.AllReduce):
    """Of a kind of Gradwire's."""


class Splits(gw.SplitGather):
    """Of a kind of Gradwire's."""


class Searches(gw.OkTopk):
    """Of a kind of Gradwire's."""


@pytest.mark.parametrize(
    ("communicator", "compressor", "memory"),
    [
        (InTurns(), Truncated(), RESIDUAL),
        (InTurns(), gw.TopK(0.01), gw.DGCMemory()),
        (InTurns(), gw.QSGD(), NONE),
        (InTurns(), gw.BF16(), NONE),
        (InTurns(), gw.EFSignSGD(), RESIDUAL),
        (Gathers(), gw.TopK(0.01), RESIDUAL),
        (Gathers(), gw.PowerSGD(4, bits=4), RESIDUAL),
        (Sums(), gw.PowerSGD(4), RESIDUAL),
        (Sums(), SharedScale(), RESIDUAL),
        (Sums(), gw.FP16(), NONE),
        (Splits(), gw.TopK(0.01), RESIDUAL),
        (Searches(), gw.TopK(0.01), RESIDUAL),
    ],
    ids=str,
)
def test_others_are_not(communicator: gw.Communicator, compressor: gw.Compressor, memory: gw.Memory):
    uniform(SLOTS, compressor, memory, communicator).check(SLOTS)
