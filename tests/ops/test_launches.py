"""Whole exchanges with the kernels for GPUs, in Triton's interpreter: means, and how many launches they take."""

import pytest
import torch

import gradwire as gw
from gradwire.compressors import Estimated, LowRank
from tests.support.cases import CASES, Case, rows
from tests.support.harness import SMALL, draw, slots_of
from tests.support.lane import WORLD, Lane
from tests.support.pretend_cuda import GPU, pretended_cuda

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter is numpy, which warns of infinities
from gradwire.ops.triton.factors import MOST  # noqa: E402
from tests.support.triton_lane import with_triton  # noqa: E402

SLOTS = slots_of(SMALL | {"wide.weight": torch.empty(131, 257), "wide.bias": torch.empty(131)})
NARROW = slots_of(SMALL | {"wide.weight": torch.empty(37, 257), "wide.bias": torch.empty(37)})
"""Of more than two tiles."""
RANKS = 2
MATRICES = slots_of(
    {name: SMALL[name] for name in ("stem.bias", "scale", "turned.weight")}
    | {f"{i}.weight": torch.empty(31, 17) for i in range(2)}
)
"""Small ones, and some of equal shape: the interpreter takes long for products, and for all else."""

CODES_IN_BLOCKS = gw.Quantized | gw.EFSignSGD | gw.OneBit | gw.QSGD | gw.TernGrad
ROWS = [
    case for case in CASES
    if isinstance(case.compressor, gw.TopK | gw.FP16 | CODES_IN_BLOCKS | LowRank)
    and case.communicator in (gw.AllReduce(), gw.AllGather(), gw.ScatterReduce())
    and getattr(case.compressor, "value_bits", 32) == 32
    and getattr(case.compressor, "ratio", 0) < 1  # what keeps everything is slow in the interpreter
    and getattr(case.compressor, "rank", 1) >= 1  # codes of more rows differ by a level, and so do bases made of them
]  # fmt: skip


def launches(case: Case) -> int:
    """A step's at most, of one rank and one group, whatever the number of ranks and of slots."""
    scatters = case.communicator == gw.ScatterReduce()
    if isinstance(case.compressor, CODES_IN_BLOCKS):
        return 13 if scatters else 8
    if isinstance(case.compressor, gw.FP16):
        return 13 if scatters else 7
    if isinstance(case.compressor, LowRank):
        return 42 if scatters else 25 if case.compressor.bits == 32 else 29
    return 26 if scatters else 12 if isinstance(case.memory, gw.DGCMemory) else 10


def first_step(case: Case) -> int:
    """Which compresses; in it buffers are made."""
    return case.compressor.start_step if isinstance(case.compressor, LowRank) else 0


@rows(ROWS)
def test_whole_exchanges_are_the_references_in_fewer_launches(case: Case):
    with pretended_cuda() as gpu, torch.no_grad():
        slots = MATRICES if isinstance(case.compressor, LowRank) else NARROW
        ours, theirs = (Lane(case, slots, GPU, gpu, RANKS) for _ in range(2))
        first = first_step(case)
        for number in range(first + 2):
            grads = draw(slots, RANKS, number)
            expected = theirs.step(grads)
            gpu.forget()
            with with_triton(gpu):
                means = ours.step(grads)
            assert not gpu.syncs
            assert number <= first or gpu.kernels.total() / RANKS <= launches(case), gpu.lines.most_common(24)
            for own in means[1:]:
                assert all(torch.equal(a, b) for a, b in zip(own, means[0], strict=True))
            if not isinstance(case.compressor, gw.QSGD | gw.TernGrad):  # whose noise is another
                for mean, other in zip(means[0], expected[0], strict=True):
                    torch.testing.assert_close(mean, other, rtol=0, atol=2e-5)


LAUNCHES = {
    gw.AllReduce: 7, gw.AllGather: 13, gw.ScatterReduce: 35, gw.LeaderIndices: 16, gw.GlobalTopK: 36, gw.Exclusive: 21,
    gw.SplitGather: 49, gw.OkTopk: 69,
}  # fmt: skip
"""A step's at most, of one rank of four and one group of nine slots."""
MORE = {
    gw.DGC: 16, gw.GaussianK: 20, gw.RedSync: 20, gw.SIDCo: 122, gw.HardThreshold: 12, gw.ReusedThreshold: 17,
    gw.AllDimensionTopK: 40, gw.Interleaved: 56, gw.RandomK: 57, gw.MultiLevel: 70, gw.ChunkTopK: 33, gw.SignSGD: 3,
    gw.Signum: 3, gw.PowerSGD: 18, gw.ACPSGD: 14,
}  # fmt: skip
"""And so many more; `ScatterReduce` selects in the long parts, in the last one and in a sum."""


@rows(CASES)
def test_no_row_launches_more_than_it_may(case: Case):
    selects = isinstance(case.compressor, gw.HardThreshold | Estimated | gw.RandomK | gw.ChunkTopK)
    times = 3 if selects and case.communicator == gw.ScatterReduce() else 1
    most = LAUNCHES[type(case.communicator)] + times * MORE.get(type(case.compressor), 0)
    most += 20 if case.communicator == gw.AllGather(over_senders=True) else 22 if is_thick(case) else 0
    with pretended_cuda() as gpu, torch.no_grad(), with_triton(gpu, computes=False):
        lane = Lane(case, SLOTS, GPU, gpu)
        first = first_step(case)
        for number in range(first + 3):
            gpu.forget()
            lane.step(draw(SLOTS, WORLD, number))
            assert not gpu.syncs
            assert not gpu.pageable or number == 0
            assert number <= first or gpu.kernels.total() / WORLD <= most, gpu.lines.most_common(24)


def is_thick(case: Case) -> bool:
    """Whether some factor has more rows than kernels take, so that torch computes with all."""
    compressor = case.compressor
    return isinstance(compressor, LowRank) and any(compressor.factor_rank(*slot.matrix) > MOST for slot in SLOTS)
