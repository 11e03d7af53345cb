"""Backward passes whose gradients are thrown away."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor


@contextmanager
def paused(
    parameters: Iterable[Tensor], accumulated: set[int], accumulates: AbstractContextManager[None]
) -> Iterator[None]:
    """A context, inside `accumulates`, whose backward passes find no `p.grad` and leave none behind; earlier gradients
    come back. The same holds for `accumulated`, a front end's slots with gradients of earlier passes."""
    before, slots = [(parameter, parameter.grad) for parameter in parameters], set(accumulated)
    # set aside what earlier passes accumulated
    for parameter, _ in before:
        parameter.grad = None
    try:
        with accumulates:
            yield
    finally:
        # and put it back; gradients made inside are dropped
        accumulated.clear()
        accumulated.update(slots)
        for parameter, gradient in before:
            parameter.grad = gradient
