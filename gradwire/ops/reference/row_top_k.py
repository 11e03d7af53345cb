"""Exact top-k of every row or column of a matrix, on a CPU."""

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.tiles import TILE
from gradwire.ops.workspace import Workspace

GROUPS = 4
"""The least groups of elements per element sought: with fewer, more elements pass the bound that their maxima give."""
COLUMNS = 128
"""Columns transposed at a time: fewer would read a cache line for a part of it."""


def top_k_rows(matrix: Tensor, k: int, scratch: Workspace) -> Tensor:
    """Column indices (rows, k) int64, ascending, of the k largest magnitudes of each row of (rows, columns) float32;
    the first of equal magnitudes win. On a CPU."""
    rows, length = matrix.shape
    chosen = torch.empty(rows, k, dtype=torch.int64, device="cpu")
    # as many rows at a time as fit the cache
    step = max(1, TILE // length)
    for start in range(0, rows, step):
        part = matrix[start : start + step]
        magnitude = torch.abs(part, out=scratch.tensor("magnitude", tuple(part.shape)))
        chosen[start : start + step] = _largest(magnitude, k, scratch)
    return chosen


def top_k_columns(matrix: Tensor, k: int, scratch: Workspace) -> Tensor:
    """Row indices (columns, k) int64 of the k largest magnitudes of each column; see `top_k_rows`."""
    rows, columns = matrix.shape
    chosen = torch.empty(columns, k, dtype=torch.int64, device="cpu")
    # as many columns at a time, transposed
    step = max(COLUMNS, TILE // rows)
    for start in range(0, columns, step):
        width = min(step, columns - start)
        part = torch.abs(matrix[:, start : start + width], out=scratch.tensor("columns", (rows, width)))
        transposed = scratch.tensor("magnitude", (width, rows)).copy_(part.T)  # 4 times faster than from the matrix
        chosen[start : start + width] = _largest(transposed, k, scratch)
    return chosen


def _largest(magnitude: Tensor, k: int, scratch: Workspace) -> Tensor:
    """Column indices (rows, k), ascending, of the k largest of each row of magnitude (rows, length)."""
    shape = rows, length = tuple(magnitude.shape)
    m, mask = magnitude.numpy(), scratch.tensor("mask", shape, torch.bool).numpy()
    # all elements above a bound that k of each row reach
    bound = _lower_bound(m, k, scratch.tensor("groups", shape).numpy())
    hits = np.flatnonzero(np.greater_equal(m, bound[:, None], out=mask))
    # more than k of some row: drop the smallest
    if len(hits) > rows * k:
        hits = _without_surplus(hits, m, k)
    chosen = hits.reshape(rows, k)
    chosen -= np.arange(rows)[:, None] * length
    return torch.from_numpy(chosen)


def _lower_bound(m: np.ndarray, k: int, scratch: np.ndarray) -> np.ndarray:
    """Magnitudes (rows,) that at least k elements of each row of m (rows, length) reach, and few more: the k-th
    largest of the maxima of groups. scratch: (rows, length)."""
    # maxima of groups: fold the rows in half while there are enough
    groups = m
    while (half := groups.shape[1] // 2) >= GROUPS * k:
        groups = np.maximum(groups[:, :half], groups[:, half : 2 * half], out=scratch[:, :half])
    if groups is m:
        scratch[...] = m
        groups = scratch
    # the k-th largest of them
    kth = groups.shape[1] - k
    groups.partition(kth, axis=1)  # numpy's is vectorised: 3 times faster than torch.topk
    return groups[:, kth].copy()


def _without_surplus(hits: np.ndarray, m: np.ndarray, k: int) -> np.ndarray:
    """Of ascending flat indices `hits` into m (rows, length), at least k in each row, the k with the largest m of
    each row; the first of equals."""
    rows, length = m.shape
    # the hits of each row, side by side
    counts = np.diff(np.searchsorted(hits, np.arange(rows + 1) * length))
    used = np.arange(counts.max()) < counts[:, None]
    sizes = np.full(used.shape, -1, np.float32)
    sizes[used] = m.reshape(-1)[hits]
    # keep those above the k-th largest, and the first of those equal to it
    kth = np.partition(sizes, -k, axis=1)[:, -k, None]
    larger, equal = sizes > kth, sizes == kth
    missing = k - larger.sum(1, keepdims=True)
    keep = larger | equal & (equal.cumsum(1) <= missing)
    return hits[keep[used]]
