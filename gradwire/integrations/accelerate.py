"""Gradwire under Accelerate: `compress` after `prepare`."""

from typing import Any

import accelerate
from accelerate import Accelerator
from torch import nn

from gradwire.checkpoint import StateDict
from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.integrations.first_rank import load_or_warn, state_of_all
from gradwire.integrations.framework import attach_whole, check_has
from gradwire.plans import Plan

REGISTERED, TRIED = "_custom_objects", "1.15.0"


def compress(
    accelerator: Accelerator, model: nn.Module, compressor: Compressor | Plan | str | None = None, **options: Any
) -> Handle:
    """Compresses the gradients of a model from `accelerator.prepare`; `save_state` and `load_state` include its state,
    in the place of one whose job has ended, if there is one. The `options` are those of `gradwire.attach`, which says
    what it raises."""
    check_has(accelerator, (REGISTERED,), f"accelerate {accelerate.__version__}", TRIED)
    handle = attach_whole(model, compressor, options, accelerator.scaler)
    registered: list[Any] = getattr(accelerator, REGISTERED)
    # Accelerate knows objects by their places: a script that compresses once loads what one has saved that did so twice
    ended = (each for each in registered if type(each) is CheckpointedHandle and each.handle.ended)
    if kept := next(ended, None):
        kept.handle = handle
    else:
        accelerator.register_for_checkpointing(CheckpointedHandle(handle))
    return handle


class CheckpointedHandle:
    """Adapter of a handle to Accelerate's checkpoints: all ranks ask for its state, and rank 0 has it."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def state_dict(self) -> StateDict:
        """The state of all ranks; nothing after `detach()`."""
        return state_of_all(self.handle)

    def load_state_dict(self, state: StateDict) -> None:
        """Takes over what rank 0 has read, before `detach()`; with `save_on_each_node` other hosts have files of their
        own."""
        load_or_warn(self.handle, state or None)
