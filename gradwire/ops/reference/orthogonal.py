"""Orthonormal bases of thin matrices."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.ops.noise import Seed, draws
from gradwire.ops.vectors import equal_keys
from gradwire.torch_private.foreach import copy_each

HOUSEHOLDER_RANK = 16
"""Up to this rank Householder's QR is faster on a CPU than Cholesky's, and never needs a second try."""

NOISE = 1e-6
"""Relative size of the noise that makes rows independent: above float32's rounding, below anything a gradient shows."""


def orthogonalize(factors: Sequence[Tensor]) -> None:
    """Makes the rows of each matrix of the batches (k, r, n), r <= n, orthonormal, in place; equal shapes share one
    call.

    For any rows, zero and linearly dependent ones too, the result is finite and orthonormal and spans them, so that
    nothing divides by zero and a later gradient finds a basis.
    """
    if not factors:
        return
    bases: list[Tensor] = []
    shapes = equal_keys(factor.shape[1:] for factor in factors)
    # a QR decomposition of all matrices of a shape
    for places in shapes:
        batches = [factors[i] for i in places]
        together = batches[0] if len(batches) == 1 else torch.cat(batches)
        bases += _orthonormal(together).split([len(batch) for batch in batches])
    # back to where the factors lie
    copy_each([factors[i] for places in shapes for i in places], bases)


def _orthonormal(a: Tensor) -> Tensor:
    """Orthonormal rows for each matrix of a (k, r, n)."""
    # few rows: Householder
    if a.shape[1] <= HOUSEHOLDER_RANK:
        return torch.linalg.qr(a.mT).Q.mT
    # many rows on a CPU: Cholesky, unless rows are nearly dependent
    if a.device.type == "cpu":
        q, _ = _cholesky_qr(a)
        q, gram = _cholesky_qr(q)
        if (gram - torch.eye(a.shape[1], dtype=torch.float32, device="cpu")).abs().amax() < 0.01:  # False for NaN
            return q
    # with noise, in float64: on CUDA always, for a first try would need a host sync
    q, _ = _cholesky_qr(_independent(a))
    q, _ = _cholesky_qr(q.float())
    return q


def _cholesky_qr(a: Tensor) -> tuple[Tensor, Tensor]:
    """L⁻¹ a and a aᵀ = L Lᵀ (k, r, r). Twice, the rows are as orthonormal as rounding allows (Cholesky-QR2,
    https://arxiv.org/abs/1401.5171)."""
    gram = a @ a.mT
    lower, _ = torch.linalg.cholesky_ex(gram)
    return torch.linalg.solve_triangular(lower, a, upper=False), gram


def _independent(a: Tensor) -> Tensor:
    """a in float64 with rows of norm 1, made linearly independent by noise that is the same on all ranks."""
    noise = draws(a[0].numel(), Seed(0), a.device).sub_(0.5).view(a.shape[1:])
    rows = torch.nn.functional.normalize(a.double(), dim=-1, eps=1e-300)
    return rows.add_(noise, alpha=NOISE * (12 / a.shape[-1]) ** 0.5)
