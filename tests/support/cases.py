"""One row per algorithm and pairing, and what it claims. Adding a compressor adds rows here: its default pairing, and
each communicator and memory that it claims."""

from dataclasses import dataclass
from typing import Literal

import pytest
import torch

import gradwire as gw
from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.memories import Memory

NONE, RESIDUAL, SHORT = gw.NoMemory(), gw.Residual(), gw.Residual(dtype=torch.bfloat16)
EIGHT = gw.Residual(dtype=torch.int8)
GATHER, REDUCE, SCATTER = gw.AllGather(), gw.AllReduce(), gw.ScatterReduce()


@dataclass(frozen=True)
class Case:
    """A compressor with its memory and communicator, and what it claims."""

    compressor: Compressor
    memory: Memory
    communicator: Communicator
    bits: float
    """The most bits per element that are sent, beside what a group and a payload cost."""
    launches: tuple[int, int] = (0, 0)
    """The most kernels that one rank launches on a GPU in a step of one group: with Triton's kernels, and in torch
    alone. Tests that find more print how many: tests/ops/test_launches.py (2 and 4 ranks), test_cuda_lane.py."""
    rounding: float = 2e-6
    """The relative error of sums in flight."""
    exact: bool = False
    """The mean is the dense mean, but for rounding."""
    unbiased: bool = False
    """The mean's expectation is the dense mean."""
    gpu_differs: bool = False
    """A GPU does something else than a CPU: other noise, thresholds of a sample, or codes that another rounding makes
    another level, and so another selection, or basis, later."""
    interpreted: Literal["", "vectors", "matrices"] = ""
    """Whole steps run in Triton's interpreter, which is slow, on slots that are large, or on matrices. To be set where
    a kernel of `ops/triton` is used."""

    @property
    def residual_rounding(self) -> float:
        """How much rounding may change an element of the residual, relative to its `size`; 0 for float32."""
        return {torch.float32: 0.0, torch.bfloat16: 2**-7, torch.int8: 1 / 62}[self.memory.residual_dtype]

    def size(self, residual: torch.Tensor) -> torch.Tensor:
        """The size of each element of a slot's residual, or of int8, where blocks have scales, of the largest one."""
        sizes = residual.abs()
        return sizes if self.memory.residual_dtype != torch.int8 else torch.ones_like(sizes) * sizes.max()

    @property
    def conserves(self) -> bool:
        """Means and residuals add up to gradients and residuals before: nothing is lost."""
        limited = getattr(self.memory, "limit", None) is not None
        means = not self.compressor.is_update and not getattr(self.communicator, "over_senders", False)
        return self.memory.error_feedback and not limited and means

    @property
    def recordable(self) -> bool:
        """Steps of one phase launch the same work."""
        return all(part.recordable for part in (self.compressor, self.memory, self.communicator))

    def phases(self, world: int) -> int:
        """How many phases its steps have among `world` ranks."""
        return len({(self.compressor.phase(step), self.communicator.phase(step, world)) for step in range(12)})

    def __str__(self) -> str:
        parts = (self.compressor, self.memory, self.communicator)
        return "-".join(str(part).replace(" ", "") for part in parts)


HALF, BRAIN = 2**-9, 2**-6

