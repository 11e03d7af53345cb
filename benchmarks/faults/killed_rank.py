"""One rank of `killed.py`: trains with all ranks that are present, and reports its steps in lines of JSON."""

import json
import sys
import time
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.lab.soak.fork_server import serve
from gradwire.lab.soak.rank_messages import report
from gradwire.lab.soak.soaked_model import hash_of

TIMEOUT_S, QUIET_S, PAUSE_S = 20.0, 2.0, 0.01
INPUTS, CLASSES, BATCH, HELD_OUT = 32, 8, 32, 4096


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


class Task:
    """Classification of random vectors, whose classes another network has assigned."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(1000 + seed)
        self._teacher, self._seed = network(16), seed

    def batch(self, step: int, rank: int, count: int = BATCH) -> tuple[Tensor, Tensor]:
        """The batch of this step and rank; no two are equal."""
        generator = torch.Generator().manual_seed((self._seed * 1_000_000 + step) * 16 + rank)
        inputs = torch.randn(count, INPUTS, generator=generator)
        with torch.no_grad():
            return inputs, self._teacher(inputs).argmax(1)

    @torch.no_grad()
    def held_out(self, model: nn.Module) -> float:
        """The loss on vectors that no step trains on."""
        inputs, targets = self.batch(999_999, 0, HELD_OUT)
        return float(nn.functional.cross_entropy(model(inputs), targets))


def train(given: dict) -> None:
    """The recipe in docs/faults.md."""
    task, steps = Task(given["seed"]), given["steps"]
    torch.manual_seed(given["seed"])
    model = network(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    store = dist.TCPStore("127.0.0.1", given["port"], is_master=False, wait_for_workers=False)
    own = dist.PrefixStore(given["job"], store)
    rendezvous = gw.Rendezvous(
        own, at_least=given["at_least"], last_call_timeout=QUIET_S, timeout=timedelta(seconds=TIMEOUT_S), backend="gloo"
    )
    handle, step = None, 0
    while step < steps:
        try:
            rendezvous.meet(handle)
            ddp = DistributedDataParallel(model)
            handle = gw.attach(ddp, gw.TopK(0.05), elastic=True)
            step = rendezvous.resume(handle, optimizer)
            life = handle.from_first(uuid4().hex)
            while step < steps and not (step % 4 == 0 and dist.get_rank() == 0 and rendezvous.newcomers()):
                time.sleep(PAUSE_S)
                inputs, targets = task.batch(step, dist.get_rank())
                optimizer.zero_grad()
                nn.functional.cross_entropy(ddp(inputs), targets).backward()
                optimizer.step()
                step += 1
                parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
                report(step=step, life=life, ranks=dist.get_world_size(), model=hash_of(parameters))
        except RuntimeError as error:
            report(error=str(error))
    report(loss=task.held_out(model))


def main() -> None:
    torch.set_num_threads(1)
    train(json.loads(sys.stdin.readline()))
    sys.stdin.read()  # lives until all have finished: its end would look like a lost rank


if __name__ == "__main__":
    serve(main)
