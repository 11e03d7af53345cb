"""Which elements are the largest."""

import threading
from math import inf

import torch
from torch import Tensor

from gradwire.ops.reference import largest, slices
from gradwire.ops.workspace import Workspace

_kept = threading.local()


def top_k(x: Tensor, k: int) -> Tensor:
    """Indices (≤ k,) int64, ascending, of the k largest |x|, exactly; x: (n,) float32.

    Fewer than k come back only where all others are zero, subnormal (below 1.2e-38) or NaN. Among equal magnitudes the
    first win.
    """
    return largest.top_k(x, k, scratch_for(x))


def above(x: Tensor, bound: float, most: int) -> tuple[Tensor, Tensor] | None:
    """Indices (m,) int64, ascending, and magnitudes (m,) of the elements of x (n,) with |x| ≥ bound; None where there
    are more than `most`."""
    found = largest.few_above(x, bound, most, scratch_for(x))
    return (torch.from_numpy(found[0]), torch.from_numpy(found[1])) if found else None


def top_k_rows(matrix: Tensor, k: int) -> Tensor:
    """Column indices (rows, k) int64, ascending, of the k largest magnitudes of each row of (rows, columns) float32.

    Always k of them: zeros count too, and NaN counts as infinite. Among equal magnitudes the first win.
    """
    return slices.top_k_rows(_sound(matrix), k, scratch_for(matrix))


def top_k_columns(matrix: Tensor, k: int) -> Tensor:
    """Row indices (columns, k) int64 of the k largest magnitudes of each column; see `top_k_rows`."""
    return slices.top_k_columns(_sound(matrix), k, scratch_for(matrix))


def _sound(matrix: Tensor) -> Tensor:
    if matrix.device.type != "cpu" or not matrix.sum().isnan():
        return matrix
    return matrix.nan_to_num(nan=inf, posinf=inf, neginf=-inf)


def scratch_for(x: Tensor) -> Workspace:
    """This thread's room for what is needed within a call."""
    kept = vars(_kept).setdefault("scratch", {})
    return kept.setdefault(x.device, Workspace(x.device))
