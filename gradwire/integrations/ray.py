"""Gradwire under Ray Train: `compress` what `prepare_model` made, and `keep` the state in checkpoints."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradwire.checkpoint import StateDict
from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.integrations.framework import attach_whole
from gradwire.plans import Plan
from gradwire.saving import save

# by name, for Ray is not among what development needs
train: Any = import_module("ray.train")
FILE = "gradwire.pt"


def compress(
    model: nn.Module, compressor: Compressor | Plan | str | None = None, *, checkpoint: Any = None, **options: Any
) -> Handle:
    """Compresses the gradients of a model from `ray.train.torch.prepare_model`, and loads `checkpoint`, by default the
    one that Ray restarts workers from. All workers call it; the `options` are those of `gradwire.attach`, which says
    what it raises. Raises FileNotFoundError for a checkpoint without Gradwire's state."""
    # all workers attach, then load what was saved
    handle = attach_whole(model, compressor, **options)
    found = checkpoint or train.get_checkpoint()
    if found:
        # on the host: it may have been saved on another GPU
        with found.as_directory() as folder:
            state: StateDict = torch.load(Path(folder) / FILE, map_location="cpu", weights_only=True)
        handle.load_state_dict(state)
    return handle


def keep(handle: Handle, folder: str | Path) -> None:
    """Writes the state of all workers to a folder of rank 0's that is to be a checkpoint; all workers call it."""
    state = handle.state_dict(all_ranks=True)
    if train.get_context().get_world_rank() == 0:
        save(state, Path(folder) / FILE)
