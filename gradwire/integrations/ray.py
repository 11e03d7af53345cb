"""Gradwire under Ray Train: `compress` what `prepare_model` made, and `keep` the state in checkpoints."""

from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from gradwire.checkpoint import StateDict
from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.integrations.first_rank import keep_file, load_read, read_file
from gradwire.integrations.framework import attach_whole
from gradwire.plans import Plan

# by name, for Ray is not among what development needs
train: Any = import_module("ray.train")


def compress(
    model: nn.Module, compressor: Compressor | Plan | str | None = None, *, checkpoint: Any = None, **options: Any
) -> Handle:
    """Compresses the gradients of a model from `ray.train.torch.prepare_model`, and loads `checkpoint`, by default the
    one that Ray restarts workers from, as rank 0 has it. All workers call it; the `options` are those of
    `gradwire.attach`, which says what it raises. Raises ValueError, on all workers, for a checkpoint whose gradwire.pt
    cannot be read; where it has none, training goes on without memories, and a warning."""
    found = checkpoint or train.get_checkpoint()

    def read() -> StateDict | None:
        if not found:
            return None
        with found.as_directory() as folder:
            return read_file(folder)

    # all workers attach, then load what was saved
    handle = attach_whole(model, compressor, options)
    load_read(handle, _is_first(), read, found and found.path)
    return handle


def keep(handle: Handle, folder: str | Path) -> None:
    """Writes the state of all workers to a folder of rank 0's that is to be a checkpoint; all workers call it."""
    keep_file(handle, folder, _is_first())


def _is_first() -> bool:
    return train.get_context().get_world_rank() == 0
