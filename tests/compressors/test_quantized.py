"""Quantized: blocks begin at slots, and errors are as small as its bits say."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

import gradwire as gw
from gradwire.compressors import context_for
from gradwire.ops.formats import Blocks, nearest
from gradwire.ops.gradients import Gradients, GradientSplit
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.plans import default_communicator
from gradwire.slots import Layout, Slot
from tests.support.harness import CPU, draw, job, plan_of, round_trip, slots_of

LENGTHS = (64, 128, 65, 64, 3, 64)


def sent(codec: gw.Codec, layout: Layout, x: torch.Tensor) -> torch.Tensor:
    return round_trip(codec, x, context_for(layout, codec, CPU))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("block", [8, 64])
def test_no_element_is_off_by_more_than_half_a_level(bits: int, block: int):
    layout = Layout(tuple(slots_of({"a": torch.empty(5, 16), "b": torch.empty(3)})))
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(bits))
    out = sent(gw.Quantized(bits, block), layout, x)
    for before, after in zip(layout.parts(x), layout.parts(out), strict=True):
        for own, theirs in zip(before.split(block), after.split(block), strict=True):
            top = 2 ** (bits - 1) - 1
            assert (own - theirs).abs().max() <= own.abs().max() / top * (0.5 + 2**-7 * top)


def test_a_small_slot_shares_no_scale_with_a_large_one():
    layout = Layout(tuple(slots_of({"large": torch.empty(7, 9), "small": torch.empty(20), "next": torch.empty(64)})))
    x = torch.cat([torch.full((63,), 1e3), torch.linspace(-1e-6, 1e-6, 20), torch.full((64,), 1e3)])
    small = layout.parts(sent(gw.Quantized(8), layout, x))[1]
    assert (small - layout.parts(x)[1]).abs().max() < 1e-8


def test_slots_of_whole_blocks_are_one_segment_of_the_same_payload():
    layout = Layout(tuple(slots_of({str(i): torch.empty(n) for i, n in enumerate(LENGTHS)})))
    blocks, apart = gw.Quantized().blocks(layout), Blocks(LENGTHS, nearest(4))
    assert blocks.lengths == (257, 67, 64)
    assert (blocks.count, blocks.nbytes) == (apart.count, apart.nbytes)


def test_a_part_of_a_group_is_cut_where_its_slots_are():
    layout = Layout(tuple(slots_of({"a": torch.empty(4, 10), "b": torch.empty(7), "c": torch.empty(())})))
    shapes = [slot.shape for slot in layout.cut(35, 48).slots]
    assert shapes == [(1, 5), (7,), ()]
    assert layout.cut(0, 40).slots == layout.slots[:1]
    assert [slot.shape for slot in layout.cut(42, 45).slots] == [(3,)]


GATHER, SCATTER = gw.AllGather(), gw.ScatterReduce()


@pytest.mark.parametrize(
    ("compressor", "communicator", "least", "most"),
    [
        *((compressor, GATHER, 0.8, 1.3) for compressor in (gw.Quantized(3), gw.EFSignSGD(), gw.OneBit())),
        *((compressor, SCATTER, 0.8, 1.3) for compressor in (gw.Quantized(3), gw.EFSignSGD(), gw.OneBit())),
        (gw.Quantized(2), SCATTER, 3, 6),
    ],
    ids=str,
)
def test_errors_build_up_in_a_memory_where_the_docstring_says_so(
    compressor: gw.Compressor, communicator: gw.Communicator, least: float, most: float
):
    assert least < length_of_means(compressor, communicator) < most


@pytest.mark.parametrize("make", [gw.Quantized, partial(gw.PowerSGD, 16)])
def test_by_default_errors_build_up_with_no_number_of_ranks(make: Callable[..., gw.Compressor]):
    slots = slots_of({"w": torch.empty(64, 64)})
    assert default_communicator(make(bits=3), slots, 1000) == SCATTER
    assert default_communicator(make(bits=2), slots, 1000) == GATHER


@pytest.mark.parametrize("compressor", [gw.TernGrad(), gw.QSGD(levels=1)], ids=str)
@pytest.mark.parametrize("memory", [gw.Residual(), gw.DGCMemory()], ids=str)
def test_a_memory_refuses_a_compressor_whose_error_would_build_up(compressor: gw.Compressor, memory: gw.Memory):
    with pytest.raises(ValueError, match="which a memory would build up; use memory=NoMemory"):
        memory.check(compressor)


def length_of_means(compressor: gw.Compressor, communicator: gw.Communicator) -> float:
    """The length of two ranks' means over that of the mean gradients, after 100 steps with a residual."""
    slots = slots_of({"w": torch.empty(64, 64)})
    with job(plan_of(slots, compressor, gw.Residual(), communicator), slots, 2) as running:
        for step in range(100):
            grads = draw(slots, 2, step)
            mean = running.step(grads)[0][0]
    return float(mean.norm() / ((grads[0][0] + grads[1][0]) / 2).norm())


@pytest.mark.parametrize("wrong", [{"bits": 5}, {"bits": 16}, {"block": 12}])
def test_what_cannot_be_packed_is_refused(wrong: dict[str, int]):
    with pytest.raises(ValueError, match="use"):
        gw.Quantized(**wrong)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_mean_in_parts_is_that_of_one_vector(bits: int):
    """Slots that fill whole blocks are joined in a payload, and gradients end between them: DDP's buckets do."""
    lengths = (40960, 256, 640, 640, 102400, 40, 40960)
    layout = Layout(tuple(Slot.of(str(i), torch.empty(n)) for i, n in enumerate(lengths)))
    codec = gw.Quantized(bits)
    context = context_for(layout, codec, CPU)
    rows = torch.zeros(2, codec.group_bytes(layout, 0), dtype=torch.uint8)
    for row in rows:
        codec.encode(LazySum.of(torch.randn(layout.numel)), row[None], context.whole)
    whole, room = torch.empty(layout.numel), torch.full((layout.numel + 1000 * len(lengths),), torch.nan)
    codec.decode(rows[None], Mean.of(whole), context.whole)
    parts = [part[500:-500] for part in room.split([n + 1000 for n in lengths])]
    mean = Mean(lambda: whole, Gradients(GradientSplit.by_slot(layout), parts))
    codec.decode(rows[None], mean, context.whole)
    mean.write_means(None)
    assert torch.equal(torch.cat(parts), whole)
    assert int(room.isnan().sum()) == 1000 * len(lengths)
