"""Numbers that kernels are tried with, and the levels of instructions that they are tried at."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from gradwire.ops import native
from gradwire.ops.formats import nearest, one_bit, qsgd, shared_exponent, sign, ternary

if " ABI " in native.reason():  # a library of other sources: its tests would be skipped, and look green
    raise RuntimeError(native.reason())
needs_library = pytest.mark.skipif(not native.available(), reason=native.reason() if not native.available() else "")

CODES = [
    nearest(8, 128), nearest(4), nearest(3, 16), nearest(2, 8), qsgd(block=1024), qsgd(levels=3, block=24), ternary(64),
    shared_exponent(), shared_exponent(24), sign(), sign(8), one_bit(4096), one_bit(72),
]  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def at_every_level(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test at all levels of instructions that this machine has, one after another."""

    @needs_library
    @wraps(test)
    def run(*args, **kwargs) -> None:
        for _ in each_isa():
            test(*args, **kwargs)

    return run


def each_isa() -> Iterator[str]:
    """All levels that this machine has; the best one again afterwards."""
    levels = [name for name in native.ISAS.values() if native.set_isa(name)]
    assert levels, "without the library nothing would be compared"
    try:
        for name in levels:
            native.set_isa(name)
            yield name
    finally:
        native.set_isa("best")


@contextmanager
def subnormals_as_zero() -> Iterator[None]:
    """With torch's switch on, for this thread's arithmetic. Skips where the processor has none."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no switch for subnormals")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def numbers(n: int, seed: int, spread: float = 1.0, zeros: float = 0.0) -> Tensor:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(n) * np.exp(spread * generator.standard_normal(n))
    x[generator.random(n) < zeros] = 0
    return torch.from_numpy(x.clip(-1e28, 1e28).astype(np.float32))


def weighable(n: int, seed: int, weight: float) -> Tensor:
    """A gradient (n,), of NaN where its weight is 0."""
    return numbers(n, seed) if weight else torch.full((n,), torch.nan)


def shifted(x: Tensor, by: int) -> Tensor:
    """The same numbers at an address `by` elements further on."""
    room = torch.full((len(x) + by,), 7, dtype=x.dtype)
    room[by:] = x
    return room[by:]


def garbage(nbytes: int) -> Tensor:
    return torch.full((nbytes,), 0xA5, dtype=torch.uint8)


# What a property test draws: how many elements, where they lie, and how they are spread.
vectors = {
    "n": st.one_of(st.integers(0, 70), st.integers(4000, 4200), st.integers(8100, 13_000)),
    "seed": st.integers(0, 2**32 - 1),
    "spread": st.floats(0, 20),
    "zeros": st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    "by": st.integers(0, 3),
}
strange = st.lists(st.floats(width=32), min_size=1, max_size=200)
"""NaN, infinities, subnormals, and the largest numbers among them."""


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN to NaN; zeros of either sign are the same."""
    places, other = a.isnan(), b.isnan()
    return bool(torch.equal(places, other) and torch.equal(a.masked_fill(places, 0), b.masked_fill(other, 0)))


def spike(n: int) -> Tensor:
    """All that is large lies in one place, which a sample barely meets."""
    x = 1e-3 * numbers(n, 0, 0.0)
    x[n // 3 : n // 3 + n // 50] += 10
    return x


def unlike_its_sample(n: int, sampled: float, others: float) -> Tensor:
    """Far more, or fewer, pass the bound of a sample than it promises."""
    x = torch.full((n,), others)
    x[:: n // 16384 | 1] = sampled
    return x


SHAPES = {
    "normal": lambda n: numbers(n, 1, 0.0),
    "heavy": lambda n: numbers(n, 2, 5.0),
    "constant": lambda n: torch.full((n,), -0.5),
    "zero": torch.zeros,
    "sparse": lambda n: numbers(n, 3, 0.0, 0.996),
    "ascending": lambda n: torch.arange(n) / n,
    "few values": lambda n: numbers(n, 4, 0.0).round(),
    "spike": spike,
    "larger than its sample": lambda n: unlike_its_sample(n, 1e-6, 1.0),
    "smaller than its sample": lambda n: unlike_its_sample(n, 1.0, 1e-6),
    "infinite": lambda n: numbers(n, 5, 0.0).index_fill_(0, torch.arange(0, n, n // 7), torch.inf),
    "nan": lambda n: numbers(n, 6, 0.0).index_fill_(0, torch.arange(0, n, n // 7), torch.nan),
    "subnormal": lambda n: numbers(n, 7, 0.0) * 1e-39,
}
