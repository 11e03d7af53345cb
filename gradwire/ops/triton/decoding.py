# pyright: basic, reportMissingImports=false
"""Sums of payloads of blocks: see `gradwire.ops.reference.decoding`."""

from collections.abc import Sequence

from torch import Tensor

from gradwire.ops.formats import Blocks
from gradwire.ops.reference.decoding import whole
from gradwire.ops.triton import launching
from gradwire.ops.triton.codes import dequantise_kernel
from gradwire.ops.triton.launching import programs_for
from gradwire.ops.triton.tables import KINDS, shape_of, table_of
from gradwire.ops.vectors import Output


def decode_blocks(payloads: Tensor, out: Output, layouts: Sequence[Blocks]) -> None:
    """See the reference; all parts in one launch."""
    code, (each, width) = layouts[0].code, shape_of(layouts[0])
    with whole(out, sum(layout.numel for layout in layouts)) as total:
        table = table_of(tuple(layouts), payloads.stride(0), total.device)
        launching.launch(
            dequantise_kernel, programs_for(table.shape[1], each), total, payloads, payloads.stride(1),
            payloads.shape[1], table, table.shape[1], KIND=KINDS[code.kind], BITS=code.bits, TOP=code.top, ROWS=each,
            WIDTH=width,
        )  # fmt: skip
