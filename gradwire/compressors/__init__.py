"""Compressors: one file per family."""

from gradwire.compressors.base import Codec, Compressor, Reduction, Rounds, State, Workspace
from gradwire.compressors.dense import BF16, FP16, FP32, Cast
from gradwire.compressors.low_rank import PowerSGD
from gradwire.compressors.quantized import QSGD, TernGrad
from gradwire.compressors.sign import EFSignSGD, OneBit, SignSGD, Signum
from gradwire.compressors.sparse import DGC, RandomK, Sparse, TopK

__all__ = [
    "BF16", "DGC", "FP16", "FP32", "QSGD", "Cast", "Codec", "Compressor", "EFSignSGD", "OneBit", "PowerSGD",
    "RandomK", "Reduction", "Rounds", "SignSGD", "Signum", "Sparse", "State", "TernGrad", "TopK", "Workspace",
]  # fmt: skip
