"""Access to the gradients of parameters, for the hooks that reduce them."""

from collections.abc import Collection, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from gradwire.frontends.hooks.sparse_gradients import no_rows
from gradwire.torch_private.autograd import is_shared


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
        gradient = parameter.grad
        if gradient is None or gradient.layout is not torch.strided:
            return gradient
        if gradient.is_conj() or gradient.is_neg():
            # its memory has the conjugates, or the negatives
            parameter.grad = gradient.resolve_conj().resolve_neg()
        elif is_shared(gradient):
            # another gradient may lie there, as those of a sum of views do, and each becomes a mean by itself
            parameter.grad = gradient.clone()
        return parameter.grad

    def left(self, parameter: Tensor) -> Tensor:
        if (gradient := self.gradient(parameter)) is not None:
            return gradient.detach().clone()
        if parameter in self._sparse:
            return no_rows(parameter)
        return torch.zeros_like(parameter, dtype=parameter.grad_dtype)

    def put(self, parameter: Tensor, gradient: Tensor) -> None:
        parameter.grad = gradient

    def accumulates(self, parameter: Tensor) -> bool:
        return False

    def hands_over_none(self) -> bool:
        return False
