"""Renewal of low-rank factors from step to step: batches of thin matrices (k, rank, length)."""

from collections.abc import Sequence

import torch
from torch import Tensor


def renew(factors: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """Replaces matrices that are zero by those of the step before, and multiplies each by the power of two that makes
    its largest element 1/2 to 1, which changes no bit of a basis made from it. Returns the largest magnitude that each
    had, batch after batch (matrices,), which is finite if, and only if, all its elements are."""
    largest = torch.cat([factor.abs().amax((1, 2)) for factor in factors])
    # which are zero, and the powers of two, batch by batch
    counts = [len(factor) for factor in factors]
    zero, scales = (numbers[:, None, None].split(counts) for numbers in (largest.eq(0).float(), _to_one(largest)))
    # without asking a GPU: 0 or 1 times the factor of before is added
    for factor, other, is_zero, scale in zip(factors, before, zero, scales, strict=True):
        factor.addcmul_(other, is_zero).mul_(scale)
    return largest


def _to_one(sizes: Tensor) -> Tensor:
    """The power of two that makes each of sizes (k,) 1/2 to 1; 1 for 0."""
    _, exponents = torch.frexp(sizes)
    return torch.pow(2.0, -exponents.clamp(-126, 126), out=torch.empty_like(sizes))
