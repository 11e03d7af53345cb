"""Lower bounds on a layer's compression error: all but its largest elements, or its largest singular values."""

from collections.abc import Sequence
from math import isfinite, nan

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.sample import stride_of

SAMPLE = 1 << 18
"""Elements that are looked at, at most."""


def energy_beyond_top_k(x: Tensor, counts: Sequence[int]) -> list[float]:
    """The square norms of all but the `counts` largest elements of x (n,), one for each count; of more than 262,144
    elements those of a sample, scaled up."""
    n = len(x)
    sample = x[:: stride_of(n, SAMPLE)] if n > SAMPLE else x
    share = len(sample) / n
    # sum the smallest squares: sort only where a sum ends
    squares = sample.cpu().numpy().astype(np.float64) ** 2
    edges = [len(squares) - min(len(squares), round(count * share)) for count in counts]
    inner = sorted({edge for edge in edges if 0 < edge < len(squares)})
    if inner:
        squares.partition(inner)
    # scale the sample up
    return [float(squares[:edge].sum()) / share for edge in edges]


def energy_beyond_rank(matrix: Tensor, ranks: Sequence[int]) -> list[float]:
    """The square norms of all but the `ranks` largest singular values of a matrix (rows, columns), found by two steps
    of subspace iteration; 0 where the rank is 0, for such a matrix travels dense; NaN where it is not finite."""
    most = max(ranks)
    if not most:
        return [0.0] * len(ranks)
    # no decomposition takes what is not finite, which a GPU drops later
    whole = float(matrix.double().square().sum())
    if not isfinite(whole):
        return [nan] * len(ranks)
    generator = torch.Generator().manual_seed(most)
    q = torch.randn(
        matrix.shape[1], min(most + 4, *matrix.shape), generator=generator, dtype=torch.float32, device="cpu"
    ).to(matrix.device)
    # subspace iteration
    for _ in range(2):
        p = torch.linalg.qr(matrix @ q).Q
        q = torch.linalg.qr(matrix.T @ p).Q
    # what the rank leaves of the whole
    energies = torch.linalg.svdvals(matrix @ q).double().cpu().square().cumsum(0).tolist()
    return [max(0.0, whole - energies[rank - 1]) if rank else 0.0 for rank in ranks]
