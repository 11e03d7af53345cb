"""Models whose computing takes time and no processor, as on a GPU: the forward and backward pass of a layer sleep.

For `played_beside_real.py`, whose ranks share the processor with all that gloo and the network need:
`--models benchmarks/scheduler/resting.py:vgg16`. Layers have the parameters of the tiny models; all of them take
equally long, their backward pass twice as long as the forward pass. Gradients are noise, the same in each step.
"""

import time
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.lab.workloads.make_task import make_task

STEP_S = 0.06
"""Forward and backward pass of all layers, about as long as those of the tiny models on one core."""


class Rest(torch.autograd.Function):
    """A layer that returns its input and gives its parameters fixed gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.forward_s, ctx.gradients = forward_s, gradients
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(2 * ctx.forward_s)
        return gradients[0], None, None, *ctx.gradients


class Resting(nn.Module):
    """A module with the parameters of `like`, layer by layer."""

    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        owned = [list(module.parameters(recurse=False)) for module in like.modules()]
        self.layers = nn.ModuleList(nn.ParameterList(own) for own in owned if own)
        self._gradients = [[torch.randn_like(each) for each in layer.parameters()] for layer in self.layers]

    def forward(self, x: Tensor) -> Tensor:
        forward_s = STEP_S / 3 / len(self.layers)
        for layer, gradients in zip(self.layers, self._gradients, strict=True):
            x = Rest.apply(x, forward_s, gradients, *layer.parameters())
        return x


def _made(name: str) -> tuple[nn.Module, Any, Any]:
    """A model with the layers of the tiny model `name`, its batches and its loss."""
    like = make_task("synthetic", [f"model={name}"]).build_model(0)
    return Resting(like), lambda rank, world: repeat(torch.zeros(())), lambda model, batch: model(batch)


vgg16, gpt = (partial(_made, name) for name in ("vgg16", "gpt"))
