"""What compressors would leave of a layer."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gradwire.compressors import Codec, Compressor, LowRank, RandomK, Sparse, context_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.slots import Layout, Slot

SAMPLE = 1 << 18


def square_errors(x: Tensor, slot: Slot, choices: Sequence[Compressor]) -> list[float]:
    """|x - what each choice sends of it|² for a layer's x (n,), the best of its kind: the largest elements, the
    largest singular values. Of more than 262,144 elements a sample is looked at for sparsifiers."""
    if all(isinstance(choice, Sparse) for choice in choices):
        return _small_elements(x, [choice.count(slot.numel) for choice in choices if isinstance(choice, Sparse)])
    if all(isinstance(choice, LowRank) for choice in choices):
        ranks = [choice.factor_rank(*slot.matrix) for choice in choices if isinstance(choice, LowRank)]
        return _small_singular_values(x.view(slot.matrix), ranks)
    return [_error(x, slot, choice) for choice in choices]


def _small_elements(x: Tensor, counts: Sequence[int]) -> list[float]:
    """The square norms of all but the `counts` largest elements."""
    n = len(x)
    sample = x[:: n // SAMPLE | 1] if n > SAMPLE else x
    share = len(sample) / n
    squares = sample.cpu().numpy().astype(np.float64) ** 2
    edges = [len(squares) - min(len(squares), round(count * share)) for count in counts]
    inner = sorted({edge for edge in edges if 0 < edge < len(squares)})
    if inner:
        squares.partition(inner)
    return [float(squares[:edge].sum()) / share for edge in edges]


def _small_singular_values(matrix: Tensor, ranks: Sequence[int]) -> list[float]:
    """The square norms of all but the `ranks` largest singular values, found by two steps of subspace iteration;
    0 where the rank is 0, for such a matrix travels dense."""
    most = max(ranks)
    if not most:
        return [0.0] * len(ranks)
    generator = torch.Generator().manual_seed(most)
    q = torch.randn(matrix.shape[1], min(most + 4, *matrix.shape), generator=generator).to(matrix.device)
    for _ in range(2):
        p = torch.linalg.qr(matrix @ q).Q
        q = torch.linalg.qr(matrix.T @ p).Q
    energies = torch.linalg.svdvals(matrix @ q).double().square().cumsum(0)
    whole = float(matrix.double().square().sum())
    return [max(0.0, whole - float(energies[rank - 1])) if rank else 0.0 for rank in ranks]


def _error(x: Tensor, slot: Slot, choice: Compressor) -> float:
    assert isinstance(choice, Codec)
    whole = float(x.double().square().sum())
    if isinstance(choice, RandomK):
        return (1 - choice.ratio) * whole
    if choice.is_cast:
        return 0.0
    context = context_for(Layout((slot,)), choice, x.device)
    size = choice.group_bytes(context.layout, 0)
    payload = torch.zeros(size // 4 * 4 + 4, dtype=torch.uint8, device=x.device)[:size]
    left = x.clone()
    choice.encode(LazySum.of(left), payload, context)
    return float(left.double().square().sum())
