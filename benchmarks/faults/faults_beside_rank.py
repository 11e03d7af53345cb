"""One rank of `faults_beside.py`: the same loop under plain DDP, torchft's DDP and Gradwire."""

import json
import os
import sys
import threading
import time
from collections import deque
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from benchmarks.faults.killed_rank import Task, network
from gradwire.lab.soak.fork_server import serve
from gradwire.lab.soak.rank_messages import report
from gradwire.lab.soak.soaked_model import hash_of

TIMEOUT_S, QUIET_S, PAUSE_S = 15.0, 2.0, 0.02
TIMEOUT = timedelta(seconds=TIMEOUT_S)


class Loop:
    """The training loop that the three systems share: model, batches, and orders to inject a fault."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts, self._task, self._orders = facts, Task(0), deque[dict[str, Any]]()
        torch.manual_seed(0)
        self.model = network(64)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.store = dist.PrefixStore(
            facts["job"], dist.TCPStore("127.0.0.1", facts["port"], is_master=False, wait_for_workers=False)
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._orders.append(json.loads(line))
        os._exit(1)

    def step(self, trained: nn.Module, optimizer: Any, number: int) -> None:
        """One step, without the optimizer where the mean gradient is not finite."""
        time.sleep(PAUSE_S)
        orders = [self._orders.popleft()["do"] for _ in range(len(self._orders))]
        inputs, targets = self._task.batch(number, self.facts["rank"])
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(trained(inputs), targets)
        (loss * torch.inf if "overflow" in orders else loss).backward()
        if all(p.grad is None or p.grad.isfinite().all() for p in self.model.parameters()):
            optimizer.step()
        if "corrupt" in orders:
            next(self.model.parameters()).detach().view(-1).view(torch.int32)[7] ^= 1 << 20
        for order in orders:
            report(did=order)

    def report_step(self, step: int, life: str = "") -> None:
        parameters = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        report(step=step, life=life, model=hash_of(parameters), finite=bool(parameters.isfinite().all()))


def plain(loop: Loop) -> None:
    place = {"rank": loop.facts["rank"], "world_size": loop.facts["ranks"]}
    dist.init_process_group("gloo", store=loop.store, timeout=TIMEOUT, **place)
    ddp = DistributedDataParallel(loop.model)
    for step in range(1_000_000):
        loop.step(ddp, loop.inner, step)
        loop.report_step(step + 1)


def torchft(loop: Loop) -> None:
    """torchft's own recipe, with a replica group of one rank."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # pyright: ignore

    def load(state: dict[str, Any]) -> None:
        loop.model.load_state_dict(state["model"])
        loop.inner.load_state_dict(state["optimizer"])

    own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT), min_replica_size=2, load_state_dict=load,
        state_dict=lambda: {"model": loop.model.state_dict(), "optimizer": loop.inner.state_dict()},
        timeout=TIMEOUT, quorum_timeout=timedelta(seconds=60), rank=0, world_size=1, store_addr="127.0.0.1",
        store_port=own.port, lighthouse_addr=loop.facts["lighthouse"], replica_id=f"replica_{loop.facts['rank']}_",
    )  # fmt: skip
    ddp, optimizer = DistributedDataParallel(manager, loop.model), Optimizer(manager, loop.inner)
    while True:
        loop.step(ddp, optimizer, manager.current_step())
        loop.report_step(manager.current_step())


def gradwire(loop: Loop) -> None:
    """The recipe in docs/faults.md."""
    rendezvous = gw.Rendezvous(loop.store, at_least=2, last_call_timeout=QUIET_S, timeout=TIMEOUT, backend="gloo")
    handle = None
    while True:
        try:
            rendezvous.meet(handle)
            ddp = DistributedDataParallel(loop.model)
            handle = gw.attach(ddp, gw.TopK(0.05), elastic=True)
            step, life = rendezvous.resume(handle, loop.inner), handle.from_first(uuid4().hex)
            while not (step % 4 == 0 and dist.get_rank() == 0 and rendezvous.newcomers()):
                loop.step(ddp, loop.inner, step)
                step += 1
                for name in handle.verify(heal=True):
                    report(healed=name)
                loop.report_step(step, life)
        except RuntimeError as error:
            report(error=str(error))


def main() -> None:
    torch.set_num_threads(1)
    facts = json.loads(sys.stdin.readline())
    try:
        {"plain DDP": plain, "torchft": torchft, "Gradwire": gradwire}[facts["system"]](Loop(facts))
    except Exception as error:
        report(error=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    serve(main)
