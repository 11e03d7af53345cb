"""Passes over a gradient: see `gradwire.ops.reference.adding`."""

from ctypes import addressof, byref

import numpy as np
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.native.library import library, room
from gradwire.ops.native.structs import DTYPES, Addends, blocks_struct, layout_struct, segment_array
from gradwire.ops.vectors import Gradient, segments


def accepts(gradient: Gradient) -> bool:
    """Whether the kernels can read this gradient: on a CPU, dense, in float32, bfloat16 or float16."""
    parts = [gradient] if isinstance(gradient, Tensor) or gradient is None else gradient
    return all(
        part.device.type == "cpu" and part.is_contiguous() and part.dtype in DTYPES
        for part in parts
        if isinstance(part, Tensor)
    )


class _Adding:
    """The arguments of one call; keeps alive what the struct points to."""

    def __init__(self, next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: float) -> None:
        if not accepts(gradient):
            raise ValueError("native kernels read dense float32, bfloat16 or float16 on a CPU; use the reference")
        self._segments = segment_array(segments(gradient, len(next)))
        kept = 0 if old is None else old.data_ptr()
        count = len(self._segments)
        self.struct = Addends(next.data_ptr(), kept, addressof(self._segments), count, decay, share)


def add_in(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: float, *,
    nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference; `nonfinite` is for those that are not asked."""
    adding = _Adding(next, old, gradient, decay, share)
    return bool(library().gw_add_in(byref(adding.struct), len(next)))


def add_select(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: float, layout: Entries,
    payload: Tensor, *, nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference."""
    adding, c = _Adding(next, old, gradient, decay, share), library()
    space = room(c.gw_select_room(layout.n, layout.k))
    return bool(c.gw_add_select(byref(adding.struct), byref(layout_struct(layout)), payload.data_ptr(), space))


def add_quantise(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: float, layout: Blocks, payload: Tensor,
    *, keep: bool, seed: int = 0, nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference."""
    adding, blocks = _Adding(next, old, gradient, decay, share), blocks_struct(layout)
    stochastic = layout.code.kind == "stochastic"
    noise = np.random.SFC64(seed).state["state"]["state"] if stochastic else np.empty(0, np.uint64)
    for gap in layout.gaps:
        payload[gap].zero_()
    scales = payload.data_ptr()
    codes = scales + layout.codes_at
    return bool(library().gw_add_quantise(byref(adding.struct), byref(blocks), scales, codes, noise.ctypes.data, keep))
