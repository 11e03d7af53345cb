"""torchrun --nproc-per-node 2 examples/with_accelerate.py: prepare as ever, then compress what `prepare` returned."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradwire as gw
from gradwire.integrations.accelerate import compress

torch.manual_seed(0)
accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = DataLoader(TensorDataset(torch.randn(512, 32), torch.randint(10, (512,))), batch_size=16)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
handle = compress(accelerator, model, gw.TopK(0.1))  # save_state and load_state take its state along
for inputs, targets in data:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print(f"{sum(p.detach().double().sum() for p in model.parameters()):.12f} {handle}")
accelerator.end_training()
