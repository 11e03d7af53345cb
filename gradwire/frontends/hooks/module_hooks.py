"""Hooks on a user's module and parameters."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from gradwire.torch_private.reducer import in_ddp

T = TypeVar("T")
MOVED = (
    "the model was moved after attach(), by to(), cpu() or to_empty(), and its parameters have lost their hooks; call "
    "detach() before that, and attach() after it"
)


class Hook:
    """A hook that calls `call` on the module that it was registered on, as it is where torch.compile traces the module.
    In a copy of the module, such as an average of models, and in one that was saved whole, it does nothing."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self._call = torch.compiler.disable(call) if call else None

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments) if self._call else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, ()


class CheckHook(Hook):
    """A hook that only looks for a DDP around, and so is left out where torch.compile traces the module without one."""

    def __call__(self, *arguments: Any) -> Any:
        return None if torch.compiler.is_compiling() and not in_ddp() else super().__call__(*arguments)


def weakly(method: MethodType) -> Callable[..., None]:
    """A method that does nothing once its object is gone. Torch hides what hooks on parameters hold from the garbage
    collector, so these hold no object that holds the parameters."""
    of, call = ref(method.__self__), method.__func__

    def called(*arguments: Any) -> None:
        if (this := of()) is not None:
            call(this, *arguments)

    return called


@contextmanager
def trainable(parameters: Collection[Tensor]) -> Iterator[None]:
    """A context in which all of these need a gradient, without which torch registers no hooks. A hook stays while its
    parameter is frozen, and runs again afterwards."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    # torch refuses hooks on parameters that need no gradient
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


class RegisteredHooks:
    """Hooks on modules and parameters, which are removed together."""

    def __init__(self) -> None:
        self._registered: list[Any] = []
        self._hooked: list[tuple[Tensor, dict[str, Any]]] = []

    def keep(self, *registered: Any) -> None:
        """Adds hooks, as torch returned them."""
        self._registered += registered

    def on_gradients(self, slots: Mapping[Tensor, int], hook: Callable[[int], Callable[[Tensor], None]]) -> None:
        """Registers hook(slot) on each parameter's gradient, on frozen ones as well, which may thaw."""
        # torch swaps the attributes with all the rest
        self._hooked += [(parameter, vars(parameter)) for parameter in slots]
        with trainable(slots):
            for parameter, slot in slots.items():
                self._registered.append(parameter.register_post_accumulate_grad_hook(hook(slot)))

    def check(self, refuse: Callable[[str], Any]) -> None:
        """Calls `refuse` where torch has put other tensors into parameters, without their hooks."""
        if any(vars(parameter) is not attributes for parameter, attributes in self._hooked):
            refuse(MOVED)

    def remove(self) -> None:
        """Removes them all, the last one first."""
        for hook in reversed(self._registered):
            hook.remove()
        self._registered.clear()
        self._hooked.clear()


class ByModel(Generic[T]):
    """Objects by model, such as a front end for each of its optimizers, in the order in which they were added, which is
    the same on all ranks. Models and objects are held weakly."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[nn.Module, WeakKeyDictionary[T, None]] = WeakKeyDictionary()

    def add(self, model: nn.Module, each: T) -> None:
        """Adds an object to a model's."""
        self._of.setdefault(model, WeakKeyDictionary())[each] = None

    def of(self, model: nn.Module) -> list[T]:
        """The objects of a model."""
        return list(self._of.get(model, ()))
