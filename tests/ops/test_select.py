"""Top-k against a dense sort."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import gradwire as gw
from gradwire.ops.backend import backend_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.reference.largest import SAMPLE, TINY, lower_bound
from tests.support.harness import alone


def check(x: Tensor, k: int) -> None:
    """The k largest magnitudes, each index once, ascending; zeros may be left out; the first of equals win."""
    before = x.clone()
    indices = backend_for(x).top_k(x, k)
    assert torch.equal(x, before)
    assert indices.dtype == torch.int64
    assert bool((indices.diff() > 0).all())
    magnitude = x.abs()
    expected = min(k, int(magnitude.ge(TINY).sum()))
    assert len(indices) == expected
    if not expected:
        return
    order = torch.sort(magnitude, descending=True, stable=True).indices[:expected].sort().values
    assert torch.equal(indices, order)


def normal(n: int, generator: np.random.Generator) -> np.ndarray:
    return generator.standard_normal(n)


def heavy_tailed(n: int, generator: np.random.Generator) -> np.ndarray:
    return generator.standard_cauchy(n)


def log_normal(n: int, generator: np.random.Generator) -> np.ndarray:
    return np.exp(10 * generator.standard_normal(n)) * generator.choice([-1, 1], n)


def constant(n: int, generator: np.random.Generator) -> np.ndarray:
    return np.full(n, -0.5)


def zero(n: int, generator: np.random.Generator) -> np.ndarray:
    return np.zeros(n)


def mostly_zero(n: int, generator: np.random.Generator) -> np.ndarray:
    return generator.standard_normal(n) * (generator.random(n) < 0.004)


def ascending(n: int, generator: np.random.Generator) -> np.ndarray:
    return np.arange(n) / n


def descending(n: int, generator: np.random.Generator) -> np.ndarray:
    return -np.arange(n)[::-1] / n


def periodic(n: int, generator: np.random.Generator) -> np.ndarray:
    return np.where(np.arange(n) % 256 == 0, 100.0, 1.0) * generator.standard_normal(n)


def few_values(n: int, generator: np.random.Generator) -> np.ndarray:
    return generator.integers(-3, 4, n).astype(float)


def clustered(n: int, generator: np.random.Generator) -> np.ndarray:
    """All that is large lies in one place, which a strided sample barely meets."""
    x = 1e-3 * generator.standard_normal(n)
    x[n // 3 : n // 3 + n // 50 + 1] += 10
    return x


def infinite(n: int, generator: np.random.Generator) -> np.ndarray:
    x = generator.standard_normal(n)
    x[:: max(1, n // 5)] = np.inf
    x[n // 2] = -np.inf
    return x


SHAPES = [
    normal, heavy_tailed, log_normal, constant, zero, mostly_zero, ascending, descending, periodic, few_values,
    clustered, infinite,
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 2, 1000, SAMPLE, SAMPLE + 1, 3 * SAMPLE + 5, 1 << 20])
def test_top_k_is_a_dense_sorts(shape, n: int):
    x = torch.from_numpy(shape(n, np.random.default_rng(n)).astype(np.float32))
    for ratio in (0.0005, 0.01, 0.3) if n < SAMPLE else (0.01,):
        check(x, max(1, int(ratio * n)))


@pytest.mark.parametrize("k", [1, 999, 199_999, 200_000])
def test_any_k(k: int):
    check(torch.from_numpy(normal(200_000, np.random.default_rng(k)).astype(np.float32)), k)


@pytest.mark.parametrize("shape", [normal, heavy_tailed, log_normal])
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.3])
def test_at_least_k_and_few_more_reach_the_first_bound(shape, ratio: float):
    """Where fewer reach it, top-k is exact all the same, but passes over x once more."""
    n = 40 * SAMPLE
    x, k = torch.from_numpy(shape(n, np.random.default_rng(0)).astype(np.float32)), int(ratio * n)
    reach = int(x.abs().ge(lower_bound(x, k, slack=4.0)).sum())
    of_the_sample = ratio * SAMPLE
    assert k <= reach <= k * (1 + 8 * (of_the_sample**0.5 + 1) / of_the_sample)


@pytest.mark.parametrize("loud", range(9))
def test_a_convolution_whose_places_differ_is_sampled_at_all_of_them(loud: int):
    """With 135 times as many elements as a sample has, every 135th lay at one place of each 3x3 kernel."""
    n = 135 * SAMPLE + 5
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    x[loud::9] *= 1.5
    k = n // 20
    assert k <= int(x.abs().ge(lower_bound(x, k, slack=4.0)).sum()) <= 1.3 * k


@given(
    x=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=60),
    share=st.floats(min_value=0, max_value=1),
)
@example(x=[0.0, -0.0, 1e-45, 1.0], share=1.0)
@settings(max_examples=150, deadline=None)
def test_any_numbers(x: list[float], share: float):
    check(torch.tensor(x), max(1, round(share * len(x))))


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 300_000),
    ratio=st.sampled_from([1e-4, 0.01, 0.1, 0.5]),
    spread=st.floats(0, 20),
)
@settings(max_examples=25, deadline=None)
def test_any_spread(seed: int, n: int, ratio: float, spread: float):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(n) * np.exp(spread * generator.standard_normal(n))
    check(torch.from_numpy(x.clip(-1e38, 1e38).astype(np.float32)), max(1, int(ratio * n)))


@pytest.mark.parametrize("n", [1, 65_535, 65_536, 65_537, 300_000])
@pytest.mark.parametrize("ratio", [1e-6, 0.01, 1.0])
@pytest.mark.parametrize("compressor", [gw.TopK, gw.DGC])
def test_entries_survive_sixteen_bit_indices(compressor, n: int, ratio: float):
    """The blocks' edges, an empty block in the middle, and a last one that holds nothing."""
    codec = compressor(ratio)
    for fill in ("all", "edges", "none"):
        x = torch.randn(n, generator=torch.Generator().manual_seed(n)) if fill == "all" else torch.zeros(n)
        if fill == "edges":
            edges = torch.tensor([0, 65_535, 65_536, 131_071, 196_608, n - 1])
            x[edges[edges < n]] = torch.arange(1.0, 1 + int((edges < n).sum()))
        context, left = alone(n, codec), x.clone()
        payload = torch.full((codec.payload_bytes(n),), 255, dtype=torch.uint8)
        codec.encode(LazySum.of(left), payload[None], context.whole)
        out = torch.empty(n)
        codec.decode(payload[None, None], Mean.of(out), context.whole)
        sent = out.ne(0)
        assert torch.equal(out[sent], x[sent])
        assert int(sent.sum()) <= codec.count(n)
        if compressor is gw.TopK:
            kept = x.clone().masked_fill_(sent, 0).abs().max()
            assert int(sent.sum()) == min(codec.count(n), int(x.ne(0).sum()))
            assert not sent.any() or out[sent].abs().min() >= kept
        assert torch.equal(left, x.masked_fill(sent, 0))


@pytest.mark.parametrize("n", [50_000, 200_000, 1_000_000, 1_050_000])
def test_dgc_sends_large_elements(n: int):
    """At least 0.7 k of them, and each of the 0.5 k largest."""
    codec = gw.DGC(0.01)
    x, k = torch.randn(n, generator=torch.Generator().manual_seed(n)), codec.count(n)
    indices = codec.select(x, k, alone(n, codec))
    assert 0.7 * k <= len(indices) <= k
    largest = x.abs().topk(k // 2).indices
    assert torch.isin(largest, indices).all()


def test_dgc_does_not_prefer_the_first_elements():
    x = torch.ones(300_000)
    x[200_000:] = 2 + torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    codec = gw.DGC(0.01)
    assert codec.select(x, codec.count(len(x)), alone(len(x), codec)).min() >= 200_000
