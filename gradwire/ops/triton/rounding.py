# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
"""Stochastic rounding: see `gradwire.ops.reference.rounding`."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.noise import Seed
from gradwire.ops.triton import launching
from gradwire.ops.triton.hashing import hashed
from gradwire.ops.triton.launching import programs_for

SIZE = 1024
"""Elements of a program."""


@triton.jit(do_not_specialize=["salt"])
def round_kernel(x, out, word, salt, n, SIZE: tl.constexpr):
    """Rounds SIZE of n elements to bfloat16, which is the upper half of float32."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    bits = tl.load(x + at, at < n, 0.0).to(tl.int32, bitcast=True)
    # 16 random bits in [0, 2^16)
    noise = (hashed(at, word, salt) >> 16) + 32768
    tl.store(out.to(tl.pointer_type(tl.int16)) + at, ((bits + noise) >> 16).to(tl.int16), at < n)


def round_stochastically(x: Tensor, out: Tensor, seed: Seed) -> None:
    """See the reference."""
    word, salt = seed.on(x.device)
    launching.launch(round_kernel, programs_for(len(x), SIZE), x, out, word, salt, len(x), SIZE=SIZE)
