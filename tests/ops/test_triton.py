"""The kernels for GPUs against their definition, in Triton's interpreter."""

from itertools import pairwise
from math import prod
from typing import Any, Literal
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.backend import REFERENCE, Backend
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, Code, nearest
from gradwire.ops.noise import SALT_MASK, Seed, hashed_draws
from tests.support.kernel_cases import CODES, DTYPES, SHAPES, garbage, numbers, same_bits, weighable

triton: Any = pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter is numpy, which warns of infinities
from gradwire.ops.reference.products import COLUMNS, ROWS  # noqa: E402
from gradwire.ops.triton import TRITON, products  # noqa: E402
from gradwire.ops.triton.launching import launch, programs_for, programs_of  # noqa: E402

vectors = {"n": st.one_of(st.integers(0, 70), st.integers(4000, 9000)), "seed": st.integers(0, 2**32 - 1)}
few = settings(max_examples=25, deadline=None)


@given(
    **vectors, dtype=st.sampled_from(DTYPES), decay=st.sampled_from([1.0, 0.9]),
    number=st.sampled_from([1 / 3, 0.0]), scaled=st.booleans(),
)  # fmt: skip
@few
def test_add_in_is_the_references(n: int, seed: int, dtype: torch.dtype, decay: float, number: float, scaled: bool):
    old, gradient = numbers(n, seed), weighable(n, seed + 1, number).to(dtype)
    weight = torch.tensor(number) if scaled else number
    cuts = sorted({0, n // 3, n // 2, n})
    pieces: list[Tensor | int] = [gradient[a:b] for a, b in pairwise(cuts)]
    for source in (gradient, None, pieces or gradient):
        for kept in (old, old.bfloat16(), None):
            ours, theirs = torch.full((2, n), torch.nan)
            nonfinite = torch.zeros(1)
            assert TRITON.add_in(ours, kept, source, decay, weight, nonfinite=nonfinite)
            assert bool(nonfinite.isfinite()) == REFERENCE.add_in(theirs, kept, source, decay, weight)
            assert same_bits(ours, theirs)
            assert theirs.isfinite().all()


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan, 2.0**96])
@pytest.mark.parametrize("where", [0, 4095, 4096, 9999])
def test_one_bad_element_anywhere(where: int, bad: float):
    x = torch.ones(10_000)
    x[where] = bad
    first, second = torch.zeros(2, 1)
    TRITON.add_in(torch.empty(10_000), None, x, 1.0, 1.0, nonfinite=first)
    layout = Blocks((10_000,), nearest(4))
    payload, next = garbage(layout.nbytes), torch.empty(10_000)
    TRITON.add_quantise(next, None, x, 1.0, 1.0, [layout], payload[None], keep=True, nonfinite=second, seeds=[Seed(0)])
    assert bool(first.isnan() & second.isnan())


@given(**vectors, code=st.sampled_from(CODES), cut=st.floats(0, 1), keep=st.booleans(), dtype=st.sampled_from(DTYPES))
@settings(max_examples=40, deadline=None)
def test_blocks_are_the_references(n: int, seed: int, code: Code, cut: float, keep: bool, dtype: torch.dtype):
    first = int(cut * n)
    layout = Blocks((first, n - first), code)
    old, gradient = numbers(n, seed), numbers(n, seed + 1).to(dtype)
    ours, theirs = torch.full((2, n), torch.nan)
    payload, expected = garbage(layout.nbytes), garbage(layout.nbytes)
    nonfinite = torch.zeros(1)
    TRITON.add_quantise(
        ours, old, gradient, 0.9, 0.25, [layout], payload[None], keep=keep, seeds=[Seed(seed)], nonfinite=nonfinite
    )
    REFERENCE.add_quantise(theirs, old, gradient, 0.9, 0.25, [layout], expected[None], keep=keep, seeds=[Seed(seed)])
    assert not nonfinite
    if code.has_noise:
        check_noise(ours, old * 0.9 + gradient.float() * 0.25, payload, layout, keep)
        return
    codes = slice(layout.codes_at, layout.end)
    assert torch.equal(payload[codes], expected[codes])
    scales = slice(0, layout.count * code.scale_bytes)
    kind = torch.bfloat16 if code.scale_bytes == 2 else torch.float32
    assert_close(payload[scales].view(kind).float(), expected[scales].view(kind).float())
    if keep:
        assert_close(ours, theirs)


