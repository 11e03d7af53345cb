# pyright: basic, reportMissingImports=false
"""Payloads to vectors: see `gradwire.ops.reference.decoding`."""

import torch
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, Compact
from gradwire.ops.triton import launching
from gradwire.ops.triton.codes import dequantise_kernel
from gradwire.ops.triton.launching import programs_for
from gradwire.ops.triton.packing import scatter
from gradwire.ops.triton.tables import KINDS, shape_of, table_of
from gradwire.ops.vectors import Output, outputs
from gradwire.torch_private import copy_each


def decode_sum(rows: Tensor, out: Output, layout: Blocks | Entries | Compact) -> None:
    """See the reference. A GPU is not asked whether these are payloads; nothing is written outside."""
    if isinstance(layout, Compact):
        reference.decode_sum(rows, out, layout)
        return
    n = layout.numel if isinstance(layout, Blocks) else layout.n
    parts = outputs(out, n)
    total = parts[0].view(-1) if len(parts) == 1 else torch.empty(n, device=rows.device)
    if isinstance(layout, Blocks):
        _sum_blocks(rows, total, layout)
    else:
        total.zero_()
        for row in rows:  # rank by rank: the same rounding on every replica
            scatter(total, row, layout, 1.0)
    if len(parts) > 1:
        copy_each([part.view(-1) for part in parts], total.split([part.numel() for part in parts]))


def release(x: Tensor, payload: Tensor, layout: Entries | Compact) -> None:
    """See the reference."""
    if isinstance(layout, Compact):
        reference.release(x, payload, layout)
    else:
        scatter(x, payload, layout, -1.0)


def _sum_blocks(rows: Tensor, out: Tensor, layout: Blocks) -> None:
    code, (each, width) = layout.code, shape_of(layout)
    arguments = out, rows, rows.stride(0), layout.codes_at, table_of(layout, out.device), layout.count
    launching.launch(
        dequantise_kernel, programs_for(layout.count, each), *arguments,
        RANKS=len(rows), KIND=KINDS[code.kind], BITS=code.bits, TOP=code.top, ROWS=each, WIDTH=width,
    )  # fmt: skip
