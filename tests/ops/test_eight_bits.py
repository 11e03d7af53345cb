"""Vectors in 8 bits: rounding is unbiased, goes to a neighbour, and changes nothing the second time."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradwire.ops.backend import NATIVE, REFERENCE, Backend
from gradwire.ops.eight_bits import CODE, blocks_of
from gradwire.ops.noise import Seed
from tests.support.kernel_cases import needs_library, numbers, vectors

BACKENDS = [pytest.param(NATIVE, marks=needs_library, id="native"), pytest.param(REFERENCE, id="reference")]
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def rounded(backend: Backend, x: Tensor, seed: int, *lengths: int) -> Tensor:
    """x, encoded in slots of these lengths and decoded again."""
    layout, out = blocks_of(lengths or [len(x)]), torch.empty_like(x)
    payload = torch.full((layout.nbytes,), 0xA5, dtype=torch.uint8)
    backend.add_quantise(x.clone(), x, None, 1.0, 1.0, [layout], payload[None], keep=False, seeds=[Seed(seed)])
    backend.sum_blocks(payload[None, None], out, [layout])
    return out


def steps(x: Tensor) -> Tensor:
    """The distance of levels at each element of one slot."""
    largest = [block.abs().max().expand(len(block)).double() for block in x.split(CODE.block)]
    return torch.cat([(most / 127).log2().ceil().exp2().clamp_min(2.0**-126) for most in largest])


@each_backend
def test_the_expectation_is_the_number(backend: Backend):
    """The mean of many roundings lies within 6.5 standard errors of the number, in every element."""
    x, runs = numbers(4001, seed=0, spread=1.0), 400
    found = torch.stack([rounded(backend, x, run) for run in range(runs)]).double()
    share = (x.double() / steps(x)).frac().abs()
    deviation = steps(x) * (share * (1 - share) / runs).sqrt().clamp_min(0.2 / runs)
    errors = (found.mean(0) - x) / deviation
    assert errors.abs().max() < 6.5
    assert abs(errors.mean()) * len(x) ** 0.5 < 5.5, "a small bias in all elements"


@each_backend
@given(**vectors | {"spread": st.floats(0, 5)})
@settings(max_examples=60, deadline=None)
@example(n=(1 << 18) + 5, seed=0, spread=1.0, zeros=0.0, by=1)
def test_it_rounds_to_a_neighbour_and_then_stays(
    backend: Backend, n: int, seed: int, spread: float, zeros: float, by: int
):
    x = numbers(n, seed, spread, zeros)
    once = rounded(backend, x, seed)
    if n:
        assert bool(((once - x).double().abs() < steps(x)).all())
    assert all(torch.equal(rounded(backend, once, seed + other), once) for other in range(1, 4 + by))


@each_backend
def test_slots_that_are_encoded_together_are_encoded_as_if_alone(backend: Backend):
    lengths = (1, 300, 0, 128, 7, 1000)
    x = numbers(sum(lengths), seed=3, spread=2.0)
    alone = torch.cat([rounded(backend, part, 5) for part in x.split(list(lengths))])
    assert torch.equal(rounded(backend, alone, 6, *lengths), alone)
    # small numbers beside a slot of large ones keep scales of their own
    x[301:429] *= 1e6
    assert bool(((rounded(backend, x, 7, *lengths) - x)[:301].abs() <= x[:301].abs().max() / 63).all())


@each_backend
def test_every_code_stays(backend: Backend):
    """With noise of every size: the largest would take a whole number to a half that rounds to the next one."""
    x = torch.arange(-127, 128).float().repeat(257 * 4)
    assert torch.equal(rounded(backend, x, 0), x)


def test_a_gpus_codes_stay():
    triton = pytest.importorskip("gradwire.ops.triton")
    x = torch.arange(-127, 128).float().repeat(40)
    assert torch.equal(rounded(triton.TRITON, x, 0), x)
    once = rounded(triton.TRITON, numbers(3001, seed=2), 1)
    assert torch.equal(rounded(triton.TRITON, once, 2), once)
