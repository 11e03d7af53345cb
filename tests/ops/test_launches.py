"""Whole exchanges with the kernels for GPUs, in Triton's interpreter: means, and how many launches they take."""

from collections import Counter

import pytest
import torch

from gradwire.ops.backend import REFERENCE
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, nearest
from gradwire.ops.noise import Seed
from tests.support.cases import CASES, Case, rows
from tests.support.harness import SMALL, draw, slots_of
from tests.support.lane import WORLD, Lane
from tests.support.pretend_cuda import GPU, on_gpu, pretended_cuda

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter is numpy, which warns of infinities
from gradwire.ops.triton import TRITON  # noqa: E402
from tests.support.triton_lane import with_triton  # noqa: E402

SLOTS = slots_of(SMALL | {"wide.weight": torch.empty(131, 257), "wide.bias": torch.empty(131)})
NARROW = slots_of(SMALL | {"wide.weight": torch.empty(17, 257), "wide.bias": torch.empty(17)})
"""Of several tiles of most kernels."""
RANKS = 2
MATRICES = slots_of(
    {name: SMALL[name] for name in ("stem.bias", "scale", "turned.weight")}
    | {f"{i}.weight": torch.empty(31, 17) for i in range(2)}
)
"""Small ones, and some of equal shape: the interpreter takes long for products, and for all else."""


def first_step(case: Case) -> int:
    """The first step that compresses; in it buffers are made."""
    return getattr(case.compressor, "start_step", 0)


@rows([case for case in CASES if case.interpreted])
def test_whole_exchanges_are_the_references_in_fewer_launches(case: Case):
    with pretended_cuda() as gpu, torch.no_grad():
        slots = MATRICES if case.interpreted == "matrices" else NARROW
        ours, theirs = (Lane(case, slots, GPU, gpu, RANKS) for _ in range(2))
        first = first_step(case)
        for number in range(first + 2):
            grads = draw(slots, RANKS, number)
            expected = theirs.step(grads)
            gpu.forget()
            with with_triton(gpu):
                means = ours.step(grads)
            assert not gpu.syncs
            launched = gpu.kernels.total() / RANKS
            assert number <= first or 0 < launched <= case.launches[0], (
                f"{launched} launches: {gpu.lines.most_common(24)}"
            )
            for own in means[1:]:
                assert all(torch.equal(a, b) for a, b in zip(own, means[0], strict=True))
            if not case.gpu_differs:
                for mean, other in zip(means[0], expected[0], strict=True):
                    torch.testing.assert_close(mean, other, rtol=0, atol=2e-5)


@rows(CASES)
def test_no_row_launches_more_than_it_may(case: Case):
    with pretended_cuda() as gpu, torch.no_grad(), with_triton(gpu, computes=False):
        lane = Lane(case, SLOTS, GPU, gpu)
        first = first_step(case)
        for number in range(first + 3):
            gpu.forget()
            lane.step(draw(SLOTS, WORLD, number))
            assert not gpu.syncs
            assert not gpu.pageable or number == 0
            launched = gpu.kernels.total() / WORLD
            assert number <= first or 0 < launched <= case.launches[0], (
                f"{launched} launches: {gpu.lines.most_common(24)}"
            )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gradient_of_a_narrow_type_is_read_where_it_lies(dtype: torch.dtype):
    n, layout = 3000, Entries(3000, 30)
    with pretended_cuda() as gpu, torch.no_grad(), with_triton(gpu, computes=False):
        next, nonfinite = on_gpu(torch.zeros(n)), on_gpu(torch.zeros(1))
        payload = on_gpu(torch.zeros(1, layout.nbytes, dtype=torch.uint8))
        launched = list[Counter[str]]()
        for kind in (torch.float32, torch.float32, dtype):
            gradient = on_gpu(torch.zeros(n, dtype=kind))
            gpu.forget()
            TRITON.add_in(next, None, gradient, 1.0, 0.5, nonfinite=nonfinite)
            TRITON.add_select(next, None, gradient, 1.0, 0.5, [layout], payload, nonfinite=nonfinite)
            launched.append(Counter(gpu.kernels))
    assert launched[1]["add_kernel"] == 1
    assert launched[1] == launched[2]


def test_blocks_too_long_for_a_program_gather_the_gradient_once():
    layout = Blocks((3000,), nearest(8, 1 << 14))
    with pretended_cuda() as gpu, torch.no_grad(), with_triton(gpu):
        next, nonfinite = on_gpu(torch.zeros(3000)), on_gpu(torch.zeros(1))
        gradient = [on_gpu(torch.ones(1000)), on_gpu(torch.ones(2000))]
        payload = on_gpu(torch.zeros(1, layout.nbytes, dtype=torch.uint8))
        launched = list[Counter[str]]()
        for kernels in (REFERENCE, REFERENCE, TRITON):
            gpu.forget()
            kernels.add_quantise(
                next, None, gradient, 1.0, 0.5, [layout], payload, keep=True, seeds=[Seed(0)], nonfinite=nonfinite
            )
            launched.append(Counter(gpu.kernels))
    assert launched[1] == launched[2]