CASES = [
    Case(gw.FP32(), NONE, REDUCE, 32, (7, 8), exact=True),
    Case(gw.FP32(), RESIDUAL, REDUCE, 32, (7, 15), exact=True),
    Case(gw.FP16(), NONE, REDUCE, 16, (7, 8), HALF, exact=True, interpreted="vectors"),
    Case(gw.FP16(), RESIDUAL, REDUCE, 16, (7, 16), HALF, exact=True, interpreted="vectors"),
    Case(gw.FP16(), RESIDUAL, SCATTER, 16, (15, 28), exact=False, interpreted="vectors"),
    Case(gw.FP16(), NONE, GATHER, 16, (9, 12), HALF, exact=True, interpreted="vectors"),
    Case(gw.BF16(), NONE, REDUCE, 16, (7, 8), BRAIN, exact=True),
    Case(gw.BF16(), RESIDUAL, REDUCE, 16, (7, 15), BRAIN, exact=True),
    Case(gw.TopK(0.05), RESIDUAL, GATHER, 48 * 0.05, (16, 49), interpreted="vectors"),
    Case(gw.TopK(0.05), RESIDUAL, SCATTER, 48 * 0.05, (45, 124), interpreted="vectors"),
    Case(gw.TopK(0.05), gw.Residual(decay=0.9), GATHER, 48 * 0.05, (16, 49), interpreted="vectors"),
    Case(gw.TopK(0.05), SHORT, GATHER, 48 * 0.05, (18, 70), gpu_differs=True, interpreted="vectors"),
    Case(gw.TopK(0.05), gw.Residual(0.9, 4, torch.bfloat16), gw.OkTopk(), 48 * 0.05, (75, 146), gpu_differs=True),
    Case(gw.TopK(0.05), EIGHT, GATHER, 48 * 0.05, (20, 100), gpu_differs=True, interpreted="vectors"),
    Case(gw.TopK(0.05), gw.Residual(limit=4), GATHER, 48 * 0.05, (26, 57)),
    Case(gw.TopK(0.05), gw.DGCMemory(momentum=0.8), GATHER, 48 * 0.05, (18, 57), interpreted="vectors"),
    Case(gw.TopK(1.0), RESIDUAL, GATHER, 48, (16, 45), exact=True),
    Case(gw.DGC(0.05), gw.DGCMemory(), GATHER, 48 * 0.05, (18, 56), gpu_differs=True),
    Case(gw.DGC(0.05), gw.DGCMemory(masking=False, clip=0.5), GATHER, 48 * 0.05, (24, 64), gpu_differs=True),
    Case(gw.DGC(0.05), RESIDUAL, GATHER, 48 * 0.05, (16, 48), gpu_differs=True),
    Case(gw.TopK(0.05), RESIDUAL, gw.SplitGather(), 48 * 0.05, (64, 108)),
    Case(gw.DGC(0.05), gw.DGCMemory(), gw.SplitGather(slack=1.0, growth=1.0), 48 * 0.05, (66, 121), gpu_differs=True),
    Case(gw.TopK(1.0), RESIDUAL, gw.SplitGather(), 48, (51, 78), exact=True),
    Case(gw.TopK(0.05), RESIDUAL, gw.Exclusive(), 48 * 0.05, (27, 50)),
    Case(gw.DGC(0.05), gw.DGCMemory(), gw.Exclusive(), 48 * 0.05, (29, 57), gpu_differs=True),
    Case(gw.TopK(1.0), RESIDUAL, gw.Exclusive(), 48, (27, 47), exact=True),
    Case(gw.TopK(0.05), RESIDUAL, gw.LeaderIndices(), 48 * 0.05, (18, 35)),
    Case(gw.TopK(0.05), gw.Residual(decay=0.9), gw.LeaderIndices(), 48 * 0.05, (18, 35)),
    Case(gw.TopK(1.0), RESIDUAL, gw.LeaderIndices(), 48, (18, 33), exact=True),
    Case(gw.TopK(0.05), RESIDUAL, gw.GlobalTopK(), 48 * 0.05, (36, 80)),
    Case(gw.DGC(0.05), gw.DGCMemory(), gw.GlobalTopK(), 48 * 0.05, (38, 91), gpu_differs=True),
    Case(gw.TopK(1.0), RESIDUAL, gw.GlobalTopK(), 48, (36, 77), exact=True),
    Case(gw.TopK(0.05), RESIDUAL, gw.OkTopk(), 48 * 0.05, (66, 120), gpu_differs=True),
    Case(
        gw.DGC(0.05), gw.DGCMemory(), gw.OkTopk(slack=1.0, rebalance=2, reuse=3), 48 * 0.05, (83, 138), gpu_differs=True
    ),
    Case(gw.TopK(1.0), RESIDUAL, gw.OkTopk(rebalance=1), 48, (82, 129), exact=True, gpu_differs=True),
    Case(gw.TopK(0.05, value_bits=4), RESIDUAL, GATHER, 11 * 0.05, (20, 89), gpu_differs=True),
    Case(gw.TopK(0.05, value_bits=4), gw.Residual(decay=0.9), SCATTER, 11 * 0.05, (53, 245), gpu_differs=True),
    Case(gw.TopK(0.05, value_bits=4), RESIDUAL, gw.SplitGather(), 11 * 0.05, (72, 193), gpu_differs=True),
    Case(gw.TopK(0.05, value_bits=4), RESIDUAL, gw.GlobalTopK(), 11 * 0.05, (44, 153), gpu_differs=True),
    Case(
        gw.TopK(0.05, value_bits=4), RESIDUAL, gw.OkTopk(rebalance=2, reuse=3), 11 * 0.05, (88, 210), gpu_differs=True
    ),
    Case(gw.TopK(0.05, value_bits=4), NONE, GATHER, 11 * 0.05, (20, 88), gpu_differs=True),
    Case(
        gw.DGC(0.05, value_bits=4),
        RESIDUAL,
        gw.SplitGather(slack=1.0, growth=1.0),
        11 * 0.05,
        (75, 216),
        gpu_differs=True,
    ),
    Case(gw.HardThreshold(0.5, 0.05, value_bits=4), RESIDUAL, GATHER, 11 * 0.05, (27, 92), gpu_differs=True),
    Case(gw.ReusedThreshold(0.05, warmup=1, value_bits=4), RESIDUAL, GATHER, 11 * 0.05, (20, 88), gpu_differs=True),
    Case(gw.MultiLevel(gw.TopK(0.1, value_bits=4), 10, 0.1), RESIDUAL, REDUCE, 11 * 0.1, (41, 110), gpu_differs=True),
    Case(gw.AllDimensionTopK(0.05), RESIDUAL, GATHER, 64 * 0.05, (10, 62), interpreted="vectors"),
    Case(gw.AllDimensionTopK(0.05, axis=1), gw.DGCMemory(), GATHER, 64 * 0.06, (11, 70), interpreted="vectors"),
    Case(gw.AllDimensionTopK(1.0, axis=0), RESIDUAL, GATHER, 64, (12, 62), exact=True),
    Case(gw.Interleaved(gw.AllDimensionTopK(0.05), gw.TopK(0.05)), RESIDUAL, GATHER, 64 * 0.05, (18, 62)),
    Case(
        gw.Interleaved(gw.DGC(0.05), gw.QSGD(), period=3), gw.Residual(decay=0.9), GATHER, 9, (17, 72), gpu_differs=True
    ),
    Case(gw.Interleaved(gw.RandomK(0.05), gw.FP32()), RESIDUAL, REDUCE, 32, (20, 74), gpu_differs=True),
    Case(gw.HardThreshold(0.5, 0.05), RESIDUAL, GATHER, 48 * 0.05, (23, 52)),
    Case(gw.HardThreshold(0.5, 0.05), RESIDUAL, SCATTER, 48 * 0.05, (59, 131)),
    Case(gw.GaussianK(0.05), RESIDUAL, GATHER, 48 * 0.05, (16, 48), gpu_differs=True),
    Case(gw.GaussianK(0.05), gw.DGCMemory(), SCATTER, 48 * 0.05, (44, 130), gpu_differs=True),
    Case(gw.RedSync(0.05), RESIDUAL, GATHER, 48 * 0.05, (16, 48), gpu_differs=True),
    Case(gw.SIDCo(0.05), RESIDUAL, GATHER, 48 * 0.05, (16, 48), gpu_differs=True),
    Case(gw.SIDCo(0.05, "gamma"), RESIDUAL, SCATTER, 48 * 0.05, (42, 123), gpu_differs=True),
    Case(gw.SIDCo(0.05, "pareto", stages=2), RESIDUAL, GATHER, 48 * 0.05, (16, 48), gpu_differs=True),
    Case(gw.ReusedThreshold(0.05, warmup=1), RESIDUAL, GATHER, 48 * 0.05, (16, 48), gpu_differs=True),
    Case(gw.MultiLevel(gw.TopK(0.1), 10, 0.1), RESIDUAL, REDUCE, 48 * 0.1, (39, 70)),
    Case(gw.MultiLevel(gw.TopK(0.1), 10, 0.1, smoothing=0.3), RESIDUAL, REDUCE, 48 * 0.1, (41, 72)),
    Case(gw.MultiLevel(gw.TopK(0.1), 10, 0.1, "magnitude"), RESIDUAL, REDUCE, 48 * 0.1, (44, 70)),
    Case(gw.MultiLevel(gw.TopK(0.1), 4, 0.9), gw.Residual(decay=0.9), REDUCE, 32, (39, 38)),
    Case(gw.MultiLevel(gw.DGC(0.1), 10, 0.0), gw.DGCMemory(), REDUCE, 48 * 0.01, (46, 76), gpu_differs=True),
    Case(gw.MultiLevel(gw.GaussianK(0.2), 10, 0.3), RESIDUAL, REDUCE, 48 * 0.2, (44, 69), gpu_differs=True),
    Case(gw.MultiLevel(gw.RandomK(0.2), 4, 0.1), RESIDUAL, REDUCE, 32 * 0.2, (34, 88), gpu_differs=True),
    Case(gw.ChunkTopK(64, of=4096), RESIDUAL, GATHER, 32 * 108 / 16384 + 0.02, (49, 101)),
    Case(gw.ChunkTopK(64, of=4096), RESIDUAL, SCATTER, 32 * 108 / 16384 + 0.02, (123, 260)),
    Case(gw.ChunkTopK(16, of=100, bits=3), gw.Residual(decay=0.95), GATHER, 16 * 8 / 100 + 64 / 100 + 0.02, (49, 101)),
    Case(
        gw.ChunkTopK(8, of=64, bits=1),
        RESIDUAL,
        gw.AllGather(over_senders=True),
        8 * 7 / 64 + 16 / 64 + 0.02,
        (68, 135),
    ),
    Case(gw.TopK(0.05), RESIDUAL, gw.AllGather(over_senders=True), 48 * 0.05, (26, 70)),
    Case(gw.DCTTopK(4), RESIDUAL, GATHER, 48 * 4 / 43, (63, 112), interpreted="vectors"),
    Case(gw.DCTTopK(4), gw.Residual(decay=0.999), gw.AllGather(over_senders=True), 48 * 4 / 43, (63, 124)),
    Case(gw.DCTTopK(4096), RESIDUAL, GATHER, 48, (53, 112), exact=True),
    Case(gw.RandomK(0.05), RESIDUAL, REDUCE, 32 * 0.05, (20, 74), gpu_differs=True),
    Case(gw.RandomK(0.05), RESIDUAL, GATHER, 32 * 0.05, (21, 75), gpu_differs=True),
    Case(gw.RandomK(0.05), RESIDUAL, SCATTER, 32 * 0.05, (44, 200), gpu_differs=True),
    Case(gw.RandomK(0.05), gw.DGCMemory(), REDUCE, 32 * 0.05, (22, 82), gpu_differs=True),
    Case(gw.RandomK(0.3, rescale=True), NONE, REDUCE, 32 * 0.3, (21, 74), unbiased=True, gpu_differs=True),
    Case(gw.QSGD(), NONE, GATHER, 8 + 32 / 1024, (9, 70), unbiased=True, gpu_differs=True, interpreted="vectors"),
    Case(
        gw.QSGD(levels=4, block=64),
        NONE,
        SCATTER,
        8 + 32 / 64,
        (14, 250),
        unbiased=True,
        gpu_differs=True,
        interpreted="vectors",
    ),
    Case(gw.QSGD(), RESIDUAL, SCATTER, 8 + 32 / 1024, (15, 250), gpu_differs=True, interpreted="vectors"),
    Case(gw.QSGD(levels=15), RESIDUAL, GATHER, 8 + 32 / 1024, (9, 73), gpu_differs=True, interpreted="vectors"),
    Case(gw.Quantized(), RESIDUAL, GATHER, 4 + 16 / 64 + 0.01, (8, 84), interpreted="vectors"),
    Case(gw.Quantized(), RESIDUAL, SCATTER, 4 + 16 / 64 + 0.02, (14, 320), interpreted="vectors"),
    Case(gw.Quantized(), SHORT, GATHER, 4 + 16 / 64 + 0.01, (8, 102), gpu_differs=True, interpreted="vectors"),
    Case(gw.Quantized(8, block=128), NONE, GATHER, 8 + 16 / 128 + 0.01, (8, 49), interpreted="vectors"),
    Case(gw.Quantized(3), gw.Residual(decay=0.9), GATHER, 3 + 16 / 64 + 0.01, (8, 84), interpreted="vectors"),
    Case(gw.Quantized(2, block=32), RESIDUAL, SCATTER, 2 + 16 / 32 + 0.02, (14, 320), interpreted="vectors"),
    Case(
        gw.TernGrad(block=64),
        NONE,
        GATHER,
        2 + 32 / 64,
        (9, 101),
        unbiased=True,
        gpu_differs=True,
        interpreted="vectors",
    ),
    Case(
        gw.TernGrad(block=64),
        NONE,
        SCATTER,
        2 + 32 / 64,
        (14, 385),
        unbiased=True,
        gpu_differs=True,
        interpreted="vectors",
    ),
    Case(gw.SignSGD(), NONE, GATHER, 1, (16, 21)),
    Case(gw.Signum(), NONE, GATHER, 1, (16, 22)),
    Case(gw.EFSignSGD(), RESIDUAL, GATHER, 1 + 32 / 256, (9, 50), interpreted="vectors"),
    Case(gw.EFSignSGD(block=64), RESIDUAL, SCATTER, 1 + 32 / 64, (15, 144), interpreted="vectors"),
    Case(gw.EFSignSGD(), SHORT, SCATTER, 1 + 32 / 256 + 0.02, (14, 156), gpu_differs=True, interpreted="vectors"),
    Case(gw.OneBit(), RESIDUAL, GATHER, 1 + 64 / 4096, (9, 55), interpreted="vectors"),
    Case(gw.OneBit(block=64), RESIDUAL, SCATTER, 1 + 64 / 64, (15, 171), interpreted="vectors"),
    Case(gw.PowerSGD(2), RESIDUAL, REDUCE, 32, (25, 76), rounding=1e-5, interpreted="matrices"),
    Case(gw.PowerSGD(2), SHORT, REDUCE, 32, (27, 103), rounding=1e-5, gpu_differs=True, interpreted="matrices"),
    Case(gw.PowerSGD(2), EIGHT, REDUCE, 32, (28, 129), rounding=1e-5, gpu_differs=True, interpreted="matrices"),
    Case(gw.PowerSGD(2), gw.Residual(limit=4), REDUCE, 32, (35, 90), rounding=1e-5),
    Case(gw.PowerSGD(1), NONE, REDUCE, 32, (25, 76), interpreted="matrices"),
    Case(
        gw.PowerSGD(20, min_compression_rate=1, start_step=1),
        RESIDUAL,
        REDUCE,
        32,
        (25, 76),
        rounding=1e-5,
        interpreted="matrices",
    ),
    Case(gw.PowerSGD(2, bits=4), RESIDUAL, GATHER, 32, (31, 251), rounding=1e-5, interpreted="matrices"),
    Case(
        gw.PowerSGD(1 / 6, min_compression_rate=1, bits=4),
        RESIDUAL,
        SCATTER,
        32,
        (45, 779),
        rounding=1e-5,
        gpu_differs=True,
    ),
    Case(
        gw.PowerSGD(3, bits=8, start_step=1),
        gw.Residual(decay=0.9),
        SCATTER,
        32,
        (47, 483),
        rounding=1e-5,
        interpreted="matrices",
    ),
    Case(gw.Dion(2), RESIDUAL, REDUCE, 32, (51, 102), rounding=1e-5, interpreted="matrices"),
    Case(gw.Dion(1 / 3), SHORT, REDUCE, 32, (110, 165), rounding=1e-5, gpu_differs=True),
    Case(gw.Dion(1000, mu=0), NONE, REDUCE, 32, (137, 166), rounding=1e-5, gpu_differs=True),
    Case(gw.ACPSGD(2, bits=4), RESIDUAL, GATHER, 32, (28, 195), rounding=1e-5, interpreted="matrices"),
    Case(gw.ACPSGD(1 / 8, start_step=2, bits=3), RESIDUAL, SCATTER, 32, (38, 511), rounding=1e-5, gpu_differs=True),
    Case(gw.ACPSGD(2), RESIDUAL, REDUCE, 32, (21, 70), rounding=1e-5, interpreted="matrices"),
    Case(
        gw.ACPSGD(3, start_step=2), gw.Residual(decay=0.9), REDUCE, 32, (25, 70), rounding=1e-5, interpreted="matrices"
    ),
    Case(gw.ACPSGD(1), NONE, REDUCE, 32, (21, 67), interpreted="matrices"),
]

FEW = set({type(part): case for case in CASES[::-1] for part in (case.compressor, case.communicator)}.values())
"""A row for each compressor and each communicator."""


def kept(case: Case) -> tuple[object, ...]:
    """All that a checkpoint sees of a row: its memory, and the names of what its parts keep beside."""
    of_slots = case.compressor.init_slot(64, 64, torch.Generator().manual_seed(0))
    of_groups = case.compressor.init_group() | case.communicator.init_group()
    return case.memory, case.compressor.is_update, case.compressor.flat_state, tuple(of_slots), tuple(of_groups)


KINDS_OF_STATE = list({kept(case): case for case in CASES[::-1]}.values())
"""A row for each of these: states move by name, whatever the algorithm."""


def rows(cases: list[Case]) -> pytest.MarkDecorator:
    """Runs a test for each of these: with `make test` for those of the few, with `make test-all` for all."""
    given = [case if case in FEW else pytest.param(case, marks=pytest.mark.long) for case in cases]
    return pytest.mark.parametrize("case", given, ids=str)
