"""Stochastic rounding: unbiased, to a neighbour, and the same wherever it is computed."""

import pytest
import torch
from hypothesis import example, given, settings

from gradwire.ops.backend import NATIVE, REFERENCE, Backend
from gradwire.ops.noise import Seed, hashed
from tests.support.kernel_cases import each_isa, needs_library, numbers, shifted, vectors

BACKENDS = [pytest.param(NATIVE, marks=needs_library, id="native"), pytest.param(REFERENCE, id="reference")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_expectation_is_the_number(backend: Backend):
    """The mean of many roundings lies within 6.5 standard errors of the number, in every element."""
    x, runs = numbers(4001, seed=0, spread=3.0), 400
    rounded = torch.stack([one_of(backend, x, Seed(run)) for run in range(runs)]).double()
    step = neighbours(x)[1] - neighbours(x)[0]
    share = (x.double() - neighbours(x)[0]) / step
    deviation = step * (share * (1 - share) / runs).sqrt().clamp_min(0.2 / runs)
    assert ((rounded.mean(0) - x) / deviation).abs().max() < 6.5
    assert abs(((rounded.mean(0) - x) / deviation).mean()) * len(x) ** 0.5 < 5.5, "a small bias in all elements"


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_rounds_to_a_neighbour(backend: Backend):
    # of more than one tile, with zeros, denormal numbers, and numbers that bfloat16 holds
    x = torch.cat([numbers(600_000, seed=1, spread=5.0, zeros=0.1), torch.tensor([0.0, -0.0, 1e-40, -3e-45, 2.0**95])])
    x[::3] = x[::3].bfloat16().float()
    rounded = one_of(backend, x, Seed(3))
    below, above = neighbours(x)
    assert bool(((rounded == below) | (rounded == above)).all())
    assert torch.equal(rounded[::3].float(), x[::3])
    assert torch.equal(rounded, one_of(backend, x, Seed(3)))
    assert not torch.equal(rounded, one_of(backend, x, Seed(4)))


@given(**vectors)
@settings(max_examples=60, deadline=None)
@example(n=(1 << 18) + 5, seed=0, spread=1.0, zeros=0.0, by=1)
@needs_library
def test_the_library_gives_the_references_bits(n: int, seed: int, spread: float, zeros: float, by: int):
    x = shifted(numbers(n, seed, spread, zeros), by)
    for _ in each_isa():
        assert torch.equal(one_of(NATIVE, x, Seed(seed)), one_of(REFERENCE, x, Seed(seed)))


def test_tiles_have_noise_of_their_own():
    x = torch.full((1 << 19,), 1 + 2.0**-8)
    first, second = one_of(REFERENCE, x, Seed(0)).chunk(2)
    assert not torch.equal(first, second)


def test_a_gpu_hashes_the_number_of_the_step():
    triton = pytest.importorskip("gradwire.ops.triton")
    x = numbers(3001, seed=2)
    for step in range(2):
        seed = Seed(0, salt=77, word=torch.tensor([step]))
        noise = (hashed(len(x), seed, x.device) >> 16) + (1 << 15)
        expected = (x.view(torch.int32) + noise).bitwise_and_(-1 << 16).view(torch.float32).bfloat16()
        assert torch.equal(one_of(triton.TRITON, x, seed), expected)


def one_of(backend: Backend, x: torch.Tensor, seed: Seed) -> torch.Tensor:
    out = torch.full_like(x, torch.nan, dtype=torch.bfloat16)
    backend.round_stochastically(x.clone(), out, seed)
    return out


def neighbours(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of bfloat16 on both sides, float64, the lesser first; where it holds x, x and the one further out."""
    bits = x.view(torch.int32).bitwise_and(-1 << 16)
    both = torch.stack([bits, bits + (1 << 16)]).view(torch.float32).double()
    return both.amin(0), both.amax(0)
