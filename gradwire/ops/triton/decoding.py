# pyright: basic, reportMissingImports=false
"""Payloads to vectors: see `gradwire.ops.reference.decoding`."""

from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, Compact
from gradwire.ops.reference.decoding import whole
from gradwire.ops.triton import launching
from gradwire.ops.triton.codes import dequantise_kernel
from gradwire.ops.triton.launching import programs_for
from gradwire.ops.triton.packing import scatter
from gradwire.ops.triton.tables import KINDS, shape_of, table_of
from gradwire.ops.vectors import Output


def decode_blocks(rows: Tensor, out: Output, layout: Blocks) -> None:
    """See the reference."""
    code, (each, width) = layout.code, shape_of(layout)
    with whole(out, layout.numel) as total:
        arguments = total, rows, rows.stride(0), layout.codes_at, table_of(layout, total.device), layout.count
        launching.launch(
            dequantise_kernel, programs_for(layout.count, each), *arguments,
            RANKS=len(rows), KIND=KINDS[code.kind], BITS=code.bits, TOP=code.top, ROWS=each, WIDTH=width,
        )  # fmt: skip


def decode_entries(rows: Tensor, out: Output, layout: Entries | Compact) -> None:
    """See the reference. A GPU is not asked whether these are payloads; nothing is written outside."""
    if isinstance(layout, Compact):
        reference.decode_entries(rows, out, layout)
        return
    with whole(out, layout.n) as total:
        total.zero_()
        for row in rows:  # rank by rank: the same rounding on every replica
            scatter(total, row, layout, 1.0)


def release(x: Tensor, payload: Tensor, layout: Entries | Compact) -> None:
    """See the reference."""
    if isinstance(layout, Compact):
        reference.release(x, payload, layout)
    else:
        scatter(x, payload, layout, -1.0)
