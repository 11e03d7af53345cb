"""Trainings under Ray Train: `python tests/processes/with_ray.py FOLDER`.

Two workers train without a break, then two of which one fails: Ray starts both again from the checkpoint, and they end
in the same weights bit for bit. Then three go on from that checkpoint; memories add up to what was kept.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import gradwire as gw
from gradwire.integrations.ray import compress, keep

HALF, FAILS, STEPS = 4, 6, 8


def residual_of(handle: gw.Handle) -> torch.Tensor:
    """The sum over the ranks of what memories hold."""
    state = handle.state_dict()
    total = torch.cat([tensor.flatten() for key, tensor in sorted(state.items()) if key.endswith("//residual")])
    dist.all_reduce(total)
    return total


def work(config: dict[str, Any]) -> None:
    """One worker's training. `fails` is a file that is there once rank 1 has failed, `kept` a checkpoint."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, world = train.get_context().get_world_rank(), train.get_context().get_world_size()
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(20, 60), torch.nn.ReLU(), torch.nn.Linear(60, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept = Checkpoint(config["kept"]) if config["kept"] else train.get_checkpoint()
    handle = compress(model, gw.TopK(0.05), checkpoint=kept)
    first = 0
    if kept:
        with kept.as_directory() as folder:
            saved = torch.load(Path(folder, "rest.pt"))
        torch.testing.assert_close(residual_of(handle), saved["residual"])
        assert saved["residual"].any()
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    for step in range(first, STEPS):
        if step == FAILS and config["fails"] and rank == 1 and not (failed := Path(config["fails"])).exists():
            failed.touch()
            raise RuntimeError("a worker fails")
        inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(step * world + rank))
        torch.nn.functional.cross_entropy(model(inputs), torch.arange(8) % 5).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == HALF and world == 2:
            report(handle, model, optimizer, step + 1, rank)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    if rank == 0:
        torch.save(weights, config["weights"])


def report(handle: gw.Handle, model: Any, optimizer: Any, step: int, rank: int) -> None:
    total = residual_of(handle)
    with tempfile.TemporaryDirectory() as folder:
        keep(handle, folder)
        rest = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "residual": total}
        torch.save(rest, Path(folder, "rest.pt"))
        train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)


def fit(home: Path, name: str, workers: int, *, fails: bool = False, kept: str = "") -> tuple[torch.Tensor, str]:
    """The weights at the end, and the last checkpoint's folder."""
    weights = home / f"{name}.pt"
    config = {"fails": str(home / "failed") if fails else "", "kept": kept, "weights": str(weights)}
    run = RunConfig(name=name, storage_path=str(home), failure_config=FailureConfig(max_failures=1 if fails else 0))
    trainer = TorchTrainer(
        work, train_loop_config=config, scaling_config=ScalingConfig(num_workers=workers), run_config=run
    )
    result = trainer.fit()
    return torch.load(weights), result.checkpoint.path if result.checkpoint else ""


def main(home: Path) -> None:
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100_000_000)
    whole, kept = fit(home, "whole", 2)
    broken, _ = fit(home, "broken", 2, fails=True)
    assert (home / "failed").exists()
    torch.testing.assert_close(broken, whole, rtol=0, atol=0)
    fit(home, "three", 3, kept=kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
