"""All that `import gradwire as gw` offers; its names are loaded when the first of them is used."""

from gradwire import groups
from gradwire.checkpoint import reshard
from gradwire.collective import AllToAll, Broadcast, Collective, Gather, Message, SendReceive, Sum
from gradwire.communicators import (
    AllGather,
    AllReduce,
    Communicator,
    Exclusive,
    GlobalTopK,
    LeaderIndices,
    OkTopk,
    ScatterReduce,
    SplitGather,
    Wire,
)
from gradwire.compressors import (
    ACPSGD,
    BF16,
    DGC,
    FP16,
    FP32,
    QSGD,
    AllDimensionTopK,
    ChunkTopK,
    Codec,
    Compressor,
    DCTTopK,
    Dion,
    DoubleBuffer,
    EFSignSGD,
    GaussianK,
    GroupContext,
    HardThreshold,
    Interleaved,
    MultiLevel,
    MultiRound,
    OneBit,
    Parts,
    PowerSGD,
    Quantized,
    RandomK,
    RedSync,
    Reduction,
    ReusedThreshold,
    SIDCo,
    SignSGD,
    Signum,
    SimpleCodec,
    TernGrad,
    TopK,
)
from gradwire.controllers import (
    CAT,
    Accordion,
    Controller,
    Decision,
    GraVAC,
    LGreCo,
    NativeRequest,
    Observation,
    ProfileRequest,
    ScaDLES,
    StepView,
    WarmUp,
)
from gradwire.frontends import (
    DistributedOptimizer,
    Handle,
    LocalSteps,
    Outer,
    Rendezvous,
    SignDescent,
    attach,
    compress_shards,
    init,
)
from gradwire.measure import bench, plan
from gradwire.memories import DGCMemory, Memory, NoMemory, Residual
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.plans import NATIVE, Group, Plan
from gradwire.runtime.failures import ReductionError
from gradwire.runtime.stats import Stats
from gradwire.saving import save
from gradwire.slots import Layout, Slot
from gradwire.transports import Card, Done, Mesh, Pending, Played, ProcessGroup, Recording, Threads, Transport
from gradwire.tuner import Auto

__all__ = [
    "ACPSGD", "BF16", "CAT", "DGC", "FP16", "FP32", "NATIVE", "QSGD", "Accordion", "AllDimensionTopK", "AllGather",
    "AllReduce", "AllToAll", "Auto", "Broadcast", "Card", "ChunkTopK", "Codec", "Collective", "Communicator",
    "Compressor", "Controller", "DCTTopK", "DGCMemory", "Decision", "Dion", "DistributedOptimizer", "Done",
    "DoubleBuffer", "EFSignSGD", "Exclusive", "Gather", "GaussianK", "GlobalTopK", "GraVAC", "Group", "GroupContext",
    "Handle", "HardThreshold", "Interleaved", "LGreCo", "Layout", "LazySum", "LeaderIndices", "LocalSteps", "Mean",
    "Memory", "Mesh", "Message", "MultiLevel", "MultiRound", "NativeRequest", "NoMemory", "Observation", "OkTopk",
    "OneBit", "Outer", "Parts", "Pending", "Plan", "Played", "PowerSGD", "ProcessGroup", "ProfileRequest", "Quantized",
    "RandomK", "Recording", "RedSync", "Reduction", "ReductionError", "Rendezvous", "Residual", "ReusedThreshold",
    "SIDCo", "ScaDLES", "ScatterReduce", "SendReceive", "SignDescent", "SignSGD", "Signum", "SimpleCodec", "Slot",
    "SplitGather", "Stats", "StepView", "Sum", "TernGrad", "Threads", "TopK", "Transport", "WarmUp", "Wire", "attach",
    "bench", "compress_shards", "groups", "init", "plan", "reshard", "save",
]  # fmt: skip
