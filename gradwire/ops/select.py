"""Which elements are the largest, on any device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.ops.kernels import kernels_for


def top_k(x: Tensor, k: int) -> Tensor:
    """Indices (≤ k,) int64, ascending, of the k largest |x|, exactly; x: (n,) float32.

    Fewer than k come back only where all others are zero, subnormal (below 1.2e-38) or NaN. Among equal magnitudes the
    first win. On a GPU always k, and of each vector of x (..., n).
    """
    return kernels_for(x).top_k(x, k)


def above(x: Tensor, bound: float, most: int) -> tuple[Tensor, Tensor] | None:
    """Indices (m,) int64, ascending, and magnitudes (m,) of the elements of x (n,) with |x| ≥ bound; None where there
    are more than `most`. On a CPU."""
    return kernels_for(x).above(x, bound, most)


def top_k_rows(matrix: Tensor, k: int) -> Tensor:
    """Column indices (rows, k) int64 of the k largest magnitudes of each row of (rows, columns) float32.

    Always k of them: zeros count too. Ascending on a CPU, where the first of equal magnitudes win.
    """
    return kernels_for(matrix).top_k_rows(matrix, k)


def top_k_columns(matrix: Tensor, k: int) -> Tensor:
    """Row indices (columns, k) int64 of the k largest magnitudes of each column; see `top_k_rows`."""
    return kernels_for(matrix).top_k_columns(matrix, k)


def top_k_each(matrices: Sequence[Tensor], k: int, axis: int) -> Sequence[Tensor]:
    """Of several matrices of one shape, `top_k_rows` for axis 1, `top_k_columns` for 0; on a GPU all in one call."""
    if matrices[0].device.type == "cpu":
        return [(top_k_rows if axis == 1 else top_k_columns)(matrix, k) for matrix in matrices]
    chosen = torch.stack(list(matrices)).abs_().topk(k, dim=1 + axis, sorted=False).indices
    return (chosen if axis == 1 else chosen.mT).unbind()
