"""The next residual from the old one and a gradient, and what encodes it."""

import torch
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, Compact
from gradwire.ops.reference.blocks import encode
from gradwire.ops.reference.entries import pack_entries
from gradwire.ops.reference.selecting import top_k
from gradwire.ops.tiles import spans
from gradwire.ops.vectors import Gradient, placed


def add_in(next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: float) -> bool:
    """next = decay·old + share·gradient, each operation rounded to float32; whether all of it is finite.

    next, old: (n,) float32, perhaps the same; without `old`, and without a gradient, theirs is zero. The gradient may
    be float32, bfloat16 or float16.
    """
    sums = [
        _add(next[start : start + length], old, part, (start, decay, share))
        for start, part, length in placed(gradient, len(next))
    ]
    # a sum may overflow where no element does
    return not sums or bool(torch.stack(sums).isfinite().all()) or bool(next.isfinite().all())


def _add(next: Tensor, old: Tensor | None, gradient: Tensor | None, how: tuple[int, float, float]) -> Tensor:
    """One segment; returns its sum, ()."""
    start, decay, share = how
    total = next.new_zeros(())
    for a, b in spans(next):
        part = next[a:b]
        mine = gradient[a:b].float() * share if gradient is not None else torch.zeros_like(part)
        if old is None:
            part.copy_(mine)
        elif decay == 1:
            torch.add(old[start + a : start + b], mine, out=part)
        else:  # in two steps: one would round once on some machines, and twice on others
            torch.mul(old[start + a : start + b], decay, out=part).add_(mine)
        total += part.sum()
    return total


def add_select(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: float, layout: Entries | Compact,
    payload: Tensor,
) -> bool:  # fmt: skip
    """`add_in`, then the `layout.k` largest of `next` to payload (layout.nbytes,) uint8, and what is sent out of it.

    Which ones is what `top_k` says.
    """
    finite = add_in(next, old, gradient, decay, share)
    indices = top_k(next, layout.k)
    values = next[indices]
    sent = pack_entries(payload, layout, indices, values)
    next[indices] = torch.zeros_like(values) if isinstance(layout, Entries) else values - sent
    return finite


def add_quantise(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: float, layout: Blocks, payload: Tensor,
    *, keep: bool, seed: int = 0,
) -> bool:  # fmt: skip
    """`add_in`, then `next` as blocks to payload (layout.nbytes,) uint8, and where `keep`, what is sent out of it.

    False also where a scale is not finite. Stochastic codes draw their noise from numpy's SFC64 with this seed, 16 bits
    an element, block by block, each from a fresh word of 64 bits.
    """
    finite = add_in(next, old, gradient, decay, share)
    return encode(next, layout, payload, keep=keep, seed=seed) and finite
