"""A rank of which one dies at a collective, and the others say whether what they would save then is a whole step's:
`python -m tests.processes.lost_steps FRONT_END COLLECTIVE`."""

import io
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.checkpoint import unpack

VICTIM = 1
OPTIONS = {"groups": gw.groups.of(megabytes=1e-3)}


def of_ddp(model: nn.Module) -> Any:
    ddp = DistributedDataParallel(model)
    return ddp, torch.optim.Adam(model.parameters(), 0.01), gw.attach(ddp, gw.TopK(0.1), **OPTIONS)


def of_optimizer(model: nn.Module) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    optimizer = gw.DistributedOptimizer(optimizer, model, gw.TopK(0.1), **OPTIONS)
    return model, optimizer, optimizer.handle


def of_shards(model: nn.Module) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return model, optimizer, gw.attach(model, gw.TopK(0.1), mesh=mesh, **OPTIONS)


FRONT_ENDS = {"DDP": of_ddp, "optimizer": of_optimizer, "FSDP2": of_shards}


def die_at(collective: int) -> None:
    """Kills this process when it starts so many collectives; half of the time that one is under way already."""
    start, started = gw.ProcessGroup.start, iter(range(1 << 30))

    def dying(self: gw.ProcessGroup, op: Any) -> Any:
        number = next(started)
        if number == collective and collective % 2:
            start(self, op)
        if number == collective:
            os.kill(os.getpid(), signal.SIGKILL)
        return start(self, op)

    gw.ProcessGroup.start = dying


def whole(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def saved(model: nn.Module, optimizer: torch.optim.Optimizer, handle: gw.Handle) -> dict[str, Any]:
    """As it comes back from a file."""
    state = optimizer.state_dict()["state"]
    numbers = {f"{p}/{name}": whole(t) for p, own in state.items() for name, t in own.items()}
    parameters = {name: whole(p.detach()) for name, p in model.named_parameters()}
    file = io.BytesIO()
    torch.save({**parameters, **numbers, "gradwire": handle.state_dict()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    memories = [{k: t for k, t in each["gradwire"].items() if "//" in k} for each in (one, other)]
    flat = [
        {**each, **memory, "gradwire": torch.zeros(())} for each, memory in zip((one, other), memories, strict=True)
    ]
    return flat[0].keys() == flat[1].keys() and all(torch.equal(flat[0][key], flat[1][key]) for key in flat[0])


def main(front_end: str, collective: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 20))
    forward, optimizer, handle = FRONT_ENDS[front_end](model)
    if dist.get_rank() == VICTIM:
        die_at(int(collective))
    history = [saved(model, optimizer, handle)]
    try:
        while True:
            optimizer.zero_grad()
            (forward(torch.randn(2, 20)) ** 2).sum().backward()
            optimizer.step()
            history.append(saved(model, optimizer, handle))
    except RuntimeError as error:
        now = saved(model, optimizer, handle)
        step = unpack(now["gradwire"]).step
        print(f"{step > 1} {equal(now, history[step])} {error}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
