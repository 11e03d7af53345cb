"""Some of n elements with their indices: `Entries` of 6 bytes, and `Compact` ones of about 10 bits."""

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import GROUP, Compact

LEVELS = (2.0 ** (-0.75 * np.arange(8))).astype(np.float32)
EDGES = (2.0 ** (-0.75 * (np.arange(7) + 0.5))).astype(np.float32)
"""Half-way between two levels on a logarithmic scale: below an edge, the next level is nearer."""
LARGEST = float(torch.finfo(torch.bfloat16).max)


def pack_entries(payload: Tensor, layout: Entries | Compact, indices: Tensor, values: Tensor) -> Tensor:
    """Ascending indices (≤ k,) int64 and values to payload (nbytes,) uint8; returns what was sent of each value."""
    payload[: layout.nbytes].zero_()
    if isinstance(layout, Compact):
        return _pack_compact(payload, layout, indices.numpy(), values.numpy())
    layout.pack(payload, indices, values)
    return values


def unpack_entries(payload: Tensor, layout: Entries | Compact) -> tuple[Tensor, Tensor]:
    """Indices (≤ k,) int64 and values of a payload; raises ValueError where it cannot be one."""
    if len(payload) < layout.nbytes:
        raise ValueError(f"a payload of {len(payload)} bytes; {layout} takes {layout.nbytes}")
    found = _unpack_compact(payload, layout) if isinstance(layout, Compact) else _unpack(payload, layout)
    if found is None:
        raise ValueError(f"this is no payload of {layout}: its counts or indices are out of range")
    return found


def _unpack(payload: Tensor, layout: Entries) -> tuple[Tensor, Tensor] | None:
    if payload.device.type != "cpu":  # a GPU is not asked whether it is one
        return layout.unpack(payload)
    counts = payload[4 * layout.k :][: 4 * layout.places.blocks].view(torch.int32).long()
    if bool((counts < 0).any()) or int(counts.sum()) > layout.k:
        return None
    m = int(counts.sum())
    indices, values = layout.unpack(payload)
    if bool((indices[:m] >= layout.n).any()):
        return None
    return indices[:m], values[:m]


def _pack_compact(payload: Tensor, layout: Compact, indices: np.ndarray, values: np.ndarray) -> Tensor:
    low, group = layout.low_bits, torch.from_numpy(indices // GROUP)
    scales, upper, lower, codes = _parts(payload, layout)
    most = torch.zeros(-(-layout.n // GROUP)).scatter_reduce_(0, group, torch.from_numpy(np.abs(values)), "amax")
    scales.view(torch.bfloat16)[: len(most)].copy_(most.clamp_(max=LARGEST))
    scale = scales.view(torch.bfloat16)[group].float().numpy()
    levels = (np.abs(values)[:, None] < scale[:, None] * EDGES).sum(1)
    fields = levels | 8 * (values < 0)
    _put(upper, np.bincount((indices >> low) + np.arange(len(indices)), minlength=1).astype(bool))
    _put(lower, indices[:, None] >> np.arange(low) & 1)
    _put(codes, fields[:, None] >> np.arange(4) & 1)
    return torch.from_numpy(np.copysign(scale * LEVELS[levels], values))


def _unpack_compact(payload: Tensor, layout: Compact) -> tuple[Tensor, Tensor] | None:
    low = layout.low_bits
    scales, upper, lower, codes = _parts(payload, layout)
    places = np.flatnonzero(_get(upper))
    m = len(places)
    if m > layout.k:
        return None
    indices = (places - np.arange(m)) << low
    indices |= _get(lower)[: m * low].reshape(m, low).astype(np.int64) @ (1 << np.arange(low))
    if m and indices.max() >= layout.n:
        return None
    fields = _get(codes)[: 4 * m].reshape(m, 4) @ np.array([1, 2, 4, 8], np.uint8)
    scale = scales.view(torch.bfloat16)[torch.from_numpy(indices // GROUP)].float().numpy()
    values = scale * LEVELS[fields & 7]
    return torch.from_numpy(indices), torch.from_numpy(np.where(fields & 8, -values, values))


def _parts(payload: Tensor, layout: Compact) -> list[Tensor]:
    return [payload[a:b] for a, b in zip(layout.starts, layout.starts[1:], strict=False)]


def _put(part: Tensor, bits: np.ndarray) -> None:
    packed = np.packbits(bits.reshape(-1).astype(bool), bitorder="little")
    part[: len(packed)] = torch.from_numpy(packed)


def _get(part: Tensor) -> np.ndarray:
    return np.unpackbits(part.numpy(), bitorder="little")
