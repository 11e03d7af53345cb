"""Megatron-core's distributed optimizer, here on CPUs: float32 against 5 % of each gradient, with residuals.

torchrun --nproc-per-node 2 examples/with_megatron.py
"""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import gradwire as gw
from gradwire.integrations.megatron import attach


class OnCPU(TorchFunctionMode):
    """For CPUs alone: what Megatron makes on "cuda" is made there, and it takes their tensors for a GPU's."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        if function is Tensor.type and len(arguments) == 1:
            return function(*arguments).replace("torch.", "torch.cuda.")
        return function(*arguments, **options | ({"device": "cpu"} if options.get("device") == "cuda" else {}))


def trained(compressor: gw.Compressor) -> tuple[nn.Module, gw.Handle, float]:
    torch.manual_seed(0)
    model, teacher = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)), torch.randn(64, 10)
    config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=1)
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=3e-3, use_distributed_optimizer=True), [ddp])
    handle, losses = attach(ddp, compressor), []
    torch.manual_seed(dist.get_rank())
    for _ in range(100):
        inputs = torch.randn(32, 64)
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), (inputs @ teacher).argmax(1))
        loss.backward()
        ddp.finish_grad_sync()
        optimizer.step()
        losses.append(loss.item())
    return model, handle, sum(losses[-20:]) / 20


dist.init_process_group("gloo")
torch.cuda.current_device = lambda: "cpu"  # for CPUs alone: where Megatron makes its buffers
parallel_state.initialize_model_parallel()
for name, compressor in {"float32": gw.FP32(), "top 5 %": gw.TopK(0.05)}.items():
    with OnCPU():
        model, handle, loss = trained(compressor)
    stats = handle.stats()
    if dist.get_rank() == 0:
        print(f"{name}: {stats.wire_bytes / max(1, stats.steps):,.0f} bytes a step, loss {loss:.2f} at the end")
checksum = sum(parameter.detach().double().sum() for parameter in model.parameters())
print(f"{checksum:.12f}, {stats.steps} steps, {stats.ratio:.1f} times fewer bytes")
dist.destroy_process_group()
