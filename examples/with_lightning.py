"""Gradwire under Lightning: a callback that attaches to the strategy's DDP.

torchrun --nproc-per-node 2 examples/with_lightning.py
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gradwire as gw


class Compress(lightning.Callback):
    """Compresses gradients from the first step on."""

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.handle = gw.attach(trainer.strategy.model, gw.TopK(0.1))


class Classifier(lightning.LightningModule):
    """Any module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    data = DataLoader(TensorDataset(torch.randn(512, 32), torch.randint(10, (512,))), batch_size=16)
    compress, model = Compress(), Classifier()
    trainer = lightning.Trainer(
        devices=2, strategy="ddp", max_epochs=1, callbacks=[compress], gradient_clip_val=1.0, accumulate_grad_batches=2,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, data)
    stats = compress.handle.stats()
    checksum = sum(parameter.detach().double().sum() for parameter in model.parameters())
    print(f"{checksum:.12f}, {stats.steps} steps, {stats.dense_bytes / stats.wire_bytes:.1f} times fewer bytes")


if __name__ == "__main__":
    main()
