# pyright: basic, reportMissingImports=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
"""Uniform numbers, hashed as `gradwire.ops.noise.hashed` does on a GPU, in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.noise import Seed
from gradwire.ops.triton import launching
from gradwire.ops.triton.launching import programs_for

SIZE = 1024
"""Elements of a program."""
GOLDEN: tl.constexpr = tl.constexpr(2654435769)
FIRST: tl.constexpr = tl.constexpr(2246822507)
SECOND: tl.constexpr = tl.constexpr(3266489909)


@triton.jit
def hashed(at, word, salt):
    """A random int32 for each of these numbers of elements, in the step that `word` counts."""
    # the key of this call and step
    key = (tl.load(word) * 0x5851F42D + tl.cast(salt, tl.int64) * 0x14057B7E) & 0xFFFFFFFF
    key = key.to(tl.uint32)
    # MurmurHash3's last step, with the key in each round
    x = at.to(tl.uint32) * GOLDEN + key
    x = ((x ^ (x >> 16)) * FIRST) ^ key
    x = ((x ^ (x >> 13)) * SECOND) ^ key
    return (x ^ (x >> 16)).to(tl.int32, bitcast=True)


@triton.jit(do_not_specialize=["salt"])
def draw_kernel(out, word, salt, n, SIZE: tl.constexpr):
    """Writes SIZE of n numbers in [0, 1)."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    # 32 bits to [-1/2, 1/2), and up
    tl.store(out + at, hashed(at, word, salt).to(tl.float64) * 2.0**-32 + 0.5, at < n)


def draws(n: int, seed: Seed, device: torch.device) -> Tensor:
    """See `gradwire.ops.noise.draws`."""
    out, (word, salt) = torch.empty(n, dtype=torch.float64, device=device), seed.on(device)
    launching.launch(draw_kernel, programs_for(n, SIZE), out, word, salt, n, SIZE=SIZE)
    return out
