"""Checksums of tensors' bits, the same on every machine."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

PART = 1 << 18
"""Elements of a sum at a time; scratch memory is 8 bytes for each."""
_FACTOR = 0x5851F42D4C957F2D
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}


def checksum(tensor: Tensor) -> Tensor:
    """The checksum of a tensor's bits in the order in which they lie in memory, int64 () on its device: the sum, modulo
    2^64, of its integers times fixed random odd numbers. One integer that differs is always seen; several, such as the
    two of a float64, cancel in one of 2^32 cases (multilinear hashing: Lemire and Kaser, The Computer Journal 2014,
    https://arxiv.org/abs/1202.4961)."""
    integers = _in_memory_order(tensor.detach()).view(_INTEGERS[tensor.element_size()])
    total, factors = torch.zeros((), dtype=torch.int64, device=tensor.device), _factors(tensor.device)
    # a polynomial in _FACTOR of the parts' sums, so that parts do not commute
    for part in integers.split(PART):
        total = total * _FACTOR + (part * factors[: part.numel()]).sum()
    return total


def _in_memory_order(tensor: Tensor) -> Tensor:
    """All elements (n,), without a copy where nothing lies between them."""
    dense = tensor if tensor.stride() == torch.empty_like(tensor, device="meta").stride() else tensor.clone()
    return dense.as_strided((tensor.numel(),), (1,))


@cache
def _factors(device: torch.device) -> Tensor:
    words = np.random.SFC64(0).random_raw(PART) | np.uint64(1)
    return torch.from_numpy(words.view(np.int64)).to(device)
