"""The small model that ranks train in a long run under faults, its plans and its data."""

from hashlib import sha256

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.checkpoint import SEPARATOR
from gradwire.frontends import Handle
from gradwire.lab.configuration import parse
from gradwire.memories import RESIDUAL
from gradwire.plans import Group, Plan, default_communicator, default_memory

IN_PLACE = ("DDP", "DistributedOptimizer")
"""Front ends that go on without a lost rank."""
BY_CHECKPOINT = ("LocalSteps", "FSDP2")
"""Those whose ranks all end, and begin again from a checkpoint."""
FRONT_ENDS = (*IN_PLACE, *BY_CHECKPOINT)
WAYS = (
    "topk:0.05", "fp32", "powersgd:2", "quantized:4+scatterreduce", "acpsgd:2", "topk:0.1+oktopk", "efsignsgd",
    "randomk:0.1", "topk:0.1+globaltopk", "onebit", "topk:0.1,4", "bf16+residual+scatterreduce", "qsgd+residual",
    "chunktopk:8,64", "gaussiank:0.1", "alldimensiontopk:0.1+residual", "topk:0.1+splitgather", "quantized:2+allgather",
    "sidco:0.1", "redsync:0.1", "topk:0.1+exclusive", "topk:0.1+leaderindices", "reusedthreshold:0.1",
)  # fmt: skip
"""Compressors of the plans, another one for each parameter."""


def network() -> nn.Module:
    """The model, small, and the same at first on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 5))


def plan(model: nn.Module, turn: int) -> Plan:
    """The plan of the ways from number `turn` on, one for each parameter."""
    groups: list[Group] = []
    for index, (name, _) in enumerate(reversed([*model.named_parameters()])):
        way = parse(WAYS[(turn + index) % len(WAYS)])
        assert way.compressor
        memory = way.memory or default_memory(way.compressor)
        groups.append(Group((name,), way.compressor, memory, way.communicator or default_communicator(way.compressor)))
    return Plan(tuple(groups))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, different on each rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(8, 20, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def gradients(model: nn.Module) -> Tensor:
    """All gradients in one vector."""
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


def residuals(handle: Handle, model: nn.Module) -> dict[str, Tensor]:
    """This rank's residuals, by parameter."""
    state, none = handle.state_dict(), {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    return {name: state.get(f"{name}{SEPARATOR}{RESIDUAL}", zeros).double() for name, zeros in none.items()}


def hash_of(tensor: Tensor) -> str:
    """A hash of the tensor's bits."""
    return sha256(tensor.numpy().tobytes()).hexdigest()[:16]
