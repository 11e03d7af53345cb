"""The structs of native/gradwire.h."""

from collections.abc import Sequence
from ctypes import Array, Structure, addressof, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache
from typing import ClassVar

import torch

from gradwire.ops.entries import EliasFano, Entries
from gradwire.ops.formats import KINDS, Blocks
from gradwire.ops.vectors import LONGEST

DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
BITS = {"nearest": (2, 3, 4, 8), "stochastic": (2, 8), "sign": (1,), "one bit": (1,), "shared exponent": (8,)}
"""Bits that a code of each kind may have."""


class GradientStruct(Structure):
    """`gw_segment`."""

    _fields_: ClassVar = [("gradient", c_void_p), ("length", c_int64), ("dtype", c_int64)]


class AddendsStruct(Structure):
    """`gw_addends`."""

    _fields_: ClassVar = [
        ("next", c_void_p), ("old", c_void_p), ("parts", c_void_p), ("count", c_int64), ("decay", c_float),
        ("weight", c_float), ("old_dtype", c_int64),
    ]  # fmt: skip


class OutputStruct(Structure):
    """`gw_span`."""

    _fields_: ClassVar = [("data", c_void_p), ("length", c_int64)]


class BlocksStruct(Structure):
    """`gw_blocks`."""

    _fields_: ClassVar = [
        ("lengths", c_void_p), ("count", c_int64), ("kind", c_int32), ("bits", c_int32), ("top", c_int32),
        ("block", c_int32),
    ]  # fmt: skip


class EntriesStruct(Structure):
    """`gw_layout`."""

    _fields_: ClassVar = [("n", c_int64), ("k", c_int64), ("value_bits", c_int64)]


class RowsStruct(Structure):
    """`gw_rows`."""

    _fields_: ClassVar = [("data", c_void_p), ("stride", c_int64), ("ranks", c_int64)]


class MatricesStruct(Structure):
    """`gw_matrices`."""

    _fields_: ClassVar = [
        ("count", c_int64), ("stride", c_int64), ("rows", c_int64), ("columns", c_int64), ("rank", c_int64)
    ]  # fmt: skip


def gradient_array(parts: Sequence[tuple[int, int, int]]) -> Array[GradientStruct]:
    """The parts of a gradient: address, length and type of each."""
    return (GradientStruct * len(parts))(*parts)


def output_array(parts: Sequence[tuple[int, int]]) -> Array[OutputStruct]:
    """The parts of an output: address and length of each."""
    return (OutputStruct * len(parts))(*parts)


@lru_cache(maxsize=1024)
def blocks_struct(layout: Blocks) -> BlocksStruct:
    """The struct of a layout of blocks, made once: it has as many lengths as a group has slots."""
    code = layout.code
    if min(layout.lengths, default=0) < 0 or code.bits not in BITS[code.kind]:
        raise ValueError(f"{layout} is no layout; lengths are 0 or more, and {code.kind} codes {BITS[code.kind]} bits")
    # an array in C, which the struct points to
    lengths = (c_int64 * len(layout.lengths))(*layout.lengths)
    made = BlocksStruct(addressof(lengths), len(lengths), KINDS[code.kind], code.bits, code.top, code.block)
    made.kept_alive = lengths  # the struct has their address
    return made


@lru_cache(maxsize=1024)
def entries_struct(layout: Entries | EliasFano) -> EntriesStruct:
    """The struct of a layout of entries, or of coordinates alone."""
    # C counts in 32 bits, and checks nothing
    if not 0 <= layout.n <= LONGEST or layout.k < 1 or layout.value_bits not in (0, 4, 32):
        raise ValueError(f"{layout} is no layout; n is below 2^31, k 1 or more, value_bits 4 or 32")
    return EntriesStruct(layout.n, layout.k, layout.value_bits)


@lru_cache(maxsize=1024)
def matrices_struct(count: int, rows: int, columns: int, stride: int, rank: int) -> MatricesStruct:
    """The struct of a batch of matrices and factors of this rank."""
    return MatricesStruct(count, stride, rows, columns, rank)
