"""Error feedback: the next residual from the old one and a gradient, by itself or encoded in the same pass."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.noise import Seed
from gradwire.ops.reference import blocks, grid
from gradwire.ops.reference.entries import move_entries
from gradwire.ops.reference.finite import Finite, both, finite_in, reported
from gradwire.ops.reference.selecting import top_k
from gradwire.ops.tiles import tile_bounds
from gradwire.ops.vectors import Gradient, Scalar, leave_out, placed_parts, together
from gradwire.torch_private.foreach import copy_each


def add_in(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: Scalar, *,
    nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """Writes next (n,) = decay·old + weight·gradient, each operation rounded to float32; returns whether all of it is
    finite. On a GPU it returns True without a host sync, and `nonfinite` (1,), which was 0, becomes NaN where it is
    not.

    A weight of 0 leaves the gradient out, also where it is NaN. On a CPU, where old numbers decay, results below the
    least normal number become 0: they would stop at one below it, with which a processor takes ten times as long.

    next: (n,) float32; old: (n,) float32 or bfloat16; None for a zero `old` or gradient. `next` may be the gradient, or
    `old` where there is no gradient.
    """
    return reported(_add_in(next, old, gradient, decay, weight), nonfinite)


def _add_in(next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: Scalar) -> Finite:
    # gather the gradient's tensors
    source = gathered(next, gradient)
    # add up, tile by tile
    finite: Finite = True
    for start, end in tile_bounds(next):
        part = next[start:end]
        before, new = (None if x is None else x[start:end] for x in (old, source))
        # in float32: with narrower ones, too, the sum would round to fewer bits
        if before is not None:
            before = before.float()
        if new is not None and new.dtype != torch.float32:
            new = part.copy_(new)
        _add(part, before, new, decay, weight)
        finite = both(finite, finite_in(part))
    return finite


def gathered(next: Tensor, gradient: Gradient) -> Tensor | None:
    """The gradient as one vector (n,), of any type; several tensors are gathered in `next`."""
    # which raises for a gradient of another length, one tensor or several
    placed = list(placed_parts(gradient, len(next)))
    if gradient is None or isinstance(gradient, Tensor):
        return gradient
    # zeros where there is none; all others in one call
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    for start, part, length in placed:
        if part is None:
            next[start : start + length].zero_()
        else:
            targets.append(next[start : start + length])
            sources.append(part.view(-1))
    copy_each(targets, sources)
    return next


def _add(part: Tensor, old: Tensor | None, gradient: Tensor | None, decay: float, weight: Scalar) -> None:
    """One tile of `next`."""
    if gradient is None:
        # no gradient: the residual alone
        torch.mul(old, decay, out=part) if old is not None else part.zero_()
    else:
        # weight·gradient, and then the residual
        torch.mul(gradient, weight, out=part)
        leave_out([part], weight)
        if old is not None and (decay == 1 or part.device.type != "cpu"):
            part.add_(old, alpha=decay)
        elif old is not None:  # in two steps: one would round once on some machines, and twice on others
            part.add_(old * decay)
    if old is not None and np.float32(decay) < 1 and part.device.type == "cpu":
        part.masked_fill_(part.abs() < torch.finfo(torch.float32).tiny, 0)


def add_select(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: Scalar, layouts: Sequence[Entries],
    payloads: Tensor, *, nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """`add_in`, then moves the `layout.k` largest elements of each part of `next`, by `top_k`, to a row of payloads
    (parts, ≥ nbytes) uint8. There may be several layouts, of parts one after another, only where `next` is the sum
    already.
    """
    # add up
    finite = len(layouts) > 1 or add_in(next, old, gradient, decay, weight, nonfinite=nonfinite)
    # select and pack
    for parts, rows, layout in together(next, payloads, layouts):
        move_entries(parts, rows, layout, top_k(parts, layout.k))
    return finite


def add_quantise(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, weight: Scalar, layouts: Sequence[Blocks],
    payloads: Tensor, *, keep: bool, seeds: Sequence[Seed], nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """`add_in`, then writes each part of `next` in blocks to a row of payloads (parts, ≥ nbytes) uint8, and where
    `keep`, leaves the error in `next`. There may be several layouts, of parts one after another, only where `next` is
    the sum already.

    False also where a scale is not finite. Stochastic codes draw their noise from numpy's SFC64 with the part's seed,
    16 bits an element, block by block, each from a fresh word of 64 bits; on a GPU from a hash of it, and in Triton
    from the first seed.
    """
    # add up
    finite = _add_in(next, old, gradient, decay, weight)
    # quantise and pack
    quantise = blocks.quantise if next.device.type == "cpu" else grid.quantise
    parts = next.split([layout.numel for layout in layouts])
    for part, layout, payload, seed in zip(parts, layouts, payloads, seeds, strict=False):
        finite = both(finite, quantise(part, layout, payload, keep=keep, seed=seed))
    return reported(finite, nonfinite)
