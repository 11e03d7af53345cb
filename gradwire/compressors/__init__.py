"""Compressors: one file per family."""

from gradwire.compressors.acp_sgd import ACPSGD
from gradwire.compressors.all_dimension import AllDimensionTopK
from gradwire.compressors.chunked import ChunkTopK
from gradwire.compressors.compressor import (
    Codec,
    Compressor,
    FixedSizeCompressor,
    MultiRound,
    ReduceCodec,
    Reduction,
    Selective,
    SimpleCodec,
    context_for,
)
from gradwire.compressors.context import COMMON, DoubleBuffer, GroupContext, GroupState, Parts, SlotState
from gradwire.compressors.dct_top_k import DCTTopK
from gradwire.compressors.dense import BF16, FP16, FP32, Cast
from gradwire.compressors.dion import Dion
from gradwire.compressors.estimated import DGC, EstimatedThreshold, HardThreshold, Thresholded
from gradwire.compressors.gaussian_k import GaussianK
from gradwire.compressors.interleaved import Interleaved
from gradwire.compressors.low_rank import LowRank
from gradwire.compressors.multi_level import MultiLevel
from gradwire.compressors.power_sgd import PowerSGD
from gradwire.compressors.quantized import Quantized
from gradwire.compressors.red_sync import RedSync
from gradwire.compressors.reused import ReusedThreshold
from gradwire.compressors.sidco import SIDCo
from gradwire.compressors.sign import EFSignSGD, OneBit, SignSGD, Signum
from gradwire.compressors.sparse import RandomK, Sparse, Sparsifier, TopK
from gradwire.compressors.stochastic import QSGD, TernGrad

__all__ = [
    "ACPSGD",
    "BF16",
    "COMMON",
    "DGC",
    "FP16",
    "FP32",
    "QSGD",
    "AllDimensionTopK",
    "Cast",
    "ChunkTopK",
    "Codec",
    "Compressor",
    "DCTTopK",
    "Dion",
    "DoubleBuffer",
    "EFSignSGD",
    "EstimatedThreshold",
    "FixedSizeCompressor",
    "GaussianK",
    "GroupContext",
    "GroupState",
    "HardThreshold",
    "Interleaved",
    "LowRank",
    "MultiLevel",
    "MultiRound",
    "OneBit",
    "Parts",
    "PowerSGD",
    "Quantized",
    "RandomK",
    "RedSync",
    "ReduceCodec",
    "Reduction",
    "ReusedThreshold",
    "SIDCo",
    "Selective",
    "SignSGD",
    "Signum",
    "SimpleCodec",
    "SlotState",
    "Sparse",
    "Sparsifier",
    "TernGrad",
    "Thresholded",
    "TopK",
    "context_for",
]
