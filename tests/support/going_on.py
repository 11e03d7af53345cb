"""A job that is cut and goes on from its state, beside a whole one."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing

import torch
from torch import Tensor

from tests.support.harness import Job

Run = Callable[[Job, range], Iterable[list[Tensor]]]
"""Takes steps with these numbers; the means of each."""


def check_goes_on(make: Callable[[], Job], run: Run, cut: int, end: int) -> tuple[Job, Job, Job]:
    """A job that ends before step `cut`, and another that loads its state, make bit for bit the means of a whole one:
    the whole one, the first and the second, all closed."""
    with ExitStack() as jobs:
        whole, first, second = (jobs.enter_context(closing(make())) for _ in range(3))
        expected = list(run(whole, range(end)))[cut:]
        list(run(first, range(cut)))
        second.load(first.states())
        assert second.runtimes[0].plan == first.runtimes[0].plan
        for mine, theirs in zip(run(second, range(cut, end)), expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    return whole, first, second
