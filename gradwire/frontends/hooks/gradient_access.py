"""Access to the gradients of parameters, for the hooks that reduce them."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from gradwire.frontends.hooks.sparse_gradients import no_rows
from gradwire.runtime.runtime import Runtime
from gradwire.torch_private.autograd import is_shared


class GradientAccess(ABC):
    """Access to the gradients of parameters, whole or sharded."""

    @abstractmethod
    def hook_in(self, parameters: Iterable[Tensor]) -> Iterable[Any]:
        """Has the framework prepare gradients for the exchange; returns hooks, whose `remove()` ends that."""

    def note(self, parameters: Iterable[Tensor]) -> None:  # noqa: B027
        """Notes the gradients that are there before a backward pass, which may add to them in place."""

    @abstractmethod
    def gradient(self, parameter: Tensor) -> Tensor | None:
        """The tensor to reduce in place; None where the parameter has no gradient."""

    @abstractmethod
    def left(self, parameter: Tensor) -> Tensor:
        """A new tensor for a parameter that got no gradient in this step: a copy of the gradient that an earlier pass
        has left there, which DDP would send, or zeros."""

    @abstractmethod
    def put(self, parameter: Tensor, gradient: Tensor) -> None:
        """Makes a tensor from `left` the parameter's gradient."""

    def accumulates(self, parameter: Tensor) -> bool:
        """Whether this backward pass only accumulates, by the framework's own setting."""
        return False

    def only_accumulates(self) -> bool:
        """Whether the next backward pass only accumulates, by the framework's own setting, and no hook sees it."""
        return False

    def has_accumulated(self) -> bool:
        """Whether the framework holds gradients of backward passes that only accumulated, which no hook has seen."""
        return False


class Submitted:
    """The gradients that were submitted in a backward pass, in whose place their means will be."""

    def __init__(self) -> None:
        self._tensors: list[tuple[int, Tensor, Tensor | None]] = []

    def note(self, slot: int, parameter: Tensor) -> None:
        """Notes that a parameter's gradient was submitted."""
        self._tensors.append((slot, parameter, parameter.grad))

    def check(self, runtime: Runtime) -> None:
        """Ends the job where a parameter has another gradient by now, or none; forgets them all."""
        lost = next((slot for slot, parameter, gradient in self._tensors if parameter.grad is not gradient), None)
        self.clear()
        if lost is not None:
            runtime.refuse(
                f"parameter {runtime.slots[lost].name!r} lost its gradient in backward, before that was averaged; step "
                "optimizers, and replace gradients, after backward()"
            )

    def clear(self) -> None:
        """Forgets them, also those of a pass that failed."""
        self._tensors.clear()


class FullGradients(GradientAccess):
    """Access to gradients of whole parameters, `p.grad`; those of some parameters are `sparse`."""

    def __init__(self, sparse: Collection[Tensor] = ()) -> None:
        self._sparse = sparse
        self._noted: dict[int, ref[Tensor]] = {}  # by the parameter's id, for a tensor's hash is computed in Python

    def hook_in(self, parameters: Iterable[Tensor]) -> Iterable[Any]:
        self.note(parameters)
        return (self,)

    def remove(self) -> None:
        """Forgets gradients, for torch moves none to which there are weak references."""
        self._noted.clear()

    def note(self, parameters: Iterable[Tensor]) -> None:
        self._noted.update((id(p), ref(gradient)) for p in parameters if (gradient := p.grad) is not None)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        gradient = parameter.grad
        if gradient is None or gradient.layout is not torch.strided:
            return gradient
        if gradient.is_conj() or gradient.is_neg():
            # its memory has the conjugates, or the negatives
            self.put(parameter, gradient.resolve_conj().resolve_neg())
        elif (noted := self._noted.get(id(parameter))) and noted() is gradient:
            return gradient  # it was there before: it may have views of the user's, or lie in a buffer of theirs
        elif is_shared(gradient):
            # autograd may have made another gradient there, as of a sum of views, and each becomes a mean by itself
            self.put(parameter, gradient.clone())
        else:
            self._noted[id(parameter)] = ref(gradient)
            return gradient
        return parameter.grad

    def left(self, parameter: Tensor) -> Tensor:
        if (gradient := self.gradient(parameter)) is not None:
            return gradient.detach().clone()
        if parameter in self._sparse:
            return no_rows(parameter)
        return torch.zeros_like(parameter, dtype=parameter.grad_dtype)

    def put(self, parameter: Tensor, gradient: Tensor) -> None:
        parameter.grad = gradient
        self._noted[id(parameter)] = ref(gradient)
