"""A hook of the user's module."""

from collections.abc import Callable
from typing import Any


class Hook:
    """Calls `call`, on the module that it was registered on. In a copy of that, such as an average of models keeps, and
    in one that was saved whole, it does nothing."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments) if self._call else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, ()
