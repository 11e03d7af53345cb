"""Backward passes whose gradients are thrown away."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor


@contextmanager
def paused(
    parameters: Iterable[Tensor], accumulated: set[int], accumulates: AbstractContextManager[None]
) -> Iterator[None]:
    """Inside `accumulates`, backward passes find no `p.grad` and leave none behind; what was there before is there
    afterwards. `accumulated` are the slots of a front end that have gradients of such passes, and stay the same."""
    before, slots = [(parameter, parameter.grad) for parameter in parameters], set(accumulated)
    for parameter, _ in before:
        parameter.grad = None
    try:
        with accumulates:
            yield
    finally:
        accumulated.clear()
        accumulated.update(slots)
        for parameter, gradient in before:
            parameter.grad = gradient
