"""One row per algorithm and pairing, and what it claims. Adding a compressor adds a row here, and no test."""

from dataclasses import dataclass

import pytest

import gradwire as gw
from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.memories import Memory

NONE, RESIDUAL = gw.NoMemory(), gw.Residual()
GATHER, REDUCE, SCATTER = gw.AllGather(), gw.AllReduce(), gw.ScatterReduce()


@dataclass(frozen=True)
class Case:
    """`bits` per element are sent at most, plus `extra_bytes` per group and payload.

    `rounding` is the relative error of sums in flight; `exact` says that the mean is the dense mean
    but for that; `unbiased` that its expectation is.
    """

    compressor: Compressor
    memory: Memory
    communicator: Communicator
    bits: float
    rounding: float = 2e-6
    exact: bool = False
    unbiased: bool = False

    @property
    def conserves(self) -> bool:
        return self.memory.remembers and not getattr(self.communicator, "over_senders", False)

    def __str__(self) -> str:
        parts = (self.compressor, self.memory, self.communicator)
        return "-".join(str(part).replace(" ", "") for part in parts)


HALF, BRAIN = 2**-9, 2**-6

CASES = [
    Case(gw.FP32(), NONE, REDUCE, 32, exact=True),
    Case(gw.FP32(), RESIDUAL, REDUCE, 32, exact=True),
    Case(gw.FP16(), NONE, REDUCE, 16, HALF, exact=True),
    Case(gw.FP16(), RESIDUAL, REDUCE, 16, HALF, exact=True),
    Case(gw.FP16(), RESIDUAL, SCATTER, 16, exact=False),
    Case(gw.FP16(), NONE, GATHER, 16, HALF, exact=True),
    Case(gw.BF16(), NONE, REDUCE, 16, BRAIN, exact=True),
    Case(gw.BF16(), RESIDUAL, REDUCE, 16, BRAIN, exact=True),
    Case(gw.TopK(0.05), RESIDUAL, GATHER, 48 * 0.05),
    Case(gw.TopK(0.05), RESIDUAL, SCATTER, 48 * 0.05),
    Case(gw.TopK(0.05), gw.Residual(decay=0.9), GATHER, 48 * 0.05),
    Case(gw.TopK(0.05), gw.Residual(limit=4), GATHER, 48 * 0.05),
    Case(gw.TopK(0.05), gw.DGCMemory(momentum=0.8), GATHER, 48 * 0.05),
    Case(gw.TopK(1.0), RESIDUAL, GATHER, 48, exact=True),
    Case(gw.DGC(0.05), gw.DGCMemory(), GATHER, 48 * 0.05),
    Case(gw.DGC(0.05), gw.DGCMemory(masking=False, clip=0.5), GATHER, 48 * 0.05),
    Case(gw.DGC(0.05), RESIDUAL, GATHER, 48 * 0.05),
    Case(gw.TopK(0.05), RESIDUAL, gw.SplitGather(), 48 * 0.05),
    Case(gw.DGC(0.05), gw.DGCMemory(), gw.SplitGather(slack=1.0, growth=1.0), 48 * 0.05),
    Case(gw.TopK(1.0), RESIDUAL, gw.SplitGather(), 48, exact=True),
    Case(gw.TopK(0.05), RESIDUAL, gw.Exclusive(), 48 * 0.05),
    Case(gw.DGC(0.05), gw.DGCMemory(), gw.Exclusive(), 48 * 0.05),
    Case(gw.TopK(1.0), RESIDUAL, gw.Exclusive(), 48, exact=True),
    Case(gw.TopK(0.05), RESIDUAL, gw.LeaderIndices(), 48 * 0.05),
    Case(gw.TopK(0.05), gw.Residual(decay=0.9), gw.LeaderIndices(), 48 * 0.05),
    Case(gw.TopK(1.0), RESIDUAL, gw.LeaderIndices(), 48, exact=True),
    Case(gw.TopK(0.05), RESIDUAL, gw.GlobalTopK(), 48 * 0.05),
    Case(gw.DGC(0.05), gw.DGCMemory(), gw.GlobalTopK(), 48 * 0.05),
    Case(gw.TopK(1.0), RESIDUAL, gw.GlobalTopK(), 48, exact=True),
    Case(gw.TopK(0.05), RESIDUAL, gw.OkTopk(), 48 * 0.05),
    Case(gw.DGC(0.05), gw.DGCMemory(), gw.OkTopk(slack=1.0, rebalance=2, reuse=3), 48 * 0.05),
    Case(gw.TopK(1.0), RESIDUAL, gw.OkTopk(rebalance=1), 48, exact=True),
    Case(gw.TopK(0.05, value_bits=4), RESIDUAL, GATHER, 11 * 0.05),
    Case(gw.TopK(0.05, value_bits=4), gw.Residual(decay=0.9), SCATTER, 11 * 0.05),
    Case(gw.TopK(0.05, value_bits=4), RESIDUAL, gw.SplitGather(), 11 * 0.05),
    Case(gw.TopK(0.05, value_bits=4), RESIDUAL, gw.GlobalTopK(), 11 * 0.05),
    Case(gw.TopK(0.05, value_bits=4), RESIDUAL, gw.OkTopk(rebalance=2, reuse=3), 11 * 0.05),
    Case(gw.TopK(0.05, value_bits=4), NONE, GATHER, 11 * 0.05),
    Case(gw.DGC(0.05, value_bits=4), RESIDUAL, gw.SplitGather(slack=1.0, growth=1.0), 11 * 0.05),
    Case(gw.HardThreshold(0.5, 0.05, value_bits=4), RESIDUAL, GATHER, 11 * 0.05),
    Case(gw.ReusedThreshold(0.05, warmup=1, value_bits=4), RESIDUAL, GATHER, 11 * 0.05),
    Case(gw.MultiLevel(gw.TopK(0.1, value_bits=4), 10, 0.1), RESIDUAL, REDUCE, 11 * 0.1),
    Case(gw.AllDimensionTopK(0.05), RESIDUAL, GATHER, 64 * 0.05),
    Case(gw.AllDimensionTopK(0.05, axis=1), gw.DGCMemory(), GATHER, 64 * 0.06),
    Case(gw.AllDimensionTopK(1.0, axis=0), RESIDUAL, GATHER, 64, exact=True),
    Case(gw.Interleaved(gw.AllDimensionTopK(0.05), gw.TopK(0.05)), RESIDUAL, GATHER, 64 * 0.05),
    Case(gw.Interleaved(gw.DGC(0.05), gw.QSGD(), period=3), gw.Residual(decay=0.9), GATHER, 9),
    Case(gw.Interleaved(gw.RandomK(0.05), gw.FP32()), RESIDUAL, REDUCE, 32),
    Case(gw.HardThreshold(0.5, 0.05), RESIDUAL, GATHER, 48 * 0.05),
    Case(gw.HardThreshold(0.5, 0.05), RESIDUAL, SCATTER, 48 * 0.05),
    Case(gw.GaussianK(0.05), RESIDUAL, GATHER, 48 * 0.05),
    Case(gw.GaussianK(0.05), gw.DGCMemory(), SCATTER, 48 * 0.05),
    Case(gw.RedSync(0.05), RESIDUAL, GATHER, 48 * 0.05),
    Case(gw.SIDCo(0.05), RESIDUAL, GATHER, 48 * 0.05),
    Case(gw.SIDCo(0.05, "gamma"), RESIDUAL, SCATTER, 48 * 0.05),
    Case(gw.SIDCo(0.05, "pareto", stages=2), RESIDUAL, GATHER, 48 * 0.05),
    Case(gw.ReusedThreshold(0.05, warmup=1), RESIDUAL, GATHER, 48 * 0.05),
    Case(gw.MultiLevel(gw.TopK(0.1), 10, 0.1), RESIDUAL, REDUCE, 48 * 0.1),
    Case(gw.MultiLevel(gw.TopK(0.1), 10, 0.1, smoothing=0.3), RESIDUAL, REDUCE, 48 * 0.1),
    Case(gw.MultiLevel(gw.TopK(0.1), 10, 0.1, "magnitude"), RESIDUAL, REDUCE, 48 * 0.1),
    Case(gw.MultiLevel(gw.TopK(0.1), 4, 0.9), gw.Residual(decay=0.9), REDUCE, 32),
    Case(gw.MultiLevel(gw.DGC(0.1), 10, 0.0), gw.DGCMemory(), REDUCE, 48 * 0.01),
    Case(gw.MultiLevel(gw.GaussianK(0.2), 10, 0.3), RESIDUAL, REDUCE, 48 * 0.2),
    Case(gw.MultiLevel(gw.RandomK(0.2), 4, 0.1), RESIDUAL, REDUCE, 32 * 0.2),
    Case(gw.ChunkTopK(64, of=4096), RESIDUAL, GATHER, 32 * 108 / 16384 + 0.02),
    Case(gw.ChunkTopK(64, of=4096), RESIDUAL, SCATTER, 32 * 108 / 16384 + 0.02),
    Case(gw.ChunkTopK(16, of=100, bits=3), gw.Residual(decay=0.95), GATHER, 16 * 8 / 100 + 64 / 100 + 0.02),
    Case(gw.ChunkTopK(8, of=64, bits=1), RESIDUAL, gw.AllGather(over_senders=True), 8 * 7 / 64 + 16 / 64 + 0.02),
    Case(gw.TopK(0.05), RESIDUAL, gw.AllGather(over_senders=True), 48 * 0.05),
    Case(gw.RandomK(0.05), RESIDUAL, REDUCE, 32 * 0.05),
    Case(gw.RandomK(0.05), RESIDUAL, GATHER, 32 * 0.05),
    Case(gw.RandomK(0.05), RESIDUAL, SCATTER, 32 * 0.05),
    Case(gw.RandomK(0.05), gw.DGCMemory(), REDUCE, 32 * 0.05),
    Case(gw.RandomK(0.3, rescale=True), NONE, REDUCE, 32 * 0.3, unbiased=True),
    Case(gw.QSGD(), NONE, GATHER, 8 + 32 / 1024, unbiased=True),
    Case(gw.QSGD(levels=4, block=64), NONE, SCATTER, 8 + 32 / 64, unbiased=True),
    Case(gw.QSGD(), RESIDUAL, SCATTER, 8 + 32 / 1024),
    Case(gw.QSGD(levels=15), RESIDUAL, GATHER, 8 + 32 / 1024),
    Case(gw.Quantized(), RESIDUAL, GATHER, 4 + 16 / 64 + 0.01),
    Case(gw.Quantized(), RESIDUAL, SCATTER, 4 + 16 / 64 + 0.02),
    Case(gw.Quantized(8, block=128), NONE, GATHER, 8 + 16 / 128 + 0.01),
    Case(gw.Quantized(3), gw.Residual(decay=0.9), GATHER, 3 + 16 / 64 + 0.01),
    Case(gw.Quantized(2, block=32), RESIDUAL, SCATTER, 2 + 16 / 32 + 0.02),
    Case(gw.TernGrad(block=64), NONE, GATHER, 2 + 32 / 64, unbiased=True),
    Case(gw.TernGrad(block=64), NONE, SCATTER, 2 + 32 / 64, unbiased=True),
    Case(gw.TernGrad(), RESIDUAL, GATHER, 2 + 32 / 1024),
    Case(gw.SignSGD(), NONE, GATHER, 1),
    Case(gw.Signum(), NONE, GATHER, 1),
    Case(gw.EFSignSGD(), RESIDUAL, GATHER, 1 + 32 / 256),
    Case(gw.EFSignSGD(block=64), RESIDUAL, SCATTER, 1 + 32 / 64),
    Case(gw.OneBit(), RESIDUAL, GATHER, 1 + 64 / 4096),
    Case(gw.OneBit(block=64), RESIDUAL, SCATTER, 1 + 64 / 64),
    Case(gw.PowerSGD(2), RESIDUAL, REDUCE, 32, rounding=1e-5),
    Case(gw.PowerSGD(2), gw.Residual(limit=4), REDUCE, 32, rounding=1e-5),
    Case(gw.PowerSGD(1), NONE, REDUCE, 32),
    Case(gw.PowerSGD(20, min_compression_rate=1, start_step=1), RESIDUAL, REDUCE, 32, rounding=1e-5),
    Case(gw.PowerSGD(2, bits=4), RESIDUAL, GATHER, 32, rounding=1e-5),
    Case(gw.PowerSGD(1 / 6, min_compression_rate=1, bits=4), RESIDUAL, SCATTER, 32, rounding=1e-5),
    Case(gw.PowerSGD(3, bits=8, start_step=1), gw.Residual(decay=0.9), SCATTER, 32, rounding=1e-5),
    Case(gw.ACPSGD(2, bits=4), RESIDUAL, GATHER, 32, rounding=1e-5),
    Case(gw.ACPSGD(1 / 8, start_step=2, bits=3), RESIDUAL, SCATTER, 32, rounding=1e-5),
    Case(gw.ACPSGD(2), RESIDUAL, REDUCE, 32, rounding=1e-5),
    Case(gw.ACPSGD(3, start_step=2), gw.Residual(decay=0.9), REDUCE, 32, rounding=1e-5),
    Case(gw.ACPSGD(1), NONE, REDUCE, 32),
]

FEW = set({type(part): case for case in CASES[::-1] for part in (case.compressor, case.communicator)}.values())
"""A row for each compressor and each communicator."""


def rows(cases: list[Case]) -> pytest.MarkDecorator:
    """Runs a test for each of these: with `make test` for those of the few, with `make test-all` for all."""
    given = [case if case in FEW else pytest.param(case, marks=pytest.mark.long) for case in cases]
    return pytest.mark.parametrize("case", given, ids=str)