def check_noise(left: Tensor, x: Tensor, payload: Tensor, layout: Blocks, keep: bool) -> None:
    """Every element is rounded to one of its two neighbours."""
    values = torch.empty(layout.numel)
    REFERENCE.sum_blocks(payload[None, None], values, [layout])
    assert bool(((values - x).abs() <= step_of(x, layout) * (1 + 1e-5)).all())
    if keep:
        torch.testing.assert_close(left, x - values, rtol=1e-5, atol=1e-5 * float(x.abs().max()) if len(x) else 0)


def step_of(x: Tensor, layout: Blocks) -> Tensor:
    """The distance of levels at each element; with a shared exponent at most this."""
    blocks = [block for part in x.split(list(layout.lengths)) for block in part.split(layout.code.block)]
    steps = [block.abs().max().expand(len(block)) for block in blocks if len(block)]
    most = 63.5 if layout.code.kind == "shared exponent" else layout.code.top
    return torch.cat([torch.empty(0), *steps]) / most


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    limit = 1e-5 * float(theirs.abs().max()) if theirs.numel() else 0.0
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=limit)


@given(**vectors, code=st.sampled_from(CODES), cut=st.floats(0, 1), ranks=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_sums_of_blocks_are_the_references(n: int, seed: int, code: Code, cut: float, ranks: int):
    first = int(cut * n)
    layout = Blocks((first, n - first), code)
    rows = torch.stack([garbage(layout.nbytes + 4) for _ in range(ranks)])
    for rank, row in enumerate(rows):
        x = numbers(n, seed + rank)
        REFERENCE.add_quantise(
            x, x, None, 1.0, 1.0, [layout], row[: layout.nbytes][None], keep=False, seeds=[Seed(rank)]
        )
    ours, theirs = torch.full((2, n), torch.nan)
    TRITON.sum_blocks(rows[None], list(ours.split([first, n - first])), [layout])
    REFERENCE.sum_blocks(rows[None], theirs, [layout])
    assert same_bits(ours, theirs)


@given(
    kind=st.sampled_from([(1, 32), (100, 32), (5000, 32), (1, 4), (100, 4), (5000, 4)]),
    ratio=st.floats(0.001, 0.2), seed=st.integers(0, 1000), zeros=st.sampled_from([0.3, 0.999]),
    dtype=st.sampled_from(DTYPES),
)  # fmt: skip
@example(kind=(65_537, 32), ratio=0.01, seed=0, zeros=0.3, dtype=torch.float32)
@example(kind=(5000, 32), ratio=0.01, seed=0, zeros=0.3, dtype=torch.bfloat16)
@settings(max_examples=12, deadline=None)
def test_entries_are_the_references(
    kind: tuple[int, Literal[32, 4]], ratio: float, seed: int, zeros: float, dtype: torch.dtype
):
    n, bits = kind
    layout = Entries(n, max(1, int(n * ratio)), bits)
    old, gradient = numbers(n, seed, 1.0, zeros), numbers(n, seed + 1, 1.0, zeros if bits == 4 else 0.0).to(dtype)
    largest = (0.9 * old + 0.5 * gradient).abs().topk(min(n, layout.k + 1)).values
    zero = bits == 4 and largest[-1] == 0  # of zeros no level travels, and of exact values a CPU sends none
    assume(largest[-1] > 0 or layout.k == n or zero)
    ours, theirs = torch.full((2, n), torch.nan)
    payload, expected = garbage(layout.nbytes), garbage(layout.nbytes)
    nonfinite = torch.zeros(1)
    TRITON.add_select(ours, old, gradient, 0.9, 0.5, [layout], payload[None], nonfinite=nonfinite)
    assert not nonfinite
    assert REFERENCE.add_select(theirs, old, gradient, 0.9, 0.5, [layout], expected[None])
    assert torch.equal(payload, expected)
    assert torch.equal(ours, theirs)

    rows = torch.stack([payload, expected, payload])
    sums, expected_sums = torch.full((2, n), torch.nan)
    TRITON.sum_entries(rows[None], sums, [layout])
    REFERENCE.sum_entries(rows[None], expected_sums, [layout])
    assert torch.equal(sums, expected_sums)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_largest_are_chosen_and_the_first_of_equals(shape: str):
    """Whatever a sample promises; always k, for zeros count too, and NaN counts as zero."""
    x = SHAPES[shape](35_000).float()
    order = x.abs().nan_to_num(0, torch.inf).argsort(descending=True, stable=True)
    assert torch.equal(TRITON.top_k(x, 350), order[:350].sort().values)


def test_the_largest_of_several_vectors():
    x = numbers(3 * 2500, 0).view(3, 2500)
    assert torch.equal(TRITON.top_k(x, 100), x.abs().topk(100).indices.sort().values)


@given(
    n=st.sampled_from([1, 100, 7000]), share=st.floats(0, 1), seed=st.integers(0, 1000), bits=st.sampled_from([32, 4])
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_rows_of_entries_are_the_references(n: int, share: float, seed: int, bits: Literal[32, 4]):
    """Of which some have fewer than there is room for."""
    layout, ranks = Entries(n, max(1, n // 20), bits), 3
    m = max(1, int(share * layout.k))
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randperm(n, generator=generator)[:m].sort().values for _ in range(ranks)])
    values = torch.randn(ranks, m, generator=generator)
    indices[1, m // 2 :], values[1, m // 2 :] = n + 3, 0
    rows, expected = (torch.stack([garbage(layout.nbytes + 4) for _ in range(ranks)]) for _ in range(2))
    sent = TRITON.pack_entries(rows, layout, indices, values)
    assert torch.equal(sent, REFERENCE.pack_entries(expected, layout, indices, values))
    assert torch.equal(rows, expected)
    for ours, theirs in zip(_unpacked(TRITON, rows, layout), _unpacked(None, rows, layout), strict=True):
        assert torch.equal(ours, theirs)
    TRITON.pack_indices(rows, layout.places, indices)
    REFERENCE.pack_indices(expected, layout.places, indices)
    assert torch.equal(rows, expected)


def _unpacked(kernels: Backend | None, rows: Tensor, layout: Entries) -> list[Tensor]:
    """Entries and, of the same payloads, places; what is no entry counts as none. Without kernels, as the
    reference does on a GPU."""
    of_places = rows[:, layout.places_at :]
    if kernels is None:
        indices, values = (each.reshape(-1) for each in reference.entries.unpack_entry_rows(rows, layout))
        places, filled = reference.elias_fano.unpack_place_rows(of_places, layout.places)
    else:
        indices, values = kernels.unpack_entries(rows, layout)
        places, filled = kernels.unpack_indices(of_places, layout.places)
    return [indices * values.ne(0), values, places * filled, filled]


@given(bits=st.integers(1, 13), k=st.sampled_from([8, 24]), payloads=st.integers(1, 3), rows=st.integers(1, 60))
@few
def test_words_are_the_references(bits: int, k: int, payloads: int, rows: int):
    words = torch.randint(0, 1 << bits, (payloads, rows, k), generator=torch.Generator().manual_seed(rows))
    nbytes = rows * k * bits // 8
    ours, theirs = (torch.zeros(payloads, nbytes + 3, dtype=torch.uint8) for _ in range(2))
    for computing, room in ((TRITON, ours), (REFERENCE, theirs)):
        codes = room[:, :nbytes].unflatten(1, (rows, -1))
        computing.pack_words(words.bool() if bits == 1 else words, bits, codes)
        assert torch.equal(computing.unpack_words(codes, bits, k), words)
    assert torch.equal(ours, theirs)


@given(
    **vectors, dtype=st.sampled_from(DTYPES), parts=st.integers(1, 4), spread=st.sampled_from([0.0, 10.0]),
    limit=st.sampled_from([torch.inf, 60_000.0, 0.3]), keep=st.booleans(),
)  # fmt: skip
@few
def test_casts_are_the_references(
    n: int, seed: int, dtype: torch.dtype, parts: int, spread: float, limit: float, keep: bool
):
    length = -(-n // parts)
    x, rows = numbers(n, seed, spread).clamp(-limit, limit), torch.full((2, parts, length + 3), 7.0, dtype=dtype)
    ours, theirs, bounds = x.clone(), x.clone(), [min(n, i * length) for i in range(parts + 1)]
    for computing, left, room in ((TRITON, ours, rows[0]), (REFERENCE, theirs, rows[1])):
        computing.cast_parts(left, room, bounds, limit / 2, keep=keep)
    assert same_bits(rows[0].float(), rows[1].float())
    assert same_bits(ours, theirs)


def test_zeros_that_fill_up_a_payload_leave_the_element_that_they_fall_on():
    """As `GlobalTopK` leaves them at the last index, where fewer than k sums are not zero."""
    layout, indices = Entries(100, 10), torch.tensor([[3, 50, *[90] * 8]])
    payload = torch.zeros(1, 2, layout.nbytes, dtype=torch.uint8)
    for rank, own in enumerate(([1.0, 2.0, 3.0, *[0.0] * 7], [1.0, 2.0, *[0.0] * 7, 3.0])):
        REFERENCE.pack_entries(payload[:, rank], layout, indices, torch.tensor([own]))
    ours, theirs = torch.empty(2, 100)
    for ops, out in ((TRITON, ours), (REFERENCE, theirs)):
        ops.sum_entries(payload, out, [layout])
    assert ours[90] == 6
    assert torch.equal(ours, theirs)


@given(n=st.sampled_from([1, 100, 5000]), seed=st.integers(0, 1000))
@settings(max_examples=12, deadline=None)
def test_what_is_no_payload_is_written_nowhere_else(n: int, seed: int):
    layout = Entries(n, max(1, n // 10))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 256, (1, layout.nbytes), generator=generator, dtype=torch.uint8)
    room = torch.full((n + 200_000,), 7.0)
    TRITON.sum_entries(rows[None], room[100_000 : 100_000 + n], [layout])
    assert bool((room[:100_000] == 7).all())
    assert bool((room[100_000 + n :] == 7).all())


@given(
    shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 1500)), min_size=1, max_size=3),
    seed=st.integers(0, 1000), size=st.sampled_from([1e-42, 1e-30, 1.0, 1e30]),
)  # fmt: skip
@few
def test_renewed_factors_are_the_references(shapes: list[tuple[int, int, int]], seed: int, size: float):
    vectors = torch.stack([size * numbers(sum(map(prod, shapes)), seed), numbers(sum(map(prod, shapes)), seed + 1)])
    vectors[0, : prod(shapes[0][1:])] = 0
    found = []
    for kernels_ in (TRITON, REFERENCE):
        copy = vectors.clone()
        factors, before = (in_batches(vector, shapes) for vector in copy)
        found.append((kernels_.renew(factors, before), copy))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_factors_that_are_not_finite_are_seen(wrong: float):
    factor, before = torch.ones(2, 1, 2, 1100)
    factor[0, 1, 1050] = wrong
    assert not TRITON.renew([factor], [before]).isfinite().any()


FILLS = {
    "normal": lambda a: a,
    "zero": torch.zeros_like,
    "equal rows": lambda a: a[:, :1].expand_as(a),
    "some zero rows": lambda a: a * torch.eye(1, a.shape[1]).mT,
    "tiny": lambda a: 1e-40 * a,
    "huge": lambda a: 1e30 * a,
    "graded": lambda a: a * torch.logspace(0, -20, a.shape[1])[:, None],
    "near": lambda a: a[:, :1] + 1e-5 * a,
}


@pytest.mark.parametrize(
    ("rank", "fill"),
    [(4, fill) for fill in FILLS] + [pytest.param(17, fill, marks=pytest.mark.long) for fill in ("graded", "near")],
)
def test_whatever_factors_are_they_become_orthonormal_and_span_what_they_did(rank: int, fill: str):
    """All batches in one launch, square and long ones; the longest in torch."""
    shapes = [(2, rank, rank), (1, 3, 200), (1, rank, 5000), (1, rank, 70)]
    vector = torch.randn(sum(map(prod, shapes)), generator=torch.Generator().manual_seed(rank))
    factors = in_batches(vector, shapes)
    for factor in factors:
        factor.copy_(FILLS[fill](factor.clone()))
    before = [factor.double() for factor in factors]
    TRITON.orthogonalize(factors)
    for factor, old in zip(factors, before, strict=True):
        new = factor.double()
        limit = 2e-6 if new.shape[2] < 4096 else 5e-6  # those are LAPACK's in float32, which differ by processor
        assert (new @ new.mT - torch.eye(new.shape[1])).abs().max() < limit
        assert (old @ new.mT @ new - old).norm() <= 1e-5 * old.norm()


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 2), st.integers(1, 70), st.integers(1, 70), st.sampled_from([1, 4, 16, 32])),
        min_size=1, max_size=2,
    ),
    gap=st.integers(0, 3), seed=st.integers(0, 1000),
)  # fmt: skip
@example(shapes=[(2, 530, 3, 4), (1, 2, 515, 4), (1, 2, 530, 1)], gap=1, seed=0)
@settings(max_examples=6, deadline=None)
@patch.object(products, "LONGEST", 520)
def test_products_are_the_references(shapes: list[tuple[int, int, int, int]], gap: int, seed: int):
    """Of all batches, whose matrices lie apart, and what lies between them; sums of more than 520 are torch's."""
    sides = [[(count, rank, lengths[side]) for count, *lengths, rank in shapes] for side in (0, 1)]
    sizes = [count * (rows * columns + gap) for count, rows, columns, _ in shapes]
    vectors = [numbers(n, seed + i) for i, n in enumerate([sum(sizes), *(sum(map(prod, side)) for side in sides)])]
    found = []
    for kernels_ in (TRITON, REFERENCE):
        flat, p, q = (vector.clone() for vector in vectors)
        taken, (left, right) = flat.clone(), (in_batches(x, side) for x, side in zip((p, q), sides, strict=True))
        matrices, others = (
            [
                part.as_strided((count, rows, columns), (rows * columns + gap, columns, 1))
                for part, (count, rows, columns, _) in zip(x.split(sizes), shapes, strict=True)
            ]
            for x in (flat, taken)
        )
        kernels_.multiply([[other] for other in others], left, right, subtract=True)
        kernels_.project(matrices, right, left, ROWS)
        kernels_.project(matrices, left, right, COLUMNS)
        kernels_.multiply([[matrix] for matrix in matrices], left, right, subtract=False)
        found.append((taken, p, q, flat))
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs)


