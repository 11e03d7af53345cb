"""The variants of kernels that Triton compiles: by their constants, by the types and alignment of tensors, and by what
it specialises whole numbers on. None is new after the first steps, so that none is compiled while training runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.runtime.state.store import Store
from tests.support.cases import CASES, Case, rows
from tests.support.harness import SMALL, draw, plan_of, slots_of
from tests.support.lane import Lane
from tests.support.pretend_cuda import GPU, pretended_cuda, real

pytest.importorskip("triton")
from gradwire.ops.triton import launching
from tests.support.triton_lane import with_triton

SLOTS = slots_of(SMALL | {"wide.weight": torch.empty(131, 257), "wide.bias": torch.empty(131)})
RANKS, FIRST, MORE = 2, 3, 5
"""All variants come in the FIRST steps that compress; MORE steps follow."""


def variant(kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a launch's build apart from others of the kernel."""
    names = kernel.fn.__code__.co_varnames
    never = kernel.kwargs.get("do_not_specialize") or ()
    seen = [_kind(one, name in never) for name, one in zip(names, arguments, strict=False)]
    return kernel.__name__, *seen, *sorted(constants.items())


def _kind(argument: Any, same_for_all: bool) -> object:
    if isinstance(argument, Tensor):
        return argument.dtype, real(argument).data_ptr() % 16 == 0
    if isinstance(argument, int) and not same_for_all:
        return "1" if argument == 1 else "of 16" if argument % 16 == 0 else "other", argument >= 1 << 31
    return type(argument)


@contextmanager
def launches() -> Iterator[set[tuple[Any, ...]]]:
    """The variants that are launched meanwhile."""
    seen, launch = set[tuple[Any, ...]](), launching.launch

    def noted(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        seen.add(variant(kernel, arguments, constants))
        launch(kernel, programs, *arguments, **constants)

    with mock.patch.object(launching, "launch", noted):
        yield seen


@pytest.mark.parametrize("groups", [1, 3, len(SLOTS)])
def test_state_begins_aligned_in_both_halves_of_every_group(groups: int):
    """Whatever the sizes of the groups before it, and after another plan."""
    store = Store(SLOTS, torch.device("cpu"))
    for count in (2, groups):
        store.arrange(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather(), groups=count))
    halves = [half for stored in store.groups for half in stored.flat["residual"]]
    assert [half.data_ptr() % 64 for half in halves] == [0] * len(halves)
    assert [len(half) for half in halves[::2]] == [stored.layout.numel for stored in store.groups]


@rows([case for case in CASES if not isinstance(case.compressor, gw.MultiLevel)])  # whose levels depend on the data
def test_no_variant_of_a_kernel_is_new_after_the_first_steps(case: Case):
    with pretended_cuda() as gpu, torch.no_grad(), with_triton(gpu, computes=False), launches() as seen:
        lane, first = Lane(case, SLOTS, GPU, gpu, RANKS), getattr(case.compressor, "start_step", 0) + FIRST
        for number in range(first + MORE):
            before = set(seen)
            lane.step(draw(SLOTS, RANKS, number))
            assert number < first or not seen - before, f"compiled in step {number}: {seen - before}"
