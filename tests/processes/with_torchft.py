"""One rank of a replica of a training under torchft, as tests/integrations/test_torchft.py starts it. It reports in
lines of JSON, and begins when a line comes."""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torchft import Manager, ProcessGroupGloo

from gradwire.frontends.values import local
from gradwire.integrations.torchft import FaultTolerantLocalSteps, Optimizer
from tests.processes.elastic import flat, gradients, hash_of, plan, residuals, say

torch.set_num_threads(1)
TIMEOUT = timedelta(seconds=60)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.LayerNorm(60), nn.Linear(60, 5))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 20, generator=generator), torch.randint(0, 5, (8,), generator=generator)


class Replica:
    def __init__(self, told: dict[str, Any]) -> None:
        self._told, self._rank, self._ranks, self._inner_step = told, told["rank"], told["ranks"], 0
        torch.manual_seed(told["number"])  # the manager makes them alike
        self.model = network()
        first = self._rank == 0
        self._store = dist.TCPStore("127.0.0.1", told["port"], is_master=first, wait_for_workers=False)
        if self._ranks > 1:
            group = dist.PrefixStore("group", self._store)
            dist.init_process_group("gloo", store=group, rank=self._rank, world_size=self._ranks)
            fully_shard(self.model[0])
            fully_shard(self.model)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=20)), min_replica_size=told["at_least"],
            load_state_dict=self._load, state_dict=self._save, use_async_quorum=False, timeout=TIMEOUT,
            quorum_timeout=TIMEOUT, rank=self._rank, world_size=self._ranks, store_addr="127.0.0.1",
            store_port=told["port"], lighthouse_addr=told["lighthouse"], replica_id=f"replica_{told['number']}_",
            hostname="127.0.0.1",
        )  # fmt: skip
        kept = self._load_checkpoint() if told["resumes"] else None
        if told["local"]:
            self.optimizer = FaultTolerantLocalSteps(
                self.manager, self.inner, self.model, plan(), inner_steps=told["local"], state=kept
            )
            say(begins=self.manager.current_step(), new=True, **self.what_it_has())
        else:
            self.optimizer = Optimizer(self.manager, self.inner, self.model, plan(), state=kept)
            self.model[2].weight.register_post_accumulate_grad_hook(self._spoil_gradient)
        if told["heals_late"]:
            self._fail_to_heal_once()

    def _save(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.inner.state_dict()}

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.inner.load_state_dict(state["optimizer"])

    def save_checkpoint(self) -> None:
        state = {"torchft": self.manager.state_dict(), "gradwire": self.optimizer.exchange_state(), **self._save()}
        torch.save(state | {"inner step": self._inner_step}, self._checkpoint())

    def _load_checkpoint(self) -> Any:
        state = torch.load(self._checkpoint(), weights_only=False)
        self.manager.load_state_dict(state["torchft"])
        self._load(state)
        self._inner_step = state["inner step"]
        return state["gradwire"]

    def _checkpoint(self) -> Path:
        return Path(self._told["checkpoints"]) / f"{self._told['number']}.{self._rank}"

    def step(self, vetoes: bool) -> None:
        time.sleep(self._told["pause_s"])
        self.optimizer.zero_grad()
        step, ranks = self.manager.current_step(), self.manager.num_participants()
        batches = [batch(step, self.manager.participating_rank() * self._ranks + rank) for rank in range(self._ranks)]
        alone = self._gradients_alone(batches)
        owed = self._kept()
        inputs, targets = batches[self._rank]
        say(begins=step, ranks=ranks, new=not owed.any(), **self.what_it_has())
        nn.functional.cross_entropy(self.model(inputs), targets).backward()
        if vetoes:
            self.manager.report_error(RuntimeError("this replica does not take the step"))
        mean = gradients(self.model)
        self.optimizer.step()
        if self.manager.current_step() == step:
            say(refused=step, **self.what_it_has())
            return
        say(step=step + 1, ranks=ranks, **self.what_it_has())
        if step < self._told["summed"]:
            sent = owed + alone / ranks - self._kept()
            say(sums=step, sent=sent.tolist(), mean=mean.tolist())

    def _gradients_alone(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        """This rank's shard of the replica's."""
        alone = network()
        alone.load_state_dict({name: whole(tensor) for name, tensor in self.model.state_dict().items()})
        for inputs, targets in batches:
            (nn.functional.cross_entropy(alone(inputs), targets) / self._ranks).backward()
        return flat(p.grad.tensor_split(self._ends(len(p)))[self._rank] for p in alone.parameters())

    def _ends(self, rows: int) -> list[int]:
        """Where FSDP's shards of so many rows end, but the last."""
        most = ceil(rows / self._ranks)
        return [most * rank for rank in range(1, self._ranks)]

    def _spoil_gradient(self, parameter: Tensor) -> None:
        """Of this rank's shard alone, once."""
        if self.manager.current_step() == self._told["spoils"]:
            self._told["spoils"] = None
            local(parameter.grad).mul_(torch.inf)

    def _fail_to_heal_once(self) -> None:
        """As when the replica that it heals from is lost meanwhile."""
        transport = self.manager._checkpoint_transport
        receive = transport.recv_checkpoint

        def fail(*arguments: Any, **named: Any) -> None:
            transport.recv_checkpoint = receive
            raise RuntimeError("nobody to heal from")

        transport.recv_checkpoint = fail

    def round(self, vetoes: bool) -> None:
        time.sleep(self._told["pause_s"])
        round = self.manager.current_step()
        for step in range(self._inner_step, self._told["local"]):
            inputs, targets = batch(100 * round + step, self._told["number"])
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(inputs), targets).backward()
            if step == self._told["local"] - 1:
                self._end_round(round, vetoes)
            self.optimizer.step()
            self._inner_step = (step + 1) % self._told["local"]
            if round == self._told["saves"] and self._inner_step == 1:
                self.save_checkpoint()
        counts = self.manager.current_step() > round
        say(**{"step" if counts else "refused": self.manager.current_step()}, **self.what_it_has())

    def _end_round(self, round: int, vetoes: bool) -> None:
        if vetoes:
            self._veto()
        if round == self._told["spoils"]:
            self._told["spoils"] = None
            local(self.model[2].weight).data[0] = torch.inf

    def _veto(self) -> None:
        """In the round that comes."""
        vote = self.manager.should_commit

        def once() -> bool:
            self.manager.should_commit = vote
            self.manager.report_error(RuntimeError("this replica does not take the round"))
            return vote()

        self.manager.should_commit = once

    def what_it_has(self) -> dict[str, str]:
        momenta = {f"{i} {name}": t for i, own in self.inner.state_dict()["state"].items() for name, t in own.items()}
        return {
            "model": hash_of(dict(self.model.named_parameters()) | ({} if self._told["local"] else momenta)),
            "kept": hash_of({"": self._kept()}),
        }

    def _kept(self) -> Tensor:
        """What this rank's memories hold, also where they are in no exchange now."""
        return residuals(self.optimizer.exchange_state()["memories"] or {}, self.model)


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    told = json.loads(sys.argv[2]) | {"port": int(sys.argv[1])}
    say(loaded=True)
    sys.stdin.readline()
    replica, vetoed = Replica(told), False
    while (step := replica.manager.current_step()) < told["steps"]:
        vetoes = step == told["vetoes"] and not vetoed
        vetoed |= vetoes
        (replica.round if told["local"] else replica.step)(vetoes)
        if replica.manager.current_step() == told["saves"] and not told["local"]:
            replica.save_checkpoint()
    say(ended=replica.what_it_has())
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    signal.alarm(150)
    main()
