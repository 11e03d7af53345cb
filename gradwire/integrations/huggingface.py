"""Gradwire under the Trainer of transformers: a callback."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import transformers
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.frontends.values import is_sharded
from gradwire.integrations.first_rank import keep_file, load_read, read_file
from gradwire.integrations.framework import attach_whole, check_fits, check_has
from gradwire.plans import Plan
from gradwire.torch_private.compiled import uncompiled
from gradwire.torch_private.fully_shard import is_fsdp

OF_TRAINER, TRIED = ("_get_output_dir", "_save_checkpoint", "train"), "5.23.0"
UNWRAPPED = (
    "this Trainer has not wrapped its model, and ranks would train apart, as where evaluate() or predict() came before "
    "train(); use TrainingArguments(eval_on_start=True) in their place, or a Trainer with a new model"
)


class CompressionCallback(TrainerCallback):
    """Callback that compresses gradients: `trainer.add_callback(CompressionCallback(trainer, gw.TopK(0.01)))`.

    Every checkpoint gets a file gradwire.pt, which is read where training resumes from it. The `options` are those of
    `gradwire.attach`, which says what it raises. `handle` is there once training has started, which raises ValueError,
    on all ranks, where the file cannot be read."""

    def __init__(self, trainer: Trainer, compressor: Compressor | Plan | str | None = None, **options: Any) -> None:
        self.handle: Handle | None = None
        self._trainer = trainer
        self._compressor = compressor
        self._options = options
        self._model: nn.Module | None = None
        self._from: str | None = None
        # the Trainer tells no callback from where it resumes, nor of every checkpoint, nor where it lies
        check_has(trainer, OF_TRAINER, f"transformers {transformers.__version__}", TRIED)
        own: Any = trainer
        self._train, self._save_checkpoint = trainer.train, own._save_checkpoint
        own.train, own._save_checkpoint = self._noting_checkpoint, self._saving_memories

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attaches to the model as the trainer has wrapped it, and loads the checkpoint's state."""
        model = self._trainer.model_wrapped
        assert model is not None
        # a trainer may train several times; one handle for each model
        if model is not self._model:
            if self.handle:
                # the job before has the options' controller
                self.handle.detach()
            check_fits({UNWRAPPED: self._trains_whole(model)})
            scaler = self._trainer.accelerator.scaler
            self.handle, self._model = attach_whole(model, self._compressor, self._options, scaler), model
        # the state of the checkpoint that training resumes from
        if self._from and self.handle:
            load_read(self.handle, state.is_world_process_zero, partial(read_file, self._from), self._from)

    def _trains_whole(self, model: nn.Module) -> bool:
        """Whether each of several ranks trains the model by itself, for nothing wraps it."""
        # FSDP and tensor parallelism are in the model itself
        cut = is_fsdp(model) or self._trainer.is_fsdp_enabled or any(map(is_sharded, model.parameters()))
        whole = uncompiled(model) is self._trainer.model and not cut
        return whole and self._trainer.accelerator.num_processes > 1

    def _noting_checkpoint(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """`trainer.train`, noting the checkpoint it resumes from, which callbacks are not given."""
        # "resume_from_checkpoint=True" means the newest one
        last = get_last_checkpoint(self._trainer.args.output_dir) if resume_from_checkpoint is True else None
        self._from = last or (str(resume_from_checkpoint) if resume_from_checkpoint else None)
        return self._train(resume_from_checkpoint, *args, **kwargs)

    def _saving_memories(self, model: nn.Module, trial: Any) -> None:
        """The trainer's `_save_checkpoint`, and the state of all ranks beside what it has saved."""
        self._save_checkpoint(model, trial)
        assert self.handle
        own, state = cast(Any, self._trainer), self._trainer.state
        folder = Path(own._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        keep_file(self.handle, folder, state.is_world_process_zero)
