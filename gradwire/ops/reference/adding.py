"""The next residual from the old one and a gradient, and what encodes it."""

import torch
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks
from gradwire.ops.reference import blocks, grid
from gradwire.ops.reference.entries import pack_entries
from gradwire.ops.reference.finite import Finite, both, finite_in, told
from gradwire.ops.reference.selecting import top_k
from gradwire.ops.tiles import spans
from gradwire.ops.vectors import Gradient, Share, placed
from gradwire.torch_private.foreach import copy_each


def add_in(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share, *,
    nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """next = decay·old + share·gradient, each operation rounded to float32; whether all of it is finite. A GPU is not
    asked: there `nonfinite` (1,), which was 0, becomes NaN where it is not.

    next, old: (n,) float32; without `old`, and without a gradient, theirs is zero. `next` may be the gradient, or
    `old` where there is no gradient.
    """
    return told(_add_in(next, old, gradient, decay, share), nonfinite)


def _add_in(next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share) -> Finite:
    source = gathered(next, gradient)
    finite: Finite = True
    for start, end in spans(next):
        part = next[start:end]
        _add(part, None if old is None else old[start:end], None if source is None else source[start:end], decay, share)
        finite = both(finite, finite_in(part))
    return finite


def gathered(next: Tensor, gradient: Gradient) -> Tensor | None:
    """The gradient as a float32 vector (n,), in `next` where it is none yet."""
    if gradient is None or (isinstance(gradient, Tensor) and gradient.dtype == torch.float32):
        return gradient
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    for start, part, length in placed(gradient, len(next)):
        if part is None:
            next[start : start + length].zero_()
        else:
            targets.append(next[start : start + length])
            sources.append(part.view(-1))
    copy_each(targets, sources)
    return next


def _add(part: Tensor, old: Tensor | None, gradient: Tensor | None, decay: float, share: Share) -> None:
    """One tile of `next`."""
    if gradient is None:
        torch.mul(old, decay, out=part) if old is not None else part.zero_()
        return
    torch.mul(gradient, share, out=part)
    if old is None:
        return
    if decay == 1 or part.device.type != "cpu":
        part.add_(old, alpha=decay)
    else:  # in two steps: one would round once on some machines, and twice on others
        part.add_(old * decay)


def add_select(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share, layout: Entries,
    payload: Tensor, *, nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """`add_in`, then the `layout.k` largest of `next` to payload (layout.nbytes,) uint8, and what is sent out of it.

    Which ones is what `top_k` says.
    """
    finite = add_in(next, old, gradient, decay, share, nonfinite=nonfinite)
    indices = top_k(next, layout.k)
    values = next[indices]
    sent = pack_entries(payload, layout, indices, values)
    if layout.exact:
        next.index_fill_(0, indices, 0)
    else:
        next[indices] = values - sent
    return finite


def add_quantise(
    next: Tensor, old: Tensor | None, gradient: Gradient, decay: float, share: Share, layout: Blocks, payload: Tensor,
    *, keep: bool, seed: int = 0, nonfinite: Tensor | None = None,
) -> bool:  # fmt: skip
    """`add_in`, then `next` as blocks to payload (layout.nbytes,) uint8, and where `keep`, what is sent out of it.

    False also where a scale is not finite. Stochastic codes draw their noise from numpy's SFC64 with this seed, 16 bits
    an element, block by block, each from a fresh word of 64 bits; on a GPU from torch's generator.
    """
    finite = _add_in(next, old, gradient, decay, share)
    encode = blocks.encode if next.device.type == "cpu" else grid.encode
    return told(both(finite, encode(next, layout, payload, keep=keep, seed=seed)), nonfinite)
