"""Backward passes that fail under fully_shard, which leaves gradients out of the next pass and adds old ones to it."""

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

import torch
from torch import nn

from gradwire.frontends.hooks.module_hooks import Hook
from gradwire.torch_private.autograd import in_backward
from gradwire.torch_private.fully_shard import fsdp_is_in_backward, reset_drops_whole_gradients

FAILED = (
    "a backward pass has failed, after which fully_shard leaves gradients out and adds old ones; call "
    "model.reset_iter_state() (torch 2.13) where you catch the error of backward(), before the next forward pass, or "
    "make the model anew, and load a checkpoint"
)


class FailedPasses:
    """A forward pre-hook on a wrapped model. Where the last backward pass failed, it calls `refuse`, if there is one,
    and raises RuntimeError; not after `reset_iter_state()`, which drops what the failed pass has left."""

    def __init__(self, model: nn.Module, refuse: Callable[[str], Any] | None = None) -> None:
        # weak: a model keeps no job
        self._refuse = WeakMethod(refuse) if refuse else None
        self._registered = model.register_forward_pre_hook(Hook(self._forward_begins), prepend=True)
        reset_drops_whole_gradients(model)

    def remove(self) -> None:
        """Removes the hook."""
        self._registered.remove()

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        # not where a checkpoint's forward pass is repeated in backward
        if torch.is_grad_enabled() and fsdp_is_in_backward(module) and not in_backward():
            if self._refuse and (refuse := self._refuse()):
                refuse(FAILED)
            raise RuntimeError(FAILED)
