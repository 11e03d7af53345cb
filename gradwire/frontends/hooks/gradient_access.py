"""Access to the gradients of parameters, for the hooks that reduce them."""

from collections.abc import Collection, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from gradwire.frontends.hooks.sparse_gradients import no_rows


class GradientAccess(Protocol):
    """Access to the gradients of parameters, whole or sharded."""

    def hook_in(self) -> Iterable[Any]:
        """Has the framework prepare gradients for the exchange; returns hooks, whose `remove()` ends that."""
        ...

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """The tensor to reduce in place; None where the parameter has no gradient."""
        ...

    def left(self, parameter: Tensor) -> Tensor:
        """A new tensor for a parameter that got no gradient in this step: a copy of the gradient that an earlier pass
        has left there, which DDP would send, or zeros."""
        ...

    def put(self, parameter: Tensor, gradient: Tensor) -> None:
        """Makes a tensor from `left` the parameter's gradient."""
        ...

    def accumulates(self, parameter: Tensor) -> bool:
        """Whether this backward pass only accumulates, by the framework's own setting."""
        ...

    def hands_over_none(self) -> bool:
        """Whether the next backward pass only accumulates, by the framework's own setting, and no hook sees it."""
        ...


class FullGradients:
    """Access to gradients of whole parameters, `p.grad`; those of some parameters are `sparse`."""

    def __init__(self, sparse: Collection[Tensor] = ()) -> None:
        self._sparse = sparse

    def hook_in(self) -> Iterable[Any]:
        return ()

    def gradient(self, parameter: Tensor) -> Tensor | None:
        if parameter.grad is not None and parameter.grad.is_conj():
            # its memory has the conjugates
            parameter.grad = parameter.grad.resolve_conj()
        return parameter.grad

    def left(self, parameter: Tensor) -> Tensor:
        if (gradient := self.gradient(parameter)) is not None:
            return gradient.detach().clone()
        return no_rows(parameter) if parameter in self._sparse else torch.zeros_like(parameter)

    def put(self, parameter: Tensor, gradient: Tensor) -> None:
        parameter.grad = gradient

    def accumulates(self, parameter: Tensor) -> bool:
        return False

    def hands_over_none(self) -> bool:
        return False
