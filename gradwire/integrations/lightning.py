"""Gradwire under Lightning: a callback for the strategy "ddp", or a strategy that includes it."""

import logging
from typing import Any

import lightning
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from gradwire.checkpoint import StateDict
from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.integrations.framework import attach_whole
from gradwire.plans import Plan

_log = logging.getLogger("gradwire")


class GradientCompression(lightning.Callback):
    """Callback that compresses gradients in `fit`; Lightning's checkpoints take the state along. Under automatic
    optimization a step is taken back, as by `handle.skip()`, where the module's `optimizer_step` calls the closure and
    leaves the optimizer's step out, if that is one of torch's. The `options` are those of `gradwire.attach`, which says
    what it raises; `handle` is there once training has started."""

    def __init__(self, compressor: Compressor | Plan | str | None = None, **options: Any) -> None:
        self.handle: Handle | None = None
        self._compressor, self._options = compressor, options
        self._model: nn.Module | None = None
        self._trainer: lightning.Trainer | None = None
        self._stage, self._unused = "", False
        self._watched: list[Any] = []
        self._loaded: StateDict = {}

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Notes what begins, before a checkpoint is read. A new training has nothing of the one before."""
        self._trainer, self._stage = trainer, stage
        if stage == "fit":
            self._end()
            self._loaded = {}

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Attaches to the strategy's model, which exists by now, and loads a checkpoint's state."""
        model = trainer.strategy.model
        assert model is not None
        # once for each model: searches begin several times in one training
        if model is not self._model:
            self._end()
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            self.handle = attach_whole(model, self._compressor, self._options, scaler)
            self._model = model
        # the state of a checkpoint that was loaded before there was a job
        if self._loaded and self.handle:
            self.handle.load_state_dict(self._loaded)
        elif trainer.ckpt_path and trainer.global_step and trainer.is_global_zero:
            _log.warning("%s has nothing of Gradwire; training goes on without its memories", trainer.ckpt_path)
        self._loaded = {}

    def on_after_backward(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Notes that there are gradients for a step, unless they only accumulate."""
        self._unused = pl_module.automatic_optimization and getattr(self._model, "require_backward_grad_sync", False)
        # optimizers may be others than when the fit began; one that is not torch's does not say that it stepped
        optimizers: list[Any] = [*trainer.optimizers]
        for optimizer in optimizers:
            if not hasattr(optimizer, "register_step_post_hook"):
                self._unused = False
            elif optimizer not in self._watched:
                optimizer.register_step_post_hook(self._stepped)
        self._watched = optimizers

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Takes back the step that the optimizer did not take: Lightning zeroes its gradients."""
        if self._unused and self.handle:
            self.handle.skip()
        self._unused = False

    def _end(self) -> None:
        """Ends the job before, if there is one, which has the options' controller."""
        if self.handle:
            self.handle.detach()
        self.handle = None
        self._model = None

    def _stepped(self, *args: Any) -> None:
        self._unused = False

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, which Lightning has all call this. Nothing after `detach()`; and, with a warning,
        where the job has failed, or an interrupted training has left ranks in different steps: the model is in the same
        checkpoint."""
        if not self.handle or self.handle.detached:
            return self._loaded
        try:
            return self.handle.state_dict(all_ranks=True)
        except (RuntimeError, ValueError) as error:
            # of a training that goes on it must not be lost unnoticed
            if isinstance(error, ValueError) and not (self._trainer and self._trainer.interrupted):
                raise
            _log.warning("the checkpoint has nothing of Gradwire, whose memories begin anew from it: %s", error)
            return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state, or keeps it until there is a DDP: Lightning reads the checkpoint of a training before. That
        of an evaluation is not one to train on from, and a detached job loads nothing."""
        if self._stage == "fit" and self.handle:
            if not self.handle.detached:
                self.handle.load_state_dict(state_dict)
        elif self._stage == "fit":
            self._loaded = state_dict


class CompressedDDP(DDPStrategy):
    """Lightning's DDP with compression: `Trainer(strategy=CompressedDDP(GradientCompression(gw.TopK(0.01))))`.
    The `options` are those of `DDPStrategy`."""

    def __init__(self, compress: GradientCompression, **options: Any) -> None:
        super().__init__(**options)
        self.compress = compress

    def connect(self, model: lightning.LightningModule) -> None:
        """Has the callback first among the trainer's, before checkpoints are read."""
        super().connect(model)
        trainer: Any = model.trainer
        if self.compress not in trainer.callbacks:
            trainer.callbacks.insert(0, self.compress)
