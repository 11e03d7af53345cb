"""The configurations that are compared: how gradients travel, and the optimizers that take their means."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Muon, Optimizer

import gradwire as gw
from benchmarks.losses.size.model import GPT

ROUND = 30
"""Inner steps of a round of local steps."""
SIGN_RATE, DION_RATE = 0.3, 20.0
"""The rates of steps by signs and of Dion's matrices, as multiples of AdamW's: 3e-4 and 0.02 beside 1e-3."""

Optimizers = Callable[[GPT, float], list[Optimizer]]


def adamw(model: GPT, rate: float) -> list[Optimizer]:
    return [_adamw(list(model.parameters()), rate)]


def signs(model: GPT, rate: float) -> list[Optimizer]:
    return [gw.SignDescent(model.parameters(), SIGN_RATE * rate, weight_decay=0.1)]


def matrices_apart(model: GPT, rate: float) -> list[Optimizer]:
    """SGD for the blocks' matrices, whose gradients are updates; AdamW for all else."""
    matrices, others = _by_shape(model)
    return [SGD(matrices, DION_RATE * rate, weight_decay=0.01), _adamw(others, rate)]


def muon(model: GPT, rate: float) -> list[Optimizer]:
    """Muon for the blocks' matrices, at Dion's rate and with its scale of an update; AdamW for all else."""
    matrices, others = _by_shape(model)
    return [Muon(matrices, DION_RATE * rate, weight_decay=0.01, momentum=0.95), _adamw(others, rate)]


def _by_shape(model: GPT) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The blocks' matrices, and all other parameters."""
    matrices = [p for p in model.blocks.parameters() if p.dim() > 1]
    own = set(matrices)
    return matrices, [p for p in model.parameters() if p not in own]


def _adamw(parameters: list[Any], rate: float) -> Optimizer:
    return AdamW(parameters, rate, betas=(0.9, 0.95), weight_decay=0.01, fused=parameters[0].is_cuda)


@dataclass(frozen=True)
class Way:
    """A way to exchange gradients, or with `rounds` the replicas' pseudo-gradients, and the optimizers of a model."""

    name: str
    """In tables."""
    compressor: str | gw.Compressor
    options: Mapping[str, Any] = field(default_factory=dict)
    """As of `gw.attach`."""
    optimizers: Optimizers = adamw
    rounds: Mapping[str, Any] | None = None
    """The options of `gw.LocalSteps` alone; None where every step is exchanged."""
    note: str = ""
    """What differs beside the exchange."""


TOP_K = "topk:0.0625,value_bits=4"
_MOMENTUM = {"memory": gw.Residual(decay=0.999), "communicator": gw.AllGather(over_senders=True)}
_REST = [("embedding.*", gw.FP32()), ("position", gw.FP32())]

WAYS = {
    "dense": Way("dense", "fp32"),
    "4bits": Way("4 bits by ScatterReduce", "quantized:4+scatterreduce"),
    "powersgd-3": Way("PowerSGD 1/3 in 4 bits", "powersgd:0.3333,bits=4"),
    "powersgd-6": Way("PowerSGD 1/6 in 4 bits", "powersgd:0.16667,bits=4"),
    "topk-16": Way("TopK 1/16 in 10 bits", TOP_K),
    "topk-16-bfloat16": Way("the same, residual in bfloat16", TOP_K, {"memory": gw.Residual(dtype=torch.bfloat16)}),
    "topk-16-int8": Way("the same, residual in int8", TOP_K, {"memory": gw.Residual(dtype=torch.int8)}),
    "topk-100": Way("TopK 1 %", "topk:0.01"),
    "acpsgd": Way("ACP-SGD r4", "acpsgd:4"),
    "efsignsgd": Way("EFSignSGD", "efsignsgd"),
    "demo": Way(
        "DeMo", gw.DCTTopK(32, chunk=64), _MOMENTUM, signs, note="steps by signs at 0.3 of the rate, decay 0.1"
    ),
    "dion": Way(
        "Dion 1/16", gw.Dion(1 / 16, mu=0.95), {"rules": _REST}, matrices_apart,
        note="blocks' matrices at 20 times the rate; embedding in float32, for AdamW",
    ),
    "diloco": Way("DiLoCo", "fp32", rounds={"inner_steps": ROUND}, note=f"rounds of {ROUND} local steps"),
    "sparseloco": Way(
        "SparseLoCo", gw.ChunkTopK(64, of=4096, bits=2), {"memory": gw.Residual(decay=0.95)},
        rounds={"inner_steps": ROUND, "outer": gw.Outer(1.0, momentum=0)}, note=f"rounds of {ROUND} local steps",
    ),
}  # fmt: skip
"""By the names that `--only` takes."""
