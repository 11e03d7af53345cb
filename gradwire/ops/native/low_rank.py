"""Products of matrices with thin factors: see `gradwire.ops.reference.low_rank`."""

from collections.abc import Sequence
from ctypes import byref

from torch import Tensor

from gradwire.ops.native.addresses import address, matrices
from gradwire.ops.native.library import library
from gradwire.ops.native.structs import Matrices


def project_rows(matrices_: Tensor, q: Tensor, out: Tensor) -> None:
    """See the reference."""
    m, shape = matrices("matrices", matrices_, q)
    library().gw_project_rows(m, byref(shape), _right("q", q, shape), _left("out", out, shape))


def project_columns(matrices_: Tensor, p: Tensor, out: Tensor) -> None:
    """See the reference."""
    m, shape = matrices("matrices", matrices_, p)
    library().gw_project_columns(m, byref(shape), _left("p", p, shape), _right("out", out, shape))


def product(p: Tensor, q: Tensor, out: Sequence[Tensor]) -> None:
    """See the reference."""
    sizes = [len(part) for part in out]
    for part, left, right in zip(out, p.split(sizes), q.split(sizes), strict=True):
        _product("out", part, left, right, subtract=False)


def subtract_product(from_: Tensor, p: Tensor, q: Tensor) -> None:
    """See the reference."""
    _product("from_", from_, p, q, subtract=True)


def _product(name: str, to: Tensor, p: Tensor, q: Tensor, *, subtract: bool) -> None:
    m, shape = matrices(name, to, p)
    library().gw_product(m, byref(shape), _left("p", p, shape), _right("q", q, shape), subtract)


def _left(name: str, factor: Tensor, shape: Matrices) -> int:
    """Where the factors P (k, rank, rows) lie."""
    return address(name, factor, shape.count * shape.rank * shape.rows)


def _right(name: str, factor: Tensor, shape: Matrices) -> int:
    """Where the factors Q (k, rank, columns) lie."""
    return address(name, factor, shape.count * shape.rank * shape.columns)
