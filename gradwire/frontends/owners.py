"""Owners of parameters: one job at a time averages their gradients, for a second one would compress means."""

import weakref
from collections.abc import Iterable, Mapping

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from gradwire.runtime.runtime import Runtime

_OWNERS = WeakIdKeyDictionary()
"""By parameter a weak reference to its job's runtime, and the front end's name; so it keeps nothing alive."""


def check_free(parameters: Mapping[str, Tensor], beside: str = "") -> None:
    """Raises ValueError, naming the call that works, for a parameter that a job averages which was not detached, but
    for jobs of the kind `beside`."""
    for name, parameter in parameters.items():
        if (entry := _OWNERS.get(parameter)) is None:
            continue
        # a job that was closed, or collected with its model, owns nothing any more
        runtime, kind = entry[0](), entry[1]
        if runtime is not None and not runtime.closed and kind != beside:
            raise ValueError(
                f"parameter {name!r} is averaged by {kind} already; call detach() of its handle first, or where a "
                "model has several optimizers, wrap each of them with parameters of its own"
            )


def own(parameters: Iterable[Tensor], runtime: Runtime, kind: str) -> None:
    """Claims parameters for the job of `runtime`, until it is closed or gone; users call it `kind`."""
    for parameter in parameters:
        _OWNERS[parameter] = weakref.ref(runtime), kind
