"""DeepSpeed's ZeRO 1, here on CPUs: float32 against 5 % of each gradient, with residuals.

torchrun --nproc-per-node 2 examples/with_deepspeed.py
"""

import os

os.environ["DS_ACCELERATOR"] = "cpu"  # before DeepSpeed looks for GPUs

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import gradwire as gw
from gradwire.integrations.deepspeed import attach

ADAM = {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": True}}
CONFIG = {"train_micro_batch_size_per_gpu": 32, "zero_optimization": {"stage": 1}, "optimizer": ADAM}


def trained(compressor: gw.Compressor) -> tuple[nn.Module, gw.Handle, float]:
    torch.manual_seed(0)
    model, teacher = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)), torch.randn(64, 10)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    handle, losses = attach(engine, compressor), []
    torch.manual_seed(dist.get_rank())
    for _ in range(100):
        inputs = torch.randn(32, 64)
        loss = nn.functional.cross_entropy(engine(inputs), (inputs @ teacher).argmax(1))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return model, handle, sum(losses[-20:]) / 20


dist.init_process_group("gloo")
for name, compressor in {"float32": gw.FP32(), "top 5 %": gw.TopK(0.05)}.items():
    model, handle, loss = trained(compressor)
    stats = handle.stats()
    if dist.get_rank() == 0:
        print(f"{name}: {stats.wire_bytes / max(1, stats.steps):,.0f} bytes a step, loss {loss:.2f} at the end")
checksum = sum(parameter.detach().double().sum() for parameter in model.parameters())
print(f"{checksum:.12f}, {stats.steps} steps, {stats.ratio:.1f} times fewer bytes")
dist.destroy_process_group()