@given(n=st.sampled_from([1, 100, 5000]), salt=st.integers(0, SALT_MASK), step=st.integers(0, 2**40))
@settings(max_examples=12, deadline=None)
def test_draws_are_the_hashed_ones(n: int, salt: int, step: int):
    seed, cpu = Seed(0, salt, torch.tensor([step])), torch.device("cpu")
    assert torch.equal(TRITON.draws(n, seed, cpu), hashed_draws(n, seed, cpu))


@triton.jit
def count_programs(out, n, SIZE: triton.language.constexpr):
    triton.language.store(out, programs_of(n, SIZE))


@pytest.mark.parametrize("n", [1, 2, 2048, 2049, 2**31 - 1])
def test_programs_are_counted_as_the_host_counts_them(n: int):
    """Of the longest vector, too, whose elements and one more program's have no number of 32 bits."""
    found = torch.zeros(1, dtype=torch.int64)
    launch(count_programs, 1, found, n, SIZE=2048)
    assert found.item() == programs_for(n, 2048)


def in_batches(vector: Tensor, shapes: list[tuple[int, int, int]]) -> list[Tensor]:
    """Batches of factors (k, rank, length), one after another."""
    return [part.view(shape) for part, shape in zip(vector.split([*map(prod, shapes)]), shapes, strict=True)]
