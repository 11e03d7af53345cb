"""torchrun --nproc-per-node 2 examples/with_lightning.py: a callback; checkpoints take its state along."""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradwire as gw
from gradwire.integrations.lightning import GradientCompression


class Classifier(lightning.LightningModule):  # any module
    def configure_model(self):
        self.net = nn.Linear(32, 10)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(0)
data = DataLoader(TensorDataset(torch.randn(512, 32), torch.randint(10, (512,))), batch_size=16)
compress, model, ranks = GradientCompression(gw.TopK(0.1)), Classifier(), int(os.environ.get("WORLD_SIZE", "1"))
trainer = lightning.Trainer(devices=ranks, strategy="ddp", max_epochs=1, callbacks=[compress])
trainer.fit(model, data)
print(f"{sum(p.detach().double().sum() for p in model.parameters()):.12f} {compress.handle}")
