"""Casts of float32 to another type, and sums of those."""

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from gradwire.ops.host import on_host
from gradwire.ops.tiles import tile_bounds
from gradwire.ops.vectors import equal_parts


def cast_parts(x: Tensor, rows: Tensor, bounds: Sequence[int], limit: float, *, keep: bool) -> None:
    """Casts the parts of x (n,) between `bounds`, all as long as the first but for the last, to rows (parts, ≥ length)
    of another type, clipped to ±limit; where `keep`, leaves the error in x."""
    for parts, targets in equal_parts(x, rows, bounds):
        for start, end in tile_bounds(x[: parts.shape[1]]):
            part, values = parts[:, start:end], targets[:, start:end]
            # cast and clip
            values.copy_(part)
            if limit < inf:
                values.clamp_(-limit, limit)
            # keep the error
            if keep:
                part.sub_(values)


def sum_casts(payloads: Tensor, out: Tensor, bounds: Sequence[int]) -> None:
    """Writes the sums of payloads (parts, ranks, ≥ length) of another type to the parts of out (n,) between `bounds`,
    in float32."""
    for parts, values in equal_parts(out, payloads, bounds):
        values = values[..., : parts.shape[1]]
        # a GPU: one reduction
        if values.shape[1] > 1 and not on_host(out.device):
            torch.sum(values, 1, dtype=out.dtype, out=parts)
            continue
        # rank by rank; adding mixed types makes a copy: a tile's is cheap
        for start, end in tile_bounds(parts[0]):
            parts[:, start:end].copy_(values[:, 0, start:end])
            for rank in range(1, values.shape[1]):
                parts[:, start:end].add_(values[:, rank, start:end])
