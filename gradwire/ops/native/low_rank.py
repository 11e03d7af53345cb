"""Products of matrices with thin factors: see `gradwire.ops.reference.low_rank`."""

from collections.abc import Sequence
from ctypes import byref
from functools import lru_cache

from torch import Tensor

from gradwire.ops.native.library import library
from gradwire.ops.native.structs import Matrices


def project_rows(matrices: Tensor, q: Tensor, out: Tensor) -> None:
    """See the reference."""
    library().gw_project_rows(matrices.data_ptr(), _shape(matrices, q), q.data_ptr(), out.data_ptr())


def project_columns(matrices: Tensor, p: Tensor, out: Tensor) -> None:
    """See the reference."""
    library().gw_project_columns(matrices.data_ptr(), _shape(matrices, p), p.data_ptr(), out.data_ptr())


def product(p: Tensor, q: Tensor, out: Sequence[Tensor]) -> None:
    """See the reference."""
    sizes = [len(part) for part in out]
    for part, left, right in zip(out, p.split(sizes), q.split(sizes), strict=True):
        library().gw_product(part.data_ptr(), _shape(part, left), left.data_ptr(), right.data_ptr(), False)


def subtract_product(from_: Tensor, p: Tensor, q: Tensor) -> None:
    """See the reference."""
    library().gw_product(from_.data_ptr(), _shape(from_, p), p.data_ptr(), q.data_ptr(), True)


def _shape(matrices: Tensor, factor: Tensor):  # noqa: ANN202 - a pointer's type has no name
    """Of matrices (k, rows, columns), whose rows lie one after another, and of a factor (k, rank, length)."""
    return byref(_made(*matrices.shape, matrices.stride(0), factor.shape[1]))


@lru_cache(maxsize=1024)
def _made(count: int, rows: int, columns: int, apart: int, rank: int) -> Matrices:
    return Matrices(count, apart, rows, columns, rank)
