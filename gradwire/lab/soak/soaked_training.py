"""What the ranks of a long run under faults train, and how they say what they do."""

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.checkpoint import SEPARATOR
from gradwire.frontends import Handle
from gradwire.lab.configuration import parse
from gradwire.memories import RESIDUAL
from gradwire.plans import Group, Plan, default_communicator, default_memory

IN_PLACE = ("DDP", "DistributedOptimizer")
"""Front ends that go on without a rank."""
BY_CHECKPOINT = ("LocalSteps", "FSDP2")
"""Those whose ranks all end, and begin again from a checkpoint."""
FRONT_ENDS = (*IN_PLACE, *BY_CHECKPOINT)
WAYS = (
    "topk:0.05", "fp32", "powersgd:2", "quantized:4+scatterreduce", "acpsgd:2", "topk:0.1+oktopk", "efsignsgd",
    "randomk:0.1", "topk:0.1+globaltopk", "onebit", "topk:0.1,4", "bf16+residual+scatterreduce", "qsgd+residual",
    "chunktopk:8,64", "gaussiank:0.1", "alldimensiontopk:0.1+residual", "topk:0.1+splitgather", "terngrad+residual",
    "sidco:0.1", "redsync:0.1", "topk:0.1+exclusive", "topk:0.1+leaderindices", "reusedthreshold:0.1",
)  # fmt: skip
"""A plan has another one for each parameter."""


def network() -> nn.Module:
    """Small, the same at first everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 5))


def plan(model: nn.Module, turn: int) -> Plan:
    """The ways from number `turn` on, one for each parameter."""
    groups: list[Group] = []
    for index, (name, _) in enumerate(reversed([*model.named_parameters()])):
        way = parse(WAYS[(turn + index) % len(WAYS)])
        assert way.compressor
        memory = way.memory or default_memory(way.compressor)
        groups.append(Group((name,), way.compressor, memory, way.communicator or default_communicator(way.compressor)))
    return Plan(tuple(groups))


class UncheckedError(RuntimeError):
    """A rank was lost while all of them checked something, by collectives of the check's own."""


@contextmanager
def checking() -> Iterator[None]:
    """Inside are such collectives."""
    try:
        yield
    except RuntimeError as error:
        raise UncheckedError(str(error)) from error


class Orders:
    """What this process is told to do, a line of JSON each; without anybody to tell it, it ends."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        threading.Thread(target=self._listen, daemon=True).start()

    def take(self) -> list[dict[str, Any]]:
        """Those that have come since."""
        return [json.loads(self._lines.popleft()) for _ in range(len(self._lines))]

    def _listen(self) -> None:
        self._lines.extend(sys.stdin)
        os._exit(1)  # nobody is there any more


def spoil(orders: list[dict[str, Any]], handle: Handle, held: list[Tensor]) -> None:
    """Leaves the job, or flips a bit of what is `held`, where that is ordered."""
    for order in orders:
        if order["do"] == "leave":
            handle.leave()
            os._exit(0)
        if order["do"] == "corrupt":
            _flip(held, order["word"])


def _flip(parameters: list[Tensor], word: int) -> None:
    """Changes a bit of the mantissa of a number of one of them: nothing else may notice."""
    bits = parameters[word % len(parameters)].detach().view(-1).view(torch.int32)
    bits[word // 8 % len(bits)] ^= 1 << word % 23


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, another for each rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(8, 20, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def gradients(model: nn.Module) -> Tensor:
    """All in one vector."""
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


def residuals(handle: Handle, model: nn.Module) -> dict[str, Tensor]:
    """What this rank's memories hold, by parameter."""
    state, none = handle.state_dict(), {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    return {name: state.get(f"{name}{SEPARATOR}{RESIDUAL}", zeros).double() for name, zeros in none.items()}


def hash_of(tensor: Tensor) -> str:
    """Of its bits."""
    return sha256(tensor.numpy().tobytes()).hexdigest()[:16]


def say(**words: Any) -> None:
    """To whoever has started this process."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()
