"""The native kernels against their definition: which elements are the largest, and how they travel."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradwire.ops.backend import NATIVE, REFERENCE
from gradwire.ops.entries import EliasFano, Entries
from gradwire.ops.native.library import _kept, scratch
from gradwire.ops.reference.entries import levels_and_edges
from tests.support.kernel_cases import (
    SHAPES,
    at_every_level,
    each_isa,
    garbage,
    needs_library,
    numbers,
    same_bits,
    shifted,
    subnormals_as_zero,
    vectors,
)  # fmt: skip


@needs_library
@given(**vectors, share=st.floats(0, 1), bits=st.sampled_from([32, 4]))
@settings(max_examples=60, deadline=None)
def test_add_select_is_the_references(n, seed, spread, zeros, by, share, bits):
    n = max(n, 1)
    old, gradient = shifted(numbers(n, seed, spread, zeros), by), numbers(n, seed + 1, zeros=zeros)
    layout = Entries(n, max(1, round(share * n)), bits)
    for _ in each_isa():
        for kept in (old, old.bfloat16()):
            check_add_select(kept, gradient, layout, by)


def check_add_select(old, gradient, layout, by=0):
    ours, theirs = torch.full((2, layout.n), torch.nan)
    payload, expected = shifted(garbage(layout.nbytes), by), garbage(layout.nbytes)
    finite = NATIVE.add_select(ours, old, gradient, 1.0, 0.5, [layout], payload[None])
    assert finite == REFERENCE.add_select(theirs, old, gradient, 1.0, 0.5, [layout], expected[None])
    assert torch.equal(payload, expected)
    assert same_bits(ours, theirs)


@pytest.mark.parametrize("shape", SHAPES)
@at_every_level
def test_top_k_of_any_shape(shape: str):
    n = 300_001
    x = SHAPES[shape](n)
    for k in (1, n // 1000, n // 100, n // 3, n):
        expected = REFERENCE.top_k(x, k)
        assert torch.equal(NATIVE.top_k(x, k), expected)
        check_add_select(x, None, Entries(n, k))
        check_add_select(None, x, Entries(n, k, 4))


@pytest.mark.parametrize("n", [1, 65_535, 65_536, 65_537, 200_000])
@at_every_level
def test_entries_at_the_edges_of_blocks(n: int):
    x = torch.zeros(n)
    edges = torch.tensor([0, 65_535, 65_536, 131_071, 196_608, n - 1])
    x[edges[edges < n]] = 1.0
    for k in (1, 5, 6, 7, max(n // 100, 1)):
        check_add_select(x, None, Entries(n, min(k, n)))


@at_every_level
def test_levels_part_where_the_references_do():
    """At each of the 7 edges, and at the numbers next to it."""
    edges = levels_and_edges(torch.device("cpu"))[8:]
    around = [edges, *(torch.nextafter(edges, torch.full_like(edges, to)) for to in (0.0, 1.0))]
    x = torch.cat([torch.ones(1), *around])
    check_add_select(x, None, Entries(len(x), len(x), 4))


@at_every_level
def test_above_is_the_references():
    for shape in SHAPES.values():
        x = shape(100_001)
        for bound in (1e-38, 0.5, 2.5, float("inf")):
            expected = REFERENCE.above(x, bound, 5_000)
            found = NATIVE.above(x, bound, 5_000)
            assert (found is None) == (expected is None)
            if found and expected:
                assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@needs_library
@given(
    rows=st.integers(1, 9), length=st.integers(1, 700), share=st.floats(0, 1), seed=st.integers(0, 999),
    zeros=st.sampled_from([0.0, 0.5, 0.97, 1.0]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_rows_and_columns_are_the_references(rows, length, share, seed, zeros):
    x = numbers(rows * length, seed, 2.0, zeros).view(rows, length)
    k, of_columns = max(1, int(share * length)), max(1, int(share * rows))
    for _ in each_isa():
        assert torch.equal(*(ops.top_k_each([x], k, 1)[0] for ops in (NATIVE, REFERENCE)))
        assert torch.equal(*(ops.top_k_each([x], of_columns, 0)[0] for ops in (NATIVE, REFERENCE)))


@pytest.mark.parametrize("k", [1, 5, 40])
@at_every_level
def test_rows_with_ties_zeros_and_nan(k: int):
    x = torch.stack([shape(4608) for shape in SHAPES.values()])
    (found,) = NATIVE.top_k_each([x], k, 1)
    assert torch.equal(found, REFERENCE.top_k_each([x], k, 1)[0])
    assert bool((found.diff() > 0).all())
    sound = x.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).abs()
    order = torch.sort(sound, dim=1, descending=True, stable=True).indices[:, :k].sort(1).values
    assert torch.equal(found, order)


@pytest.mark.parametrize("k", [1, 5, 40])
@at_every_level
def test_rows_where_subnormals_count_as_zero(k: int):
    """After `torch.set_flush_denormal(True)`: rows of which fewer than k elements are normal and not zero."""
    x = torch.zeros(4, 4608)
    x[1, ::2] = 1e-40
    x[2, 7], x[2, 9::3] = -2.0, 1e-45
    x[3, 100:103] = 3.0
    expected = REFERENCE.top_k_each([x], k, 1)[0]
    with subnormals_as_zero():
        (found,) = NATIVE.top_k_each([x], k, 1)
    assert torch.equal(found, expected)


@needs_library
@pytest.mark.parametrize("bits", [32, 4])
@pytest.mark.parametrize("n", [1, 1000, 70_000, 200_001])
def test_decoding_entries_is_the_references(bits, n: int):
    layout = Entries(n, max(1, n // 16), bits)
    rows = torch.zeros(4, layout.nbytes + 8, dtype=torch.uint8)
    for rank, row in enumerate(rows):
        assert REFERENCE.add_select(
            torch.empty(n), None, numbers(n, rank), 1.0, 1.0, [layout], row[: layout.nbytes][None]
        )
    expected = torch.empty(n)
    REFERENCE.sum_entries(rows[None], expected, [layout])
    for _ in each_isa():
        parts = [torch.full((size,), torch.nan) for size in (n // 3, 0, n - n // 3)]
        NATIVE.sum_entries(rows[None], parts, [layout])
        assert torch.equal(torch.cat(parts), expected)
        for a, b in zip(
            NATIVE.unpack_entries(rows[2][None], layout), REFERENCE.unpack_entries(rows[2][None], layout), strict=True
        ):
            assert torch.equal(a, b)


@needs_library
@given(
    bits=st.sampled_from([32, 4]), n=st.sampled_from([1, 2, 40, 1023, 1024, 1025, 66_000]),
    share=st.floats(0, 1), seed=st.integers(0, 999), fill=st.sampled_from([0.0, 0.3, 1.0]), spread=st.floats(0, 8),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_entries_survive(bits, n, share, seed, fill, spread):
    """Any ascending indices, also fewer than there is room for, come back; values as near as their levels lie."""
    layout = Entries(n, max(1, int(share * n)), bits)
    generator = np.random.default_rng(seed)
    m = int(fill * layout.k)
    indices = torch.from_numpy(np.sort(generator.choice(n, m, replace=False)))
    values = numbers(m, seed, spread)
    values[values.abs() < 1e-37] = 1.0
    payload, expected = garbage(layout.nbytes), garbage(layout.nbytes)
    sent = NATIVE.pack_entries(payload[None], layout, indices[None], values[None])[0]
    assert torch.equal(sent, REFERENCE.pack_entries(expected[None], layout, indices[None], values[None])[0])
    assert torch.equal(payload, expected)
    for ops in (NATIVE, REFERENCE):
        found, decoded = ops.unpack_entries(payload[None], layout)
        assert torch.equal(found, indices)
        assert torch.equal(decoded, sent)
    if not layout.exact:
        assert bool((sent.sign() == values.sign()).all())
        largest = torch.zeros(-(-n // 1024)).scatter_reduce_(0, indices // 1024, values.abs(), "amax")[indices // 1024]
        inside = values.abs() > largest * 2**-5
        assert bool(((sent / values)[inside].log2().abs() < 0.39).all())


def test_places_take_2_bits_and_those_of_their_gap():
    for ratio, expected in ((8, 5), (16, 6), (32, 7), (64, 8)):
        n = 1 << 20
        for bits, scales in ((4, 16 * n / 1024), (32, 0)):
            nbytes = Entries(n, n // ratio, bits).nbytes
            assert 8 * nbytes - scales == pytest.approx((expected + bits) * n / ratio, rel=0.001)


@needs_library
@given(n=st.sampled_from([1, 40, 1023, 66_000]), share=st.floats(0, 1.5), seed=st.integers(0), fill=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_places_survive(n, share, seed, fill):
    """With room for more than there are, too."""
    layout = EliasFano(n, max(1, int(share * n)))
    m = int(fill * min(n, layout.k))
    indices = torch.from_numpy(np.sort(np.random.default_rng(seed).choice(n, m, replace=False)))
    payload, expected = garbage(layout.nbytes), garbage(layout.nbytes)
    NATIVE.pack_indices(payload[None], layout, indices[None])
    REFERENCE.pack_indices(expected[None], layout, indices[None])
    assert torch.equal(payload, expected)
    for ops in (NATIVE, REFERENCE):
        found, filled = ops.unpack_indices(payload[None], layout)
        assert torch.equal(found[filled], indices)
        assert int(filled.sum()) == m
        assert bool((found < n).all())


def hostile() -> Iterator[tuple[Entries, Tensor]]:
    """More entries than there is room for, and one behind the last element."""
    for n, k, bits in ((70_000, 10, 32), (70_000, 10, 4), (1024, 1024, 32), (1024, 1024, 4), (5, 1, 4), (5, 1, 32)):
        layout = Entries(n, k, bits)
        yield layout, torch.full((layout.nbytes,), 255, dtype=torch.uint8)
    for bits in (32, 4):
        layout = Entries(1000, 10, bits)
        high = torch.zeros(layout.nbytes, dtype=torch.uint8)
        high[layout.places_at + layout.places.upper_bytes - 1] = 0x80
        yield layout, high


@needs_library
def test_hostile_payloads_are_refused():
    for layout, row in hostile():
        for ops in (NATIVE, REFERENCE):
            for _ in each_isa():
                with pytest.raises(ValueError, match="is no payload"):
                    ops.sum_entries(row.repeat(1, 2, 1), torch.empty(layout.n), [layout])
                with pytest.raises(ValueError, match="is no payload"):
                    ops.unpack_indices(row[None, layout.places_at : layout.values_at], layout.places)
                with pytest.raises(ValueError, match="is no payload"):
                    ops.unpack_entries(row[None], layout)


@needs_library
@given(
    data=st.binary(max_size=300),
    n=st.integers(1, 3000),
    share=st.floats(0, 1),
    bits=st.sampled_from([32, 4]),
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_mean_the_same_to_both(data, n, share, bits):
    layout = Entries(n, max(1, int(share * min(n, 64))), bits)
    row = torch.zeros(layout.nbytes, dtype=torch.uint8)
    mine = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: layout.nbytes]
    row[: len(mine)] = mine
    found = []
    for ops in (NATIVE, REFERENCE):
        try:
            found.append(ops.unpack_entries(row[None], layout))
        except ValueError:
            found.append(None)
    assert (found[0] is None) == (found[1] is None)
    if found[0]:
        assert torch.equal(found[0][0], found[1][0])
        assert same_bits(found[0][1], found[1][1])


@needs_library
def test_room_grows_and_is_kept():
    def room() -> list[int]:
        """Of a thread that has none yet: its bytes after each call."""
        seen = []
        for nbytes in (100, 1 << 20, 100):
            assert scratch(nbytes) == scratch(50)
            seen.append(len(_kept.bytes))
        return seen

    with ThreadPoolExecutor(1) as pool:
        first, *grown = pool.submit(room).result()
    assert 100 <= first < 1 << 20 <= grown[0] == grown[1]
