"""Stochastic rounding."""

import torch
from torch import Tensor

from gradwire.ops.noise import Noise, Seed
from gradwire.ops.tiles import tile_bounds


def round_stochastically(x: Tensor, out: Tensor, seed: Seed) -> None:
    """Rounds x (n,) float32 to out (n,) bfloat16: to one of the two neighbours, with odds that make x the expectation.
    x is finite, and may be overwritten. What bfloat16 holds stays as it is.

    Draws 16 bits an element, from numpy's SFC64 with this seed; on a GPU from a hash of it.
    """
    noise = Noise(seed, x.device)
    for start, end in tile_bounds(x):
        # a number's upper 16 bits are the neighbour towards zero; the lower ones say how far behind it lies
        bits = x[start:end].view(torch.int32)
        bits.add_(noise.sixteen_bits(bits)).add_(1 << 15).bitwise_and_(-1 << 16)
        out[start:end].copy_(x[start:end])
