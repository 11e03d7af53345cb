"""Autograd and torch.amp: the moments of a backward pass, and the factor of a loss."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NO_PASS = -1
"""The number of no backward pass."""


def scale_of(scaler: Any) -> Tensor | None:
    """A GradScaler's factor (), where it lies, without waiting for a GPU; None before it has scaled a loss."""
    return scaler._scale if scaler.is_enabled() else None


def when_backward_ends(call: Callable[[], None]) -> None:
    """Has autograd call this when the backward pass under way is over, on the thread that runs it."""
    torch.autograd.Variable._execution_engine.queue_callback(call)  # pyright: ignore[reportAttributeAccessIssue]


def in_backward() -> bool:
    """Whether this thread is inside a backward pass, as in a hook."""
    return backward_pass() != NO_PASS


def backward_pass() -> int:
    """The number of the backward pass that this thread is inside; no other one has it."""
    return torch._C._current_graph_task_id()  # pyright: ignore[reportPrivateUsage]


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether it has any post-accumulate-grad hooks."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def _uses(tensor: Tensor) -> int:
    """How many objects hold its memory."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # pyright: ignore


_ONE_USE = _uses(torch.empty(1, dtype=torch.float32, device="cpu"))


def is_shared(gradient: Tensor) -> bool:
    """Whether some other tensor lies in the memory of a gradient that autograd made. A view is a user's own, or a
    framework's, whose buffer it is to stay in."""
    return _uses(gradient) > _ONE_USE and not gradient._is_view()


def writes_to(tensor: Tensor) -> int:
    """How often torch has written to a tensor in place."""
    return tensor._version
