"""MNIST by ACP-SGD of rank 4, as its authors train it; --data has the four IDX files, plain or .gz.

gradwire download mnist ~/mnist
torchrun --nproc-per-node 4 examples/mnist.py --data ~/mnist  # on a GPU for each rank, or with CUDA_VISIBLE_DEVICES=
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gradwire as gw
from gradwire.lab.workloads.image_files import idx


def network() -> nn.Module:
    convolutions = [nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.Dropout2d()]
    head = [nn.Linear(320, 50), nn.ReLU(), nn.Dropout(), nn.Linear(50, 10)]
    return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), *head)


def main(data: Path, epochs: int, rank: int) -> None:
    gw.init()
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, test = (
        TensorDataset((split.images / 255 - 0.1307) / 0.3081, split.labels) for split in idx(data.expanduser())
    )
    sampler = DistributedSampler(train, seed=42)
    model = network().to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * dist.get_world_size(), momentum=0.5)
    optimizer = gw.DistributedOptimizer(optimizer, compressor=gw.ACPSGD(rank))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(train, batch_size=64, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(place)), targets.to(place))
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x.to(place)).argmax(1).cpu() == y).sum() for x, y in DataLoader(test, batch_size=1000))
    stats = optimizer.handle.stats()
    print(f"accuracy {int(right) / len(test):.4f}, {stats.steps} steps, {stats.ratio:.1f} times fewer bytes")
    optimizer.handle.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rank", type=int, default=4)
    main(**vars(parser.parse_args()))
