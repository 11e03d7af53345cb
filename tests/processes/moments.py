"""Every call of a handle at every moment of a step, with DDP and with sharded replicas, over gloo.

`pytest tests/processes/test_moments.py` runs them; SCHEDULES=2000 for a long run.
"""

import os
import traceback
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from tests.processes.scenarios import scenario
from tests.support.moments import CALLS, Log, Make, Network, OfGradients, Trained, Training, check, dense_of

FIRST, SCHEDULES = int(os.environ.get("FIRST", "0")), int(os.environ.get("SCHEDULES", "8"))


def of_ddp(rank: int, begins: gw.Plan | gw.TopK, unused: bool) -> Trained:
    model = Network()
    ddp = DistributedDataParallel(model, find_unused_parameters=unused, bucket_cap_mb=0.0002)
    handle = gw.attach(ddp, begins, dense=dense_of(begins))
    return OfGradients(model, ddp, handle, torch.optim.SGD(model.parameters(), lr=0.05))


def of_shards(mesh: DeviceMesh, rank: int, begins: gw.Plan | gw.TopK, unused: bool) -> Trained:
    model = Network()
    for layer in model.layers[:2]:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    handle = gw.attach(model, begins, mesh=mesh, find_unused_parameters=unused, dense=dense_of(begins))
    return OfGradients(model, model, handle, torch.optim.SGD(model.parameters(), lr=0.05))


def drive(make: Make, **options: Any) -> None:
    for seed in range(FIRST, FIRST + SCHEDULES):
        logs: list[Log | str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(logs, trained(seed, make, options))
        if errors := [log for log in logs if not isinstance(log, Log)]:
            raise AssertionError(f"schedule {seed}: {errors}")
        check([log for log in logs if isinstance(log, Log)])


def trained(seed: int, make: Make, options: dict[str, Any]) -> Log | str:
    """This rank's log; or what went wrong."""
    try:
        training = Training(seed, dist.get_rank(), dist.get_world_size(), make, **options)
        log = training.run()
        training.handle.detach()
        return log
    except Exception:
        return traceback.format_exc()


@scenario(2)
def calls_at_any_moment_with_ddp() -> None:
    drive(of_ddp, native=True, calls=[*CALLS, "stateful"])


@scenario(2)
def calls_at_any_moment_with_sharded_replicas() -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    calls = [call for call in CALLS if call != "state_dict(all_ranks)"]  # shards have none
    drive(partial(of_shards, mesh), calls=[*calls, "stateful"], sharded=True)
