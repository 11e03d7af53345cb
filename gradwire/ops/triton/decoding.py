# pyright: basic, reportMissingImports=false
"""Blocks to vectors: see `gradwire.ops.reference.decoding`."""

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
    code, (each, width) = layout.code, shape_of(layout)
    with whole(out, layout.numel) as total:
        table = table_of(layout, total.device)
        launching.launch(
            dequantise_kernel, programs_for(layout.count, each), total, rows, rows.stride(0), len(rows),
            layout.codes_at, table, layout.count, KIND=KINDS[code.kind], BITS=code.bits, TOP=code.top, ROWS=each,
            WIDTH=width,
        )  # fmt: skip
