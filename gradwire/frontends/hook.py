"""Hooks of the user's module and parameters."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


class Hook:
    """A hook that calls `call` on the module that it was registered on. In a copy of the module, such as an average of
    models, and in one that was saved whole, it does nothing."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments) if self._call else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, ()


@contextmanager
def trainable(parameters: Collection[Tensor]) -> Iterator[None]:
    """A context in which all of these need a gradient, without which torch registers no hooks. A hook stays while its
    parameter is frozen, and runs again afterwards."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
