"""Four real ranks that share the card: they talk over gloo, and their payloads are staged on the host.

Each configuration trains a small model a few steps; all ranks have to end with the same parameters, and with a smaller
loss. In the last one a rank is killed: the others have to end with an error that names the loss.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from benchmarks.gpu.device import Device
from benchmarks.gpu.rows import Rows
from benchmarks.shared.provenance import ROOT
from gradwire.lab.network.nsenter import die_with

RANKS, STEPS, WIDTH = 4, 30, 512
WAYS: dict[str, dict[str, Any]] = {
    "TopK 1%": {"compressor": gw.TopK(0.01)},
    "PowerSGD r4": {"compressor": gw.PowerSGD(4)},
    "4 bits, ScatterReduce": {"compressor": gw.Quantized(4), "communicator": gw.ScatterReduce()},
    "local steps, TopK 1%": {"compressor": gw.TopK(0.01), "local": True},
    "a rank is killed": {"compressor": gw.TopK(0.01), "dies": 1},
}


def run(rows: Rows, device: Device) -> None:
    """The section `shared`."""
    ranks = device.size(RANKS, 2)
    for name in rows.each([*WAYS][: device.size(len(WAYS), 1)]):
        with rows.attempt(name, most_s=90), tempfile.TemporaryDirectory() as folder:
            ended = [process.communicate(timeout=80) for process in start(name, ranks, device, Path(folder))]
            said = [json.loads(out) for out, _ in ended if out.strip()]
            same = len({one.get("sum") for one in said}) == 1
            if "dies" in WAYS[name]:
                ok = len(said) == ranks - 1 and all("error" in one for one in said)
            else:
                ok = len(said) == ranks and same and all(one["last"] < one["first"] for one in said)
            rows.add("shared card", what=name, ok=ok, same=same, said=said[:1], errors=[err[-300:] for _, err in ended])


def start(name: str, ranks: int, device: Device, folder: Path) -> list["subprocess.Popen[str]"]:
    """The processes of all ranks."""
    command = [sys.executable, "-m", __name__, name, device.device.type, str(folder / "store")]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    return [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(os.getpid())], env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes
        )
        for rank in range(ranks)
    ]


def train(device: torch.device, dies: int | None = None, local: bool = False, **options: Any) -> dict:
    """The first and the last loss of this rank, and a sum that tells parameters apart to the bit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8))
    model, rank = model.to(device), dist.get_rank()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05)
    wrapped: nn.Module = model
    if local:
        optimizer = gw.LocalSteps(optimizer, model, inner_steps=5, **options)
    else:
        wrapped = DistributedDataParallel(model)
        gw.attach(wrapped, **options)
    generator, losses = torch.Generator().manual_seed(rank), []
    aim = torch.randn(64, 8, generator=torch.Generator().manual_seed(7))
    for step in range(STEPS):
        if rank == dies and step == STEPS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(32, 64, generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(wrapped(x.to(device)), (x @ aim).to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    values = torch.cat([p.detach().flatten() for p in model.parameters()]).view(torch.int32).long()
    return {"first": losses[0], "last": losses[-1], "sum": int(values.sum())}


def main() -> None:
    """One rank."""
    name, kind, store, rank, ranks, parent = sys.argv[1:]
    die_with(int(parent))
    device = Device.of(kind, tiny=True).device
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks))
    try:
        said = train(device, **WAYS[name])
    except RuntimeError as error:
        said = {"error": str(error)[:300]}
    print(json.dumps(said), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
