"""Two workers of Ray Train: `python examples/with_ray.py`."""

import tempfile
from pathlib import Path

import torch
from ray import train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from gradwire.integrations.ray import compress, keep


def work() -> None:
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)))
    handle = compress(model, "topk:0.01")  # loads what it had, where Ray starts the workers again
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        torch.nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.randint(10, (32,))).backward()
        optimizer.step()
        optimizer.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        keep(handle, folder)  # on all workers; your model and optimizer go beside it
        train.report({}, checkpoint=Checkpoint(folder) if train.get_context().get_world_rank() == 0 else None)
    print(handle)


if __name__ == "__main__":
    where = RunConfig(storage_path=str(Path("ray").resolve()))
    TorchTrainer(work, scaling_config=ScalingConfig(num_workers=2), run_config=where).fit()
