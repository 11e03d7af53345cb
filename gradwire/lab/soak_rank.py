"""One rank of a job that faults befall, as `gradwire.lab.soak` starts it; or the store that outlives all ranks.

A line says what to train. It says in lines of JSON what it does. Every step is held against the law
that what memories held, and the gradients, are what was sent and what memories hold now.
"""

import json
import os
import sys
import threading
import time
from collections import deque
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.parallel import DistributedDataParallel

from gradwire.checkpoint import SEPARATOR
from gradwire.frontends import DistributedOptimizer, Handle, Rendezvous, attach
from gradwire.lab.configuration import parse
from gradwire.lab.faults import TIMEOUT_S
from gradwire.lab.soak_host import serve
from gradwire.memories import RESIDUAL
from gradwire.plans import Group, Plan, default_communicator, default_memory

FRONT_ENDS = ("DDP", "DistributedOptimizer")
WAYS = (
    "topk:0.05", "fp32", "powersgd:2", "quantized:4+scatterreduce", "acpsgd:2", "topk:0.1+oktopk", "efsignsgd",
    "randomk:0.1", "topk:0.1+globaltopk", "onebit", "topk:0.1,4", "bf16+residual+scatterreduce", "qsgd+residual",
    "chunktopk:8,64", "gaussiank:0.1", "alldimensiontopk:0.1+residual", "topk:0.1+splitgather", "terngrad+residual",
    "sidco:0.1", "redsync:0.1", "topk:0.1+exclusive", "topk:0.1+leaderindices", "reusedthreshold:0.1",
)  # fmt: skip
"""A plan has another one for each parameter."""
QUIET_S = 1.5


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


class SoakRank:
    """What a rank trains, whoever else is there."""

    def __init__(self, store: Store, told: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.model, self.alone, self._told = network(), network(), told
        self._inner = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        timeout = timedelta(seconds=TIMEOUT_S)
        self._rendezvous = Rendezvous(store, at_least=2, quiet_s=QUIET_S, timeout=timeout, backend="gloo")
        self.handle: Handle | None = None
        self._life, self._phase = "", "meeting"
        self._orders: deque[dict[str, Any]] = deque()
        threading.Thread(target=self._listen, daemon=True).start()

    def live(self) -> None:
        """Trains until it is killed, or told to leave."""
        while True:
            try:
                self._phase = "meeting"
                self._rendezvous.meet(self.handle)
                self.handle = self._begin()
                self._train(self.handle, self._rendezvous.resume(self.handle, self._inner))
            except RuntimeError as error:
                say(error=str(error), phase=self._phase)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._orders.append(json.loads(line))
        os._exit(1)  # nobody is there any more

    def _begin(self) -> Handle:
        way = plan(self.model, self._told["turn"])
        if self._told["front_end"] == "DDP":
            self.trained: nn.Module = DistributedDataParallel(self.model)
            self._optimizer: Any = self._inner
            return attach(self.trained, way, elastic=True)
        self.trained = self.model
        self._optimizer = DistributedOptimizer(self._inner, self.model, way, elastic=True)
        return self._optimizer.handle

    def _train(self, handle: Handle, step: int) -> None:
        """Until somebody new waits."""
        life, before = handle.from_first([uuid4().hex, self._life])
        stayed, late = bool(before) and before == self._life, self._life not in ("", before)
        self._life = life
        say(resumed=step, life=life, stayed=stayed, late=late, ranks=dist.get_world_size(), **self._hashes(handle))
        while not (step % 2 == 0 and dist.get_rank() == 0 and self._rendezvous.newcomers()):
            orders = [self._orders.popleft() for _ in range(len(self._orders))]
            taken = self._step(handle, step, orders)
            step += 1
            self._spoil(orders)
            self._phase = "training"
            healed = handle.verify(heal=True)
            say(step=step, life=life, taken=taken, healed=healed, **self._hashes(handle))

    def _step(self, handle: Handle, number: int, orders: list[dict[str, Any]]) -> bool:
        """Whether it was one that counts. Raises AssertionError where something was lost."""
        time.sleep(0.02 + sum(order["seconds"] for order in orders if order["do"] == "slow"))
        inputs, targets = batch(number)
        self.alone.load_state_dict(self.model.state_dict())
        self.alone.zero_grad()
        nn.functional.cross_entropy(self.alone(inputs), targets).backward()
        before = self._residuals(handle)
        self._phase = "training"
        self._inner.zero_grad()
        loss = nn.functional.cross_entropy(self.trained(inputs), targets)
        (loss * torch.inf if any(order["do"] == "overflow" for order in orders) else loss).backward()
        mean = gradients(self.model)
        if not mean.isfinite().all():
            assert torch.equal(before, self._residuals(handle)), "a step that was skipped has changed what is kept"
            return False
        self._optimizer.step()
        self._phase = "checking"
        sent = before + gradients(self.alone) / dist.get_world_size() - self._residuals(handle)
        dist.all_reduce(sent)
        torch.testing.assert_close(sent, mean, rtol=1e-3, atol=1e-4)
        return True

    def _spoil(self, orders: list[dict[str, Any]]) -> None:
        for order in orders:
            if order["do"] == "leave":
                assert self.handle
                self.handle.leave()
                os._exit(0)
            if order["do"] == "corrupt":
                parameters, word = [*self.model.parameters()], order["word"]
                bits = parameters[word % len(parameters)].detach().view(-1).view(torch.int32)
                bits[word // 8 % len(bits)] ^= 1 << word % 23  # of the mantissa: nothing else may notice

    def _residuals(self, handle: Handle) -> Tensor:
        """What this rank's memories hold."""
        state, named = handle.state_dict(), self.model.named_parameters()
        kept = (state.get(f"{name}{SEPARATOR}{RESIDUAL}", torch.zeros(p.shape)) for name, p in named)
        return torch.cat([tensor.flatten().double() for tensor in kept])

    def _hashes(self, handle: Handle) -> dict[str, str]:
        own = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        return {"model": hash_of(own), "owed": hash_of(self._residuals(handle))}


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, another for each rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(8, 20, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def gradients(model: nn.Module) -> Tensor:
    """All in one vector."""
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


def hash_of(tensor: Tensor) -> str:
    """Of its bits."""
    return sha256(tensor.numpy().tobytes()).hexdigest()[:16]


def say(**words: Any) -> None:
    """To whoever has started this process."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serves the store, or trains, as a line says."""
    told = json.loads(sys.stdin.readline())
    store = TCPStore(*told["address"], is_master=told["what"] == "store", wait_for_workers=False)
    if told["what"] == "store":
        say(ready=True)
        sys.stdin.read()
    else:
        SoakRank(PrefixStore(told["job"], store), told).live()


if __name__ == "__main__":
    serve(main)
