"""A trial of a user's codec on a few numbers, before gradients go through it."""

from functools import lru_cache
from itertools import pairwise
from numbers import Integral

import torch
from torch import Tensor

from gradwire.compressors import Codec, FixedSizeCompressor, Sparse, context_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout, Slot

LAYOUT = Layout((Slot("tried", (32, 48), (48, 1), torch.float32),))
TOLERANCE = 0.05
"""Of numbers of size 1: whatever type of numbers a codec computes in."""


@lru_cache(1024)
def try_codec(compressor: FixedSizeCompressor, error_feedback: bool) -> None:
    """Tries a user's codec, once. Raises ValueError where its size is no whole number, where it selects what no payload
    holds, and with `error_feedback` where what it sends and what it leaves do not add up to what it was given: then
    its memory would be wrong."""
    if type(compressor).__module__.partition(".")[0] == "gradwire":
        return
    # the codecs of several rounds are the compressor's own affair
    try:
        own = [codec for codec, _ in compressor.messages(LAYOUT, 0) if codec is compressor]
        sizes = [codec.group_bytes(LAYOUT, 0) for codec in own]
    except Exception:  # it may know the layers of its own model alone
        return
    for codec, size in zip(own, sizes, strict=True):
        _try(codec, size, error_feedback and codec.decodes_means)


def _try(codec: Codec, size: int, error_feedback: bool) -> None:
    name = type(codec).__name__
    if not isinstance(size, Integral):
        raise ValueError(f"{name}.payload_bytes() returns {size!r}, no whole number of bytes; write e.g. -(-n // 8)")
    x = torch.randn(LAYOUT.numel, dtype=torch.float32, device="cpu", generator=torch.Generator().manual_seed(0))
    if isinstance(codec, Sparse) and not _selects(codec, x):
        raise ValueError(
            f"{name}.select(x, k, context) is to return ascending indices, int64, k at most, and does not; write e.g. "
            "x.abs().topk(k).indices.sort().values"
        )
    if not error_feedback:
        return
    try:
        total = _sent_and_left(codec, x, int(size))
    except Exception:  # it may need other gradients than these; where it does not, steps say what is wrong
        return
    if not torch.allclose(total, x, rtol=0, atol=TOLERANCE):
        raise ValueError(
            f"{name} loses or adds gradients: what it sends and what it leaves in x do not add up to x; change x and "
            "out in place, as by x.sub_(sent) and out.copy_(sent), or use memory=gw.NoMemory()"
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


def _sent_and_left(codec: Codec, x: Tensor, size: int) -> Tensor:
    """The gradient that one rank decodes after it has encoded x (n,), plus the residual that encoding left in x."""
    context, vector, sent = context_for(LAYOUT, codec, x.device), LazySum.of(x.clone()), torch.full_like(x, torch.nan)
    payload = torch.zeros(size, dtype=torch.uint8, device=x.device)
    # random numbers of the training stay as they are
    with torch.random.fork_rng(devices=[]):
        codec.encode(vector, payload[None], context.whole)
        codec.decode(payload[None, None], Mean.of(sent), context.whole)
    return vector.total() + sent
