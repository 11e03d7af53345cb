"""All rows at the sizes where blocks end, with gradients at the ends of what numbers are: the library against
torch."""

from collections.abc import Callable, Sequence
from unittest import mock

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.ops import native
from gradwire.slots import Slot
from tests.support.cases import CASES, Case, rows
from tests.support.harness import draw, job, plan_of, slots_of
from tests.support.kernel_cases import needs_library
from tests.support.lane import Lane

CPU, RANKS = torch.device("cpu"), 2

FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "subnormals": lambda x: x * 1e-39,
    "equal": lambda x: torch.full_like(x, 0.25),
    "one alone": lambda x: x * (x == x.max()),
    "large": lambda x: x * 1e15,
}
"""In the order of their size, so that each is as large as what is kept of those before it."""


def sizes_of(case: Case) -> list[int]:
    """Elements of the only matrix; a block has 64 where the compressor has none."""
    block = next((getattr(case.compressor, name) for name in ("block", "of") if hasattr(case.compressor, name)), 64)
    return [1, 2, block - 1, block, block + 1]


def drawn(slots: Sequence[Slot], fill: str, seed: int) -> list[list[Tensor]]:
    """Gradients by rank and slot."""
    draws = torch.Generator().manual_seed(seed)
    return [
        [slot.view(FILLS[fill](torch.randn(slot.numel, generator=draws)).to(slot.dtype)) for slot in slots]
        for _ in range(RANKS)
    ]


def fills_of(case: Case) -> list[str]:
    """Those within the range of what is sent."""
    halves = case.bits == 16 and case.compressor != gw.BF16()
    return [fill for fill in FILLS if fill != "large" or not halves]


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize(
    ("compressor", "memory"),
    [(gw.TopK(0.1), gw.Residual(decay=0.9)), (gw.TopK(0.1), gw.DGCMemory()), (gw.Signum(), gw.NoMemory())],
    ids=str,
)
def test_state_that_decays_ends_as_zero_and_not_below_the_least_normal_number(
    compressor: gw.Compressor, memory: gw.Memory, library: bool
):
    slots = slots_of({"only.weight": torch.empty(3, 40)})
    with (
        mock.patch.object(native, "available", return_value=library and native.available()),
        job(plan_of(slots, compressor, memory, gw.AllGather()), slots, 2) as running,
    ):
        for size in (1e-36, *[0.0] * 60):
            running.step([[size * grad for grad in own] for own in draw(slots, 2, 0)])
        for name in (*memory.flat_state, *compressor.flat_state):
            kept = torch.cat([tensor.flatten() for own in running.state(name) for tensor in own])
            assert bool(((kept == 0) | (kept.abs() >= torch.finfo(torch.float32).tiny)).all()), name


@needs_library
@rows(CASES)
def test_the_library_computes_what_torch_does(case: Case):
    for n in sizes_of(case):
        slots = slots_of({"only.weight": torch.empty(1, n)})
        with torch.no_grad():
            ours, theirs = Lane(case, slots, CPU, None, RANKS), Lane(case, slots, CPU, None, RANKS)
            # where a last bit differs, a narrow residual may round to the other neighbour, and later steps differ
            for seed, fill in enumerate(fills_of(case)[: 1 if case.residual_rounding else None]):
                grads = drawn(slots, fill, seed)
                means = ours.step(grads)
                with mock.patch.object(native, "available", return_value=False):
                    expected = theirs.step(grads)
                assert means[0][0].isfinite().all()
                assert all(torch.equal(own[0], means[0][0]) for own in means)
                near = 4e-6 * max(float(grad.abs().max()) for own in grads for grad in own)
                torch.testing.assert_close(means[0][0], expected[0][0], rtol=0, atol=near)
