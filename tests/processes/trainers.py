"""Trainings under other people's trainers, that are saved half-way by these trainers, and resumed.

`torchrun tests/processes/trainers.py NAME FOLDER save` trains without a break, keeping a checkpoint, then again from
that: both end in the same weights bit for bit. `... resume`, with any number of ranks, goes on from what another
training kept; its memories add up to what they did when they were saved.
"""

import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradwire as gw

HALF, STEPS = 4, 8
COMPRESSOR = gw.TopK(0.05)
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


class Net(nn.Module):
    """Gives a loss as transformers' models do; uses its layers in another order than that in which they were made."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.last, self.first = nn.Linear(60, 5), nn.Linear(20, 60)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.last(self.first(inputs).relu())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def examples() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"inputs": torch.randn(20, generator=generator), "labels": torch.randint(5, (), generator=generator)}
        for _ in range(8 * STEPS * WORLD)
    ]


def residual_of(handle: gw.Handle) -> Tensor:
    """The sum over the ranks of what memories hold."""
    state = handle.state_dict()
    total = torch.cat([tensor.flatten() for key, tensor in sorted(state.items()) if key.endswith("//residual")])
    if dist.is_initialized():
        dist.all_reduce(total)
    return total


def watch(file: Path) -> list[Tensor]:
    """Has the first save of all ranks leave there what memories held, and every load compared with that; gives what
    was loaded."""
    loaded: list[Tensor] = []
    load, save = gw.Handle.load_state_dict, gw.Handle.state_dict

    def load_state_dict(handle, state):
        load(handle, state)
        loaded.append(residual_of(handle))
        torch.testing.assert_close(loaded[-1], torch.load(file))

    def state_dict(handle, all_ranks=False):
        state = save(handle, all_ranks)
        if all_ranks and not file.exists():
            total = residual_of(handle)
            assert total.any()
            if dist.get_rank() == 0:
                torch.save(total, file)
            dist.barrier()
        return state

    gw.Handle.load_state_dict, gw.Handle.state_dict = load_state_dict, state_dict
    return loaded


def with_accelerate(folder: Path, model: Net, resume: bool) -> None:
    from accelerate import Accelerator

    from gradwire.integrations.accelerate import compress

    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ddp, optimizer = accelerator.prepare(model, optimizer)
    compress(accelerator, ddp, COMPRESSOR)
    if resume:
        accelerator.load_state(str(folder))
    batches = torch.utils.data.DataLoader(examples(), batch_size=8)
    mine = list(batches)[accelerator.process_index :: accelerator.num_processes]
    for step in range(HALF if resume else 0, STEPS):
        accelerator.backward(ddp(**mine[step])["loss"])
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == HALF:
            accelerator.save_state(str(folder))


def with_lightning(folder: Path, model: Net, resume: bool, as_strategy: bool = False) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from gradwire.integrations.lightning import CompressedDDP, GradientCompression

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch, index):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            """Without the optimizer's in one step, whose gradients Lightning then zeroes."""
            if (epoch, batch_idx) == (0, 1):
                optimizer_closure()
            else:
                optimizer.step(closure=optimizer_closure)

    data = examples()[: 8 * HALF * WORLD]
    compress, keep = GradientCompression(COMPRESSOR), ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
    trainer = lightning.Trainer(
        devices=WORLD, strategy=CompressedDDP(compress) if as_strategy else "ddp", accelerator="cpu", max_epochs=2,
        logger=False, enable_progress_bar=False, callbacks=[keep] if as_strategy else [compress, keep],
        enable_model_summary=False,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    trainer.fit(Module(), loader, ckpt_path=str(folder / "epoch=0.ckpt") if resume else None)
    assert compress.handle
    assert (compress.handle.stats().wire_bytes > 0) == (WORLD > 1)
    assert compress.handle.stats().skipped == (WORLD > 1 and not resume)


def with_huggingface(folder: Path, model: Net, resume: bool) -> None:
    from transformers import Trainer, TrainingArguments

    from gradwire.integrations.huggingface import CompressionCallback

    arguments = TrainingArguments(
        str(folder), max_steps=STEPS, save_steps=HALF, use_cpu=True, report_to=[], disable_tqdm=True,
        per_device_train_batch_size=8, learning_rate=0.01, logging_strategy="no",
        ddp_backend="gloo" if WORLD > 1 else None,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=examples())
    trainer.add_callback(CompressionCallback(trainer, COMPRESSOR))
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{HALF}") if resume else None)


TRAININGS = {
    "accelerate": with_accelerate, "lightning": with_lightning, "huggingface": with_huggingface,
    "lightning_strategy": partial(with_lightning, as_strategy=True),
}  # fmt: skip


def weights_of(name: str, folder: Path, seed: int, resume: bool) -> Tensor:
    model = Net(seed)
    TRAININGS[name](folder, model, resume)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main(name: str, home: str, phase: str) -> None:
    torch.set_num_threads(1)
    folder = Path(home)
    loaded = watch(folder / "residual.pt")
    if phase == "resume":
        weights_of(name, folder, 1, resume=True)
    else:
        whole = weights_of(name, folder, 0, resume=False)
        assert not loaded
        torch.testing.assert_close(weights_of(name, folder, 1, resume=True), whole, rtol=0, atol=0)
    assert len(loaded) == 1


if __name__ == "__main__":
    main(*sys.argv[1:])
