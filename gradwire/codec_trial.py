"""A trial of a user's codec on a few numbers, before gradients go through it."""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from numbers import Integral

import torch
from torch import Tensor

from gradwire.compressors import Codec, FixedSizeCompressor, GroupContext, Sparse, context_for
from gradwire.importing import is_users
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout, Slot

LAYOUT = Layout((Slot("tried", (32, 48), (48, 1), torch.float32),))
RANKS = 2
TOLERANCE = 0.05
"""Of numbers of size 1: whatever type of numbers a codec computes in."""


@lru_cache(1024)
def try_codec(compressor: FixedSizeCompressor, error_feedback: bool) -> None:
    """Tries a user's codec, once. Raises ValueError where its size is no whole number; where it selects indices that no
    payload holds; where it decodes no sum over the ranks, or another one on each rank; and with `error_feedback` where
    what it sends and what it leaves do not add up to what it was given, for then its memory would be wrong."""
    if not is_users(compressor):
        return
    # the codecs of several rounds are the compressor's own affair
    try:
        own = [codec for codec, _ in compressor.messages(LAYOUT, 0) if codec is compressor]
        sizes = [codec.group_bytes(LAYOUT, 0) for codec in own]
    except Exception:  # it may know the layers of its own model alone
        return
    for codec, size in zip(own, sizes, strict=True):
        _try(codec, size, error_feedback)


def _try(codec: Codec, size: int, error_feedback: bool) -> None:
    name = type(codec).__name__
    if not isinstance(size, Integral):
        raise ValueError(f"{name}.payload_bytes() returns {size!r}, no whole number of bytes; write e.g. -(-n // 8)")
    x = torch.randn(RANKS, LAYOUT.numel, dtype=torch.float32, device="cpu", generator=torch.Generator().manual_seed(0))
    if isinstance(codec, Sparse) and not _selects(codec, x[0]):
        raise ValueError(
            f"{name}.select(x, k, context) is to return ascending indices, int64, k at most, and does not; write e.g. "
            "x.abs().topk(k).indices.sort().values"
        )
    if not codec.decodes_means:
        return
    try:
        left, decoded, apart = _left_and_decoded(codec, x, int(size))
    except Exception:  # it may need other gradients than these; where it does not, steps say what is wrong
        return
    if decoded.isnan().any():
        raise ValueError(
            f"{name} does not write all of out when it decodes; change it in place, as by "
            "torch.sum(numbers, dim=0, out=out)"
        )
    if not torch.equal(decoded[0], decoded[1]):
        raise ValueError(
            f"{name} decodes the same payloads to other numbers on rank 1 than on rank 0; do not use context.rank or "
            "torch's random numbers in decode()"
        )
    if not _near(decoded[0], apart):
        raise ValueError(
            f"{name} decodes no sum: two ranks' payloads give another vector than each decoded alone, and added; "
            "decode to the sum, as by torch.sum(numbers, dim=0, out=out), or set divisible = False"
        )
    if error_feedback and not _near(decoded[0] + left, x.sum(0)):
        raise ValueError(
            f"{name} loses or adds gradients: what two ranks send and what they leave in x do not add up to their x; "
            "change x in place, as by x.sub_(sent), or use memory=gw.NoMemory()"
        )


def _selects(codec: Sparse, x: Tensor) -> bool:
    """Whether it selects ascending indices of x (n,), k or fewer; also where it fails, as it may of these numbers."""
    k = codec.count(len(x))
    try:
        with torch.random.fork_rng(devices=[]):
            indices = codec.select(x.clone(), k, context_for(LAYOUT, codec, x.device))
    except Exception:  # steps say what is wrong
        return True
    if not isinstance(indices, Tensor) or (indices.dtype, indices.dim()) != (torch.int64, 1) or len(indices) > k:
        return False
    bounded = [-1, *indices.tolist(), len(x)]
    return all(here < after for here, after in pairwise(bounded))


def _left_and_decoded(codec: Codec, x: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Encodes x (ranks, n) and decodes the payloads. Returns the sum over the ranks of the residuals (n,); the vector
    that each rank decodes from all payloads (ranks, n); and the sum (n,) of the vectors that each payload decodes to
    alone, as with parts of a group."""
    contexts = [replace(context_for(LAYOUT, codec, x.device), rank=rank, world=RANKS) for rank in range(RANKS)]
    left, payloads = x.clone(), contexts[0].message("tried", size, RANKS).body.zero_()

    def decode(rows: Tensor, context: GroupContext) -> Tensor:
        out = torch.full((LAYOUT.numel,), torch.nan, dtype=torch.float32, device=x.device)
        codec.decode(rows[None], Mean.of(out), context.whole)
        return out

    # random numbers of the training stay as they are
    with torch.random.fork_rng(devices=[]):
        for rank, context in enumerate(contexts):
            vector = LazySum.of(left[rank])
            codec.encode(vector, payloads[rank][None], context.whole)
            left[rank] = vector.total()
        decoded = torch.stack([decode(payloads, context) for context in contexts])
        rows = payloads.split(1) if codec.takes_parts else [payloads]
        apart = torch.stack([decode(row, contexts[0]) for row in rows])
    return left.sum(0), decoded, apart.sum(0)


def _near(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=TOLERANCE)
