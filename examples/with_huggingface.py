"""torchrun --nproc-per-node 2 examples/with_huggingface.py: a callback; checkpoints take its state along."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import gradwire as gw
from gradwire.integrations.huggingface import CompressionCallback

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2))
data = [{"input_ids": line, "labels": line} for line in torch.randint(128, (128, 32))]
arguments = TrainingArguments("gpt2", max_steps=8, per_device_train_batch_size=4, use_cpu=not torch.cuda.is_available())
trainer = Trainer(model, arguments, train_dataset=data)
compress = CompressionCallback(trainer, gw.TopK(0.1))
trainer.add_callback(compress)
trainer.train()
print(f"{sum(p.detach().double().sum() for p in model.parameters()):.12f} {compress.handle}")
