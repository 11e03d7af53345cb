# pyright: basic, reportMissingImports=false
"""The next residual from the old one and a gradient, and what encodes it: see `gradwire.ops.reference.adding`."""

import torch
from torch import Tensor

from gradwire.ops import reference
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.reference.adding import gathered
from gradwire.ops.reference.selecting import scratch_for
from gradwire.ops.triton import launching
from gradwire.ops.triton.codes import quantise_kernel
from gradwire.ops.triton.entries import pack_entries, take_entries
from gradwire.ops.triton.launching import programs_for
from gradwire.ops.triton.sums import add_kernel, measure_kernel
from gradwire.ops.triton.tables import KINDS, shape_of, table_of
from gradwire.ops.vectors import Gradient, Share

SIZE = 2048
"""Elements of a program."""


class _Adding:
    """What both kernels are told: `tensors` and `numbers`, what there is of them, and `finite` (1,) int32, 0 where a
    sum is not. A pointer that is not there is another one that is not used."""

    def __init__(self, next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share) -> None:
        source = gathered(next, gradient)
        self.finite = torch.ones(1, dtype=torch.int32, device=next.device)
        self.tensors = next, next if old is None else old, next if source is None else source.view(-1), self.finite
        self.numbers = decay, share
        self.has = {
            "HAS_OLD": old is not None, "HAS_GRADIENT": source is not None, "SCALED": isinstance(share, Tensor)
        }  # fmt: skip


def add_in(next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share) -> Tensor:
    """See the reference."""
    adding, n = _Adding(next, old, gradient, decay, share), len(next)
    launching.launch(add_kernel, programs_for(n, SIZE), *adding.tensors, *adding.numbers, n, **adding.has, SIZE=SIZE)
    return adding.finite


def add_select(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share, layout: Entries,
    payload: Tensor,
) -> Tensor:  # fmt: skip
    """See the reference."""
    if not layout.exact:
        finite, indices = add_in(next, old, gradient, decay, share), reference.top_k(next, layout.k)
        next.index_add_(0, indices, pack_entries(payload, layout, indices, next[indices]), alpha=-1)
        return finite
    adding, n, places = _Adding(next, old, gradient, decay, share), len(next), payload[: layout.values_at]
    magnitude = scratch_for(next).tensor("magnitude", (n,))
    launching.launch(
        measure_kernel, programs_for(n, SIZE), *adding.tensors, *adding.numbers, n, magnitude, places.view(torch.int32),
        len(places) // 4, **adding.has, SIZE=SIZE,
    )  # fmt: skip
    take_entries(next, payload, layout, magnitude.topk(layout.k, sorted=False).indices.sort().values)
    return adding.finite


def add_quantise(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share, layout: Blocks, payload: Tensor,
    *, keep: bool, seed: int = 0,
) -> Tensor:  # fmt: skip
    """See the reference."""
    adding, code, (each, width) = _Adding(next, old, gradient, decay, share), layout.code, shape_of(layout)
    for gap in layout.gaps:
        payload[gap].zero_()
    scales = payload.view(-1)[: layout.count * code.scale_bytes]
    scales = scales.view(torch.int16 if code.kind == "nearest" else torch.float32)
    codes, table = payload[layout.codes_at :], table_of(layout, next.device)
    launching.launch(
        quantise_kernel, programs_for(layout.count, each), *adding.tensors, *adding.numbers, table, layout.count,
        scales, codes, seed & 0x7FFF_FFFF, **adding.has, KEEP=keep, KIND=KINDS[code.kind], BITS=code.bits,
        TOP=code.top, ROWS=each, WIDTH=width,
    )  # fmt: skip
    return adding.finite
