"""The optimizer that follows the signs of gradients, for DeMo."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from gradwire.options import called_as


class SignDescent(Optimizer):
    """Descent by the sign of each gradient, with decoupled weight decay: a parameter p with gradient g becomes
    (1 - lr·weight_decay)·p - lr·sign(g), as in DeMo (Peng et al., 2024, https://arxiv.org/abs/2411.19870). It keeps no
    state: DeMo's momentum is the residual of `DCTTopK`.

    Raises ValueError for numbers below zero.
    """

    @called_as("gw.SignDescent(model.parameters(), lr=1e-3)")
    def __init__(self, params: ParamsT, lr: float, weight_decay: float = 0.0) -> None:
        if not (lr >= 0 and weight_decay >= 0):
            raise ValueError(f"lr={lr} and weight_decay={weight_decay} are no step down; use e.g. lr=1e-3")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self._scratch: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._scratch = {}  # of a copy

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A step of all parameters that have a gradient, which stays as it is."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, decay = group["lr"], group["weight_decay"]
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - lr * decay).sub_(self._sign(parameter.grad), alpha=lr)
        return loss

    def _sign(self, gradient: Tensor) -> Tensor:
        """Its sign: of a plain gradient in memory that is kept, as large as the largest of its kind."""
        if type(gradient) is not Tensor or gradient.is_sparse:
            return gradient.sign()
        kind = gradient.device, gradient.dtype
        if kind not in self._scratch or self._scratch[kind].numel() < gradient.numel():
            self._scratch[kind] = gradient.new_empty(gradient.numel())
        return torch.sign(gradient, out=self._scratch[kind][: gradient.numel()].view(gradient.shape))
