"""Gradwire: compressed data-parallel training for PyTorch.

ddp = DistributedDataParallel(model)
gw.attach(ddp, gw.TopK(ratio=0.01), memory=gw.Residual(), communicator=gw.AllGather())
"""

from gradwire.checkpoint import reshard
from gradwire.communicators import (
    AllGather,
    AllReduce,
    Exclusive,
    GlobalTopK,
    LeaderIndices,
    OkTopk,
    ScatterReduce,
    SplitGather,
)
from gradwire.compressors import (
    ACPSGD,
    BF16,
    DGC,
    FP16,
    FP32,
    QSGD,
    AllDimensionTopK,
    EFSignSGD,
    GaussianK,
    HardThreshold,
    Interleaved,
    MultiLevel,
    OneBit,
    PowerSGD,
    RandomK,
    RedSync,
    ReusedThreshold,
    SIDCo,
    SignSGD,
    Signum,
    TernGrad,
    TopK,
)
from gradwire.controllers import CAT, Accordion, Auto, GraVAC, LGreCo, ScaDLES, WarmUp
from gradwire.ddp import Handle, attach
from gradwire.flights import ReductionError
from gradwire.memory import DGCMemory, NoMemory, Residual
from gradwire.optimizer import DistributedOptimizer
from gradwire.plan import Group, Plan
from gradwire.stats import Stats
from gradwire.transports import Hierarchical, ProcessGroup, Recording, Threads

__all__ = [
    "ACPSGD", "BF16", "CAT", "DGC", "FP16", "FP32", "QSGD", "Accordion", "AllDimensionTopK", "AllGather", "AllReduce",
    "Auto", "DGCMemory", "DistributedOptimizer", "EFSignSGD", "Exclusive", "GaussianK", "GlobalTopK", "GraVAC", "Group",
    "Handle", "HardThreshold", "Hierarchical", "Interleaved", "LGreCo", "LeaderIndices", "MultiLevel", "NoMemory",
    "OkTopk", "OneBit", "Plan", "PowerSGD", "ProcessGroup", "RandomK", "Recording", "RedSync", "ReductionError",
    "Residual", "ReusedThreshold", "SIDCo", "ScaDLES", "ScatterReduce", "SignSGD", "Signum", "SplitGather", "Stats",
    "TernGrad", "Threads", "TopK", "WarmUp", "attach", "reshard",
]  # fmt: skip
