"""Gradwire under Lightning: a callback for the strategy "ddp"."""

from typing import Any

import lightning
from torch import nn

from gradwire.checkpoint import StateDict
from gradwire.compressors import Compressor
from gradwire.frontends import Handle, attach
from gradwire.plans import Plan


class Compress(lightning.Callback):
    """Compresses gradients from the start of `fit`; Lightning's checkpoints take the state along. The `options` are
    those of `gradwire.attach`, which says what it raises. `handle` is there once training has started."""

    def __init__(self, compressor: Compressor | Plan | str | None = None, **options: Any) -> None:
        self.handle: Handle | None = None
        self._compressor, self._options = compressor, options
        self._model: nn.Module | None = None
        self._loaded: StateDict = {}

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Attaches to the strategy's model, which there is by now, and loads what a checkpoint had."""
        model = trainer.strategy.model
        assert model is not None
        if model is not self._model:
            self._options.setdefault("scaler", getattr(trainer.precision_plugin, "scaler", None))
            self.handle = attach(model, self._compressor, **self._options)
            self._model = model
        if self._loaded and self.handle:
            self.handle.load_state_dict(self._loaded)
        self._loaded = {}

    def state_dict(self) -> dict[str, Any]:
        """Of all ranks, all of which Lightning has come here."""
        return self.handle.state_dict(all_ranks=True) if self.handle else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning reads checkpoints before there is a DDP."""
        self._loaded = state_dict
