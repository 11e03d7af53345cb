"""One rank of a training that others are lost from and come to, as test_elastic.py starts it. Says in lines of JSON
what it does, and begins when a line comes.

Every step is held against the law: what memories held, and the gradients, are what was sent and what they hold now.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.frontends.checkpoints.rendezvous import Rendezvous
from gradwire.frontends.values import local
from gradwire.runtime.meeting import Meeting

torch.set_num_threads(1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.BatchNorm1d(60), nn.Linear(60, 5))


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(8, 20, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def hash_of(tensors: dict[str, Tensor]) -> str:
    digest = sha256()
    for name in sorted(tensors):
        digest.update(
            name.encode() + local(tensors[name]).detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:16]


def residuals(state: Mapping[str, Tensor], model: nn.Module) -> Tensor:
    """What this rank's memories hold in a state."""
    return flat(state.get(f"{name}//residual", torch.zeros(local(p).shape)) for name, p in model.named_parameters())


def gradients(model: nn.Module) -> Tensor:
    return flat(local(p.grad) for p in model.parameters())


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def plan() -> gw.Plan:
    """Something of everything."""
    kept = gw.Residual()
    return gw.Plan(
        (
            gw.Group(("4.weight", "4.bias"), gw.TopK(0.05), kept, gw.AllGather()),
            gw.Group(("3.weight", "3.bias"), gw.FP32(), gw.NoMemory(), gw.AllReduce()),
            gw.Group(("2.weight",), gw.PowerSGD(2), kept, gw.AllReduce()),
            gw.Group(("2.bias",), gw.Quantized(4), kept, gw.ScatterReduce()),
            gw.Group(("0.weight",), gw.ACPSGD(2), kept, gw.AllReduce()),
            gw.Group(("0.bias",), gw.TopK(0.1), kept, gw.OkTopk()),
        )
    )


class Training:
    """A model that is trained with one front end, on the ranks that are there."""

    def __init__(self, front_end: str, seed: int) -> None:
        self.model, self.front_end, self.seed = network(), front_end, seed
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def begin(self) -> gw.Handle:
        if self.front_end == "ddp":
            self.trained: nn.Module = DistributedDataParallel(self.model, bucket_cap_mb=0.01)
            self.optimizer: Any = self.inner
            return gw.attach(self.trained, plan(), elastic=True, seed=self.seed)
        self.trained = self.model
        self.optimizer = gw.DistributedOptimizer(self.inner, self.model, plan(), elastic=True, seed=self.seed)
        return self.optimizer.handle

    def step(self, handle: gw.Handle, number: int) -> None:
        inputs, targets = batch(number)
        alone = network()
        alone.load_state_dict(self.model.state_dict())
        nn.functional.cross_entropy(alone(inputs), targets).backward()
        before = residuals(handle.state_dict(), self.model)
        self.inner.zero_grad()
        nn.functional.cross_entropy(self.trained(inputs), targets).backward()
        self.optimizer.step()
        sent = before + gradients(alone) / dist.get_world_size() - residuals(handle.state_dict(), self.model)
        dist.all_reduce(sent)
        torch.testing.assert_close(sent, gradients(self.model), rtol=1e-3, atol=1e-5)


def dies_on_its_way_to_a_meeting(rank: int, which: int) -> None:
    """Kills this process when it is that rank and asks for meeting number `which`, counted from a loss on."""
    gather, lost, asked = Meeting.gather, Rendezvous._leave, list[int]()

    def leave(self: Rendezvous, handle: gw.Handle) -> None:
        lost(self, handle)
        asked.append(0)

    def ask(self: Meeting, said: Any, patience_s: float | None = None) -> Any:
        if asked and dist.get_rank() == rank:
            asked[-1] += 1
            if asked == [which]:
                os.kill(os.getpid(), signal.SIGKILL)
        return gather(self, said, patience_s)

    Rendezvous._leave, Meeting.gather = leave, ask


def fails_in_backward(model: nn.Module, generation: int) -> None:
    """In each generation another rank does, when its first gradients are under way and others have yet to come."""
    if generation % dist.get_world_size() != dist.get_rank():
        return
    steps = count(1)

    def fail(gradient: Tensor) -> None:
        if next(steps) == 3 + generation:
            hook.remove()
            raise RuntimeError("a fault of this rank's own")

    hook = model[0].weight.register_hook(fail)


def main(port: str, text: str) -> None:
    told = json.loads(text)
    if "dies" in told:
        dies_on_its_way_to_a_meeting(*told["dies"])
    training = Training(told["front_end"], told.get("seed", 0))
    store = dist.TCPStore("127.0.0.1", int(port), is_master=False, wait_for_workers=False)
    rendezvous = gw.Rendezvous(
        store,
        at_least=told["at_least"],
        last_call_timeout=told["last_call_timeout"],
        timeout=timedelta(seconds=told["timeout_s"]),
        backend="gloo",
    )
    handle, step, generation = None, 0, 0
    say(ready=True)
    sys.stdin.readline()
    while step < told["steps"]:
        try:
            rendezvous.meet(handle)
            handle = training.begin()
            step = rendezvous.resume(handle, training.inner)
            generation += 1
            if generation <= told.get("faults", 0):
                fails_in_backward(training.model, generation)
            say(
                resumed=step,
                ranks=dist.get_world_size(),
                kept=hash_of({"kept": residuals(handle.state_dict(), training.model)}),
            )
            while step < told["steps"] and not (step % 4 == 0 and dist.get_rank() == 0 and rendezvous.newcomers()):
                training.step(handle, step)
                step += 1
                kept = hash_of({"kept": residuals(handle.state_dict(), training.model)})
                say(step=step, model=hash_of(dict(training.model.named_parameters())), kept=kept)
                time.sleep(told["pause_s"])
        except RuntimeError as error:
            say(error=str(error))
    everything = dict(training.model.named_parameters()) | {
        f"{number} {name}": value
        for number, values in training.inner.state_dict()["state"].items()
        for name, value in values.items()
    }
    say(ended=hash_of(everything), ranks=dist.get_world_size())
    with suppress(RuntimeError):
        dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    signal.alarm(150)
    main(*sys.argv[1:])
