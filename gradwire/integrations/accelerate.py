"""Gradwire under Accelerate: `compress` after `prepare`."""

from functools import partial
from typing import Any

from accelerate import Accelerator
from torch import nn

from gradwire.checkpoint import StateDict
from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.integrations.first_rank import load_first
from gradwire.integrations.framework import attach_whole
from gradwire.plans import Plan


def compress(
    accelerator: Accelerator, model: nn.Module, compressor: Compressor | Plan | str | None = None, **options: Any
) -> Handle:
    """Compresses the gradients of a model from `accelerator.prepare`; `save_state` and `load_state` include its state
    until it is detached. The `options` are those of `gradwire.attach`, which says what it raises."""
    handle = attach_whole(model, compressor, options, accelerator.scaler)
    kept = CheckpointedHandle(handle)
    accelerator.register_for_checkpointing(kept)
    # or a script that compresses once could not load what one has saved that did so twice
    handle.at_detach(partial(accelerator._custom_objects.remove, kept))  # pyright: ignore[reportPrivateUsage]
    return handle


class CheckpointedHandle:
    """Adapter of a handle to Accelerate's checkpoints: all ranks ask for its state, and rank 0 has it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def state_dict(self) -> StateDict:
        """The state of all ranks."""
        return self._handle.state_dict(all_ranks=True)

    def load_state_dict(self, state: StateDict) -> None:
        """Takes over what rank 0 has read; with `save_on_each_node` other hosts have files of their own."""
        load_first(self._handle, state)
