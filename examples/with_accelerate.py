"""Gradwire under Accelerate: prepare as ever, then attach to what `prepare` returned.

torchrun --nproc-per-node 2 examples/with_accelerate.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradwire as gw


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(TensorDataset(torch.randn(512, 32), torch.randint(10, (512,))), batch_size=16)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    handle = gw.attach(model, gw.TopK(0.1))
    for inputs, targets in data:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    stats = handle.stats()
    checksum = sum(parameter.detach().double().sum() for parameter in model.parameters())
    print(f"{checksum:.12f}, {stats.steps} steps, {stats.dense_bytes / stats.wire_bytes:.1f} times fewer bytes")
    accelerator.end_training()


if __name__ == "__main__":
    main()
