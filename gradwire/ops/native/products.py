"""Products of batches of matrices with thin factors: see `gradwire.ops.reference.products`."""

from collections.abc import Sequence
from ctypes import byref

from torch import Tensor

from gradwire.ops.native.addresses import address, matrices
from gradwire.ops.native.library import library
from gradwire.ops.native.structs import MatricesStruct
from gradwire.ops.reference import products
from gradwire.ops.reference.products import ROWS

THIN = 8
"""Up to this rank products are bound by memory, and the library's are the fastest; above it BLAS's are."""


def project(matrices_: Sequence[Tensor], basis: Sequence[Tensor], out: Sequence[Tensor], side: int) -> None:
    """See the reference."""
    for matrix, factor, to in zip(matrices_, basis, out, strict=True):
        (project_batch if factor.shape[1] <= THIN else products.project_batch)(matrix, factor, to, side)


def project_batch(matrices_: Tensor, basis: Tensor, out: Tensor, side: int) -> None:
    """`project` of one batch, of any rank."""
    m, shape = matrices("matrices", matrices_, basis)
    if side == ROWS:
        library().gw_project_rows(m, byref(shape), _right("q", basis, shape), _left("out", out, shape))
    else:
        library().gw_project_columns(m, byref(shape), _left("p", basis, shape), _right("out", out, shape))


def multiply(out: Sequence[Sequence[Tensor]], p: Sequence[Tensor], q: Sequence[Tensor], *, subtract: bool) -> None:
    """See the reference."""
    for parts, left, right in zip(out, p, q, strict=True):
        (multiply_batch if left.shape[1] <= THIN else products.multiply_batch)(parts, left, right, subtract=subtract)


def multiply_batch(out: Sequence[Tensor], p: Tensor, q: Tensor, *, subtract: bool) -> None:
    """`multiply` of one batch, of any rank."""
    for part, left, right in products.with_factors(out, p, q):
        m, shape = matrices("out", part, left)
        library().gw_product(m, byref(shape), _left("p", left, shape), _right("q", right, shape), subtract)


def _left(name: str, factor: Tensor, shape: MatricesStruct) -> int:
    """The address of factors P (k, rank, rows)."""
    return address(name, factor, shape.count * shape.rank * shape.rows)


def _right(name: str, factor: Tensor, shape: MatricesStruct) -> int:
    """The address of factors Q (k, rank, columns)."""
    return address(name, factor, shape.count * shape.rank * shape.columns)
