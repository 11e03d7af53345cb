"""The optimizer that follows the signs of gradients, for DeMo."""

from collections.abc import Callable

import torch
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
                    parameter.mul_(1 - lr * decay).sub_(parameter.grad.sign(), alpha=lr)
        return loss
