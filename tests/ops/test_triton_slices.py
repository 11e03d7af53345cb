"""The kernels that select in slices against their definition, in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.ops.backend import REFERENCE
from gradwire.ops.slices import SliceEntries, Slices
from tests.support.kernel_cases import SHAPES, numbers

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter is numpy, which warns of infinities
from gradwire.ops.triton import TRITON  # noqa: E402

FILLS = ["normal", "few values", "zero", "nan", "infinite", "subnormal"]
MATRICES = [(1, 1), (3, 700), (40, 9), (9, 40), (5, 1100), (1100, 11)]


@pytest.mark.parametrize(
    ("shape", "fill"), [*zip(MATRICES, FILLS, strict=True), *zip(MATRICES, FILLS[3:] + FILLS[:3], strict=True)], ids=str
)
def test_the_largest_of_slices_are_the_references(shape: tuple[int, int], fill: str):
    x = SHAPES[fill](7 * shape[0] * shape[1]).float()[: shape[0] * shape[1]].view(shape)
    # of large matrices the long slices alone: there are fewer of them
    for axis in (0, 1) if max(shape) < 100 else (int(shape[1] > shape[0]),):
        for k in {1, -(-shape[axis] // 90), shape[axis]}:
            assert torch.equal(*(each.top_k_each([x, -x], k, axis)[1] for each in (TRITON, REFERENCE)))


def test_the_largest_of_rows_come_first():
    x = numbers(6 * 700, 0).abs().view(2, 3, 700)
    for ours, theirs in zip(*(each.largest_first(x, 40) for each in (TRITON, REFERENCE)), strict=True):
        assert torch.equal(ours, theirs)


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from([1, 17, 300, 1300]), st.floats(0, 1), st.integers(0, 1)),
        min_size=1, max_size=4,
    ),
    ranks=st.integers(1, 3), long=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_payloads_of_slices_are_the_references(
    shapes: list[tuple[int, int, float, int]], ranks: int, long: bool, seed: int
):
    """Of rows and columns of any length; with `long` ones too many for a program, and for short indices."""
    slices, n = [], 0
    for count, length, share, axis in [*shapes, *[(2, 70_000, 0.001, 1)] * long]:
        slices.append(Slices(n, count, length, max(1, int(share * length)), axis))
        n += count * length
    layout, left = SliceEntries.of(slices), numbers(ranks * n, seed).view(ranks, n)
    kept, rows = left.clone(), torch.zeros(ranks, layout.nbytes + 4, dtype=torch.uint8)
    expected = rows.clone()
    for rank in range(ranks):
        TRITON.move_slices(left[rank], rows[rank], layout)
        REFERENCE.move_slices(kept[rank], expected[rank], layout)
    assert torch.equal(rows, expected)
    assert torch.equal(left, kept)
    ours, theirs = torch.full((2, n), torch.nan)
    TRITON.sum_slices(rows, ours, layout)
    REFERENCE.sum_slices(rows, theirs, layout)
    assert torch.equal(ours, theirs)
