"""The library's products with thin factors, against their definition."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradwire.ops import native, reference
from gradwire.ops.reference.products import COLUMNS, ROWS
from tests.support.kernel_cases import each_isa, needs_library, numbers


@needs_library
@given(
    st.integers(1, 3), st.integers(1, 40), st.integers(1, 600), st.integers(1, 9), st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
@example(1, 1, 535, 1, 1, 0)
@settings(max_examples=60, deadline=None)
def test_products_are_the_references_and_the_same_at_every_level(count, rows, columns, rank, gap, seed):
    apart = rows * columns + gap
    room = numbers(count * apart + 2, seed, spread=0.5)
    p, q = (
        numbers(count * rank * length, seed + 1, spread=0.5).view(count, rank, length) for length in (rows, columns)
    )
    found = [results(native.products, room, (count, rows, columns), apart, p, q) for _ in each_isa()]
    for ours in found:
        assert all(map(torch.equal, ours, found[0]))
    # rounding errors grow with the magnitudes that are added up, not with their sum
    shape = count, rows, columns
    wanted = results(reference.products, room, shape, apart, p, q)
    added = results(reference.products, room.abs(), shape, apart, p.abs(), q.abs())
    for ours, theirs, magnitudes in zip(found[0], wanted, added, strict=True):
        size = (torch.maximum(theirs.abs(), magnitudes.abs()).max() + 1).item() * rank
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 * size)


def results(ops, room, shape, apart, p, q):
    """All four products, and what lies around the matrices, at an odd address."""
    kept = room.clone()
    matrices = kept[1:].as_strided(shape, (apart, shape[2], 1))
    rows, columns = torch.full_like(p, torch.nan), torch.full_like(q, torch.nan)
    ops.project_batch(matrices, q, rows, ROWS)
    ops.project_batch(matrices, p, columns, COLUMNS)
    ops.multiply_batch([matrices], p, q, subtract=True)
    taken = kept.clone()
    parts = [matrices] if len(matrices) == 1 else [matrices[:1], matrices[1:]]
    ops.multiply_batch(parts, p, q, subtract=False)
    return rows, columns, taken, kept


@needs_library
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_finite_is_seen_in_every_product(wrong):
    matrices, p, q = torch.ones(1, 5, 7), torch.ones(1, 2, 5), torch.ones(1, 2, 7)
    matrices[0, 2, 3] = wrong
    rows, columns = torch.empty_like(p), torch.empty_like(q)
    native.products.project_batch(matrices, q, rows, ROWS)
    native.products.project_batch(matrices, p, columns, COLUMNS)
    assert rows[0, :, 2].isfinite().logical_not().all()
    assert columns[0, :, 3].isfinite().logical_not().all()
