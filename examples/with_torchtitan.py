"""torchtitan's own trainer under HSDP: its Llama in float32, dense inside of 2 hosts, compressed between them.

torchrun --nproc-per-node 4 examples/with_torchtitan.py
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools import utils

import gradwire as gw

if not torch.cuda.is_available():  # torchtitan asks a GPU for these; to be said before the rest of it is imported
    nothing = ("set_device", "reset_peak_memory_stats", "empty_cache", "synchronize")
    answers = {
        "current_device": 0, "get_device_name": "CPU", "memory_stats": {},
        "get_device_properties": SimpleNamespace(total_memory=1),
    } | dict.fromkeys(nothing)  # fmt: skip
    utils.device_type = "cpu"
    utils.device_module = SimpleNamespace(**{name: lambda *_, it=it: it for name, it in answers.items()})

from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer


class Compressed(Trainer):
    def __init__(self, config):
        super().__init__(config)
        (model,) = self.model_parts
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        self.handle = gw.attach(model, gw.TopK(0.05))


class Tokens:
    def __init__(self, dp_rank, seq_len, local_batch_size, **_):
        self.shape, self.generator = (local_batch_size, seq_len + 1), torch.Generator().manual_seed(dp_rank)

    def __iter__(self):
        while True:
            tokens = torch.randint(64, self.shape, generator=self.generator)
            yield {"input": tokens[:, :-1]}, tokens[:, 1:]


def configured() -> Trainer.Config:
    config = llama3_debugmodel()
    for _, _, block, name in list(config.model_spec.model.traverse(FlexAttention.Config)):
        setattr(block, name, ScaledDotProductAttention.Config())  # which trains on CPUs
    config.parallelism.data_parallel_replicate_degree, config.parallelism.spmd_backend = 2, "partial_dtensor"
    config.loss = config.loss.loss_fn  # the wrapper runs backward in chunks, each of which would be a step
    config.training.steps, config.training.seq_len, config.training.local_batch_size = 8, 64, 4
    config.training.mixed_precision_param, config.training.disable_cuda_graphs = "float32", True
    config.tokenizer = SimpleNamespace(build=lambda tokenizer_path: None)
    config.dataloader, config.activation_checkpoint = SimpleNamespace(build=Tokens), None
    config.validator.enable = False
    return config


if __name__ == "__main__":
    trainer = Compressed(configured())
    batches = trainer.batch_generator(trainer.dataloader)
    while trainer.should_continue_training():  # trainer.train(), but for the set_timeout that torch 2.13 lacks
        trainer.step += 1
        trainer.train_step(batches)
    total = sum(parameter.full_tensor().detach().double().sum() for parameter in trainer.model_parts[0].parameters())
    print(f"{total:.12f} {trainer.handle}")
    trainer.close()
    dist.destroy_process_group()
