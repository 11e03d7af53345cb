# pyright: basic, reportMissingImports=false
"""The sum of all ranks' payloads: see `gradwire.ops.reference.decoding`."""

from collections.abc import Sequence

from torch import Tensor

from gradwire.ops.formats import Blocks
from gradwire.ops.reference.decoding import whole
from gradwire.ops.triton import launching
from gradwire.ops.triton.codes import dequantise_kernel
from gradwire.ops.triton.launching import programs_for
from gradwire.ops.triton.tables import KINDS, shape_of, table_of
from gradwire.ops.vectors import Output


def decode_blocks(rows: Tensor, out: Output, layout: Blocks) -> None:
    """See the reference."""
    with whole(out, layout.numel) as total:
        _dequantise(rows, total, (layout,), len(rows))


def dequantise_parts(rows: Tensor, out: Tensor, layouts: Sequence[Blocks]) -> None:
    """See `gradwire.ops.kernels`."""
    _dequantise(rows, out, tuple(layouts), 1)


def _dequantise(rows: Tensor, out: Tensor, layouts: tuple[Blocks, ...], ranks: int) -> None:
    """The sum of what so many rows from the first on, and from each layout's own on, stand for."""
    code, (each, width) = layouts[0].code, shape_of(layouts[0])
    table = table_of(layouts, rows.stride(0), out.device)
    launching.launch(
        dequantise_kernel, programs_for(table.shape[1], each), out, rows, rows.stride(0), ranks, table, table.shape[1],
        KIND=KINDS[code.kind], BITS=code.bits, TOP=code.top, ROWS=each, WIDTH=width,
    )  # fmt: skip
