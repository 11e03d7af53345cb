"""Selection of the largest elements."""

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from gradwire.ops.reference import largest, row_top_k
from gradwire.ops.workspace import scratch_on


def top_k(x: Tensor, k: int) -> Tensor:
    """Indices (..., ≤ k) int64, ascending, of the k largest |x|, exactly; x: (n,) float32 or one row (1, n), on a GPU
    any (..., n).

    Fewer than k come back only where all others are zero, subnormal (below 1.2e-38) or NaN; on a GPU always k. Among
    equal magnitudes the first win, on a CPU and in Triton; torch on a GPU takes any of them.
    """
    scratch = scratch_on(x.device)
    if x.device.type == "cpu":
        return largest.top_k(x.view(-1), k, scratch).view(*x.shape[:-1], -1)
    # a GPU: all vectors at once
    magnitude = torch.abs(x, out=scratch.tensor("magnitude", tuple(x.shape)))
    return magnitude.topk(k, sorted=False).indices.sort().values


def above(x: Tensor, bound: float, most: int) -> tuple[Tensor, Tensor] | None:
    """Ascending indices (m,) int64 and magnitudes (m,) of the elements of x (n,) with |x| ≥ bound; None where there are
    more than `most`. On a CPU."""
    found = largest.few_above(x, bound, most, scratch_on(x.device))
    return (torch.from_numpy(found[0]), torch.from_numpy(found[1])) if found else None


def top_k_each(matrices: Sequence[Tensor], k: int, axis: int) -> Sequence[Tensor]:
    """The indices of the k largest magnitudes of each row, (rows, k) int64, of several matrices (rows, columns) float32
    of one shape where `axis` is 1; of each column, (columns, k), where it is 0.

    Always k of them: zeros count too, and NaN counts as infinite. Ascending on a CPU, where the first of equal
    magnitudes win; on a GPU all matrices in one call.
    """
    if matrices[0].device.type == "cpu":
        largest_of = row_top_k.top_k_rows if axis == 1 else row_top_k.top_k_columns
        return [largest_of(_sound(matrix), k, scratch_on(matrix.device)) for matrix in matrices]
    # a GPU: all matrices at once
    chosen = torch.stack(list(matrices)).abs_().topk(k, dim=1 + axis, sorted=False).indices
    return (chosen if axis == 1 else chosen.mT).unbind()


def largest_first(magnitudes: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of magnitudes (..., length), contiguous, the largest first, and their indices int64."""
    return magnitudes.topk(k)


def _sound(matrix: Tensor) -> Tensor:
    """The matrix, with NaN as infinite."""
    if not matrix.sum().isnan():
        return matrix
    return matrix.nan_to_num(nan=inf, posinf=inf, neginf=-inf)
