"""Addresses for the library. Every tensor goes through here on its way to C, which trusts its caller: a tensor of the
wrong type, size, strides or device is refused with the argument's name."""

import torch
from torch import Tensor

from gradwire.ops.native.structs import DTYPES, MatricesStruct, RowsStruct, matrices_struct
from gradwire.ops.vectors import Gradient, Output, gradient_parts, outputs


def address(name: str, tensor: Tensor, n: int, dtype: torch.dtype = torch.float32) -> int:
    """The address of n elements of this type, one after another on the CPU. Raises ValueError for other tensors."""
    if _is_dense(tensor) and tensor.dtype is dtype and tensor.numel() == n:
        return tensor.data_ptr()
    raise refused(name, tensor, f"{n} elements of {dtype}")


def typed_address(name: str, tensor: Tensor, n: int) -> tuple[int, int]:
    """The address of n elements of float32 or bfloat16, and the library's number of that type. Raises ValueError for
    other tensors."""
    dtype = torch.bfloat16 if tensor.dtype is torch.bfloat16 else torch.float32
    return address(name, tensor, n, dtype), DTYPES[dtype]


def payload_address(name: str, tensor: Tensor, nbytes: int) -> int:
    """The address of at least so many bytes, for a payload or its codes. Raises ValueError for other tensors."""
    if _is_dense(tensor) and tensor.dtype is torch.uint8 and tensor.numel() >= nbytes:
        return tensor.data_ptr()
    raise refused(name, tensor, f"at least {nbytes} bytes of torch.uint8")


def payload_rows(rows: Tensor, nbytes: int) -> RowsStruct:
    """The struct for payloads (ranks, ≥ nbytes) uint8 with dense rows. Raises ValueError for other tensors."""
    if rows.dtype is torch.uint8 and rows.dim() == 2 and rows.is_cpu and not rows.is_neg():
        # rows may lie apart, with dense bytes each
        ranks, width = rows.shape
        if width >= nbytes and (rows.stride(1) == 1 or width <= 1):
            return RowsStruct(rows.data_ptr(), rows.stride(0), ranks)
    raise refused("rows", rows, f"(ranks, at least {nbytes}) of torch.uint8, whose rows are dense")


def matrices(name: str, batch: Tensor, factor: Tensor) -> tuple[int, MatricesStruct]:
    """The address of dense matrices (k, rows, columns) at equal distances, and the struct of their shape and of the
    rank of a factor (k, rank, ·) of theirs. Raises ValueError for other tensors."""
    if batch.dtype is torch.float32 and batch.dim() == 3 and batch.is_cpu and not batch.is_neg():
        count, rows, columns = batch.shape
        # a batch of none, or of one, may have any stride
        if batch.stride()[1:] == (columns, 1) or not count or batch[0].is_contiguous():
            return batch.data_ptr(), matrices_struct(count, rows, columns, batch.stride(0), factor.shape[1])
    raise refused(name, batch, "matrices (k, rows, columns) of torch.float32, each of them dense")


def gradient_addresses(gradient: Gradient, n: int) -> list[tuple[int, int, int]]:
    """Address, length and type of each part of a gradient (n,), address 0 for a part without one."""
    return [(0, length, 0) if part is None else _gradient(part, length) for part, length in gradient_parts(gradient, n)]


def output_addresses(out: Output, n: int) -> list[tuple[int, int]]:
    """Address and length of each part of an output (n,)."""
    return [(address("out", part, part.numel()), part.numel()) for part in outputs(out, n)]


def refused(name: str, given: Tensor, wanted: str) -> ValueError:
    """The error for an argument that the library cannot take."""
    return ValueError(f"{name} is {_described(given)}; the native kernels take {wanted}, dense on the CPU")


def _gradient(part: Tensor, length: int) -> tuple[int, int, int]:
    if _is_dense(part) and part.dtype in DTYPES:
        return part.data_ptr(), length, DTYPES[part.dtype]
    raise refused("gradient", part, "float32, bfloat16 or float16")


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg()


def _described(given: Tensor) -> str:
    if given.is_neg():
        return "a negated view (call .resolve_neg())"
    gaps = "" if given.is_contiguous() else f" with strides {tuple(given.stride())}"
    return f"{tuple(given.shape)} of {given.dtype} on {given.device}{gaps}"
