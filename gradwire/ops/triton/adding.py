# pyright: basic, reportMissingImports=false
"""The next residual from the old one and a gradient, and what encodes it: see `gradwire.ops.reference.adding`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.reference.adding import gathered
from gradwire.ops.reference.selecting import scratch_for
from gradwire.ops.triton import launching
from gradwire.ops.triton.codes import quantise_kernel
from gradwire.ops.triton.entries import move_entries
from gradwire.ops.triton.launching import programs_for
from gradwire.ops.triton.sums import add_kernel, mask_kernel, measure_kernel
from gradwire.ops.triton.tables import KINDS, shape_of, table_of
from gradwire.ops.vectors import Gradient, Share

SIZE = 2048
"""Elements of a program."""


class _Adding:
    """What both kernels are told: `tensors` and `numbers`, and what there is of them. A pointer that is not there is
    another one that is not used; what nobody wants to know is written where nobody looks."""

    def __init__(
        self, next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share,
        nonfinite: Tensor | None,
    ) -> None:  # fmt: skip
        source = gathered(next, gradient)
        flag = scratch_for(next).tensor("nonfinite", (1,)) if nonfinite is None else nonfinite
        self.tensors = next, next if old is None else old, next if source is None else source.view(-1), flag
        self.numbers = decay, share
        self.has = {
            "HAS_OLD": old is not None, "HAS_GRADIENT": source is not None, "SCALED": isinstance(share, Tensor)
        }  # fmt: skip


def add_in(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share, *,
    nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference."""
    adding, n = _Adding(next, old, gradient, decay, share, nonfinite), len(next)
    launching.launch(add_kernel, programs_for(n, SIZE), *adding.tensors, *adding.numbers, n, **adding.has, SIZE=SIZE)
    return True


def add_select(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share, layout: Entries,
    payload: Tensor, *, nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference."""
    adding, n = _Adding(next, old, gradient, decay, share, nonfinite), len(next)
    magnitude, zeros = (
        scratch_for(next).tensor("magnitude", (n,)),
        payload[: layout.values_at if layout.exact else layout.nbytes],
    )
    launching.launch(
        measure_kernel, programs_for(n, SIZE), *adding.tensors, *adding.numbers, n, magnitude, zeros.view(torch.int32),
        len(zeros) // 4, **adding.has, SIZE=SIZE,
    )  # fmt: skip
    indices = magnitude.topk(layout.k, sorted=False).indices.sort().values
    move_entries(next[None], payload[None], layout, indices[None])
    return True


def mask_zeros(x: Tensor, other: Tensor) -> None:
    """See `gradwire.ops.kernels`."""
    launching.launch(mask_kernel, programs_for(len(x), SIZE), x, other, len(x), SIZE=SIZE)


def add_quantise(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share, layout: Blocks, payload: Tensor,
    *, keep: bool, seed: int = 0, nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """See the reference."""
    adding = _Adding(next, old, gradient, decay, share, nonfinite)
    _quantise(adding, payload[None], (layout,), keep=keep, seed=seed)
    return True


def quantise_parts(x: Tensor, rows: Tensor, layouts: Sequence[Blocks], *, keep: bool, seeds: Sequence[int]) -> None:
    """See `gradwire.ops.kernels`; one seed does for all, for an element's noise depends on where it is."""
    _quantise(_Adding(x, x, None, 1.0, 1.0, None), rows, tuple(layouts), keep=keep, seed=seeds[0])


def _quantise(adding: _Adding, payloads: Tensor, layouts: tuple[Blocks, ...], *, keep: bool, seed: int) -> None:
    """To payloads (layouts, ≥ nbytes); what lies between and behind scales and codes stays as it was."""
    code, (each, width) = layouts[0].code, shape_of(layouts[0])
    table = table_of(layouts, payloads.stride(0), payloads.device)
    launching.launch(
        quantise_kernel, programs_for(table.shape[1], each), *adding.tensors, *adding.numbers, table, table.shape[1],
        payloads, seed & 0x7FFF_FFFF, **adding.has, KEEP=keep, KIND=KINDS[code.kind], BITS=code.bits, TOP=code.top,
        ROWS=each, WIDTH=width,
    )  # fmt: skip
