# pyright: basic, reportMissingImports=false
"""Sums of payloads of blocks: see `gradwire.ops.reference.decoding`."""

from collections.abc import Sequence
from math import gcd

from torch import Tensor

from gradwire.ops.formats import Blocks, Code
from gradwire.ops.reference.decoding import whole
from gradwire.ops.triton import launching
from gradwire.ops.triton.codes import dequantise_kernel
from gradwire.ops.triton.launching import ROUNDED
from gradwire.ops.triton.tables import codes_of_word, constants_of, table_of
from gradwire.ops.vectors import Output

WARPS = 4
"""Of a program."""
EACH = 16
"""Elements of a thread; more, where a word has."""
AHEAD = 4
"""The most payloads that are read at a time."""


def sum_blocks(payloads: Tensor, out: Output, layouts: Sequence[Blocks]) -> None:
    """See the reference; all parts in one launch."""
    code, ranks = layouts[0].code, payloads.shape[1]
    size = size_of(code)
    with whole(out, sum(layout.numel for layout in layouts)) as total:
        table = table_of(layouts, payloads.stride(0), size, total.device)
        launching.launch(
            dequantise_kernel, len(table), total, payloads, payloads.stride(1), ranks, table, **constants_of(code),
            SCALE_BYTES=code.scale_bytes, SIZE=size, AHEAD=gcd(AHEAD, ranks), num_warps=WARPS, **ROUNDED,
        )  # fmt: skip


def size_of(code: Code) -> int:
    """The elements of a program."""
    return 32 * WARPS * max(EACH, codes_of_word(code))
