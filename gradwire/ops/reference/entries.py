"""Some of n elements with their indices: `Entries` of 6 bytes, and `Compact` ones of about 10 bits."""

from functools import cache

import torch
from torch import Tensor

from gradwire.ops.entries import Entries
from gradwire.ops.formats import GROUP, Compact

LARGEST = float(torch.finfo(torch.bfloat16).max)


def pack_entries(payload: Tensor, layout: Entries | Compact, indices: Tensor, values: Tensor) -> Tensor:
    """Ascending indices (≤ k,) int64 and values to payload (nbytes,) uint8; returns what was sent of each value."""
    payload[: layout.nbytes].zero_()
    if isinstance(layout, Compact):
        return _pack_compact(payload, layout, indices, values)
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


def _pack_compact(payload: Tensor, layout: Compact, indices: Tensor, values: Tensor) -> Tensor:
    """Zeros, which fill a GPU's shapes up, take no room."""
    scales, upper, lower, codes = _parts(payload, layout)
    levels, edges = _levels(payload.device)
    group, filled = indices // GROUP, values != 0
    most = torch.zeros(-(-layout.n // GROUP), device=payload.device).scatter_reduce_(0, group, values.abs(), "amax")
    scales = scales.view(torch.bfloat16)[: len(most)].copy_(most.clamp_(max=LARGEST))
    scale = scales[group].float()
    level = (values.abs()[:, None] < scale[:, None] * edges).sum(1)
    room = filled.cumsum(0) - 1
    bits = torch.zeros(8 * len(upper) + 1, dtype=torch.uint8, device=payload.device)
    bits.index_fill_(0, torch.where(filled, (indices >> layout.low_bits) + room, len(bits) - 1), 1)
    _put(upper, bits[:-1])
    room = torch.where(filled, room, layout.k)
    _put(lower, _bits_of(indices.new_zeros(layout.k + 1).index_copy_(0, room, indices)[:-1], layout.low_bits))
    _put(codes, _bits_of(indices.new_zeros(layout.k + 1).index_copy_(0, room, level | 8 * (values < 0))[:-1], 4))
    return torch.copysign(scale * levels[level], values) * filled


def _unpack_compact(payload: Tensor, layout: Compact) -> tuple[Tensor, Tensor] | None:
    low = layout.low_bits
    scales, upper, lower, codes = _parts(payload, layout)
    places, filled = _places(_get(upper), layout.k)
    m = len(places)
    if m > layout.k:
        return None
    high = places - torch.arange(m, device=payload.device)
    indices = high << low | _numbers(_get(lower)[: m * low].view(m, low))
    if filled is None and m and int(indices.max()) >= layout.n:
        return None
    indices.clamp_(max=layout.n - 1)
    field = _numbers(_get(codes)[: 4 * m].view(m, 4))
    values = scales.view(torch.bfloat16)[indices // GROUP].float() * _levels(payload.device)[0][field & 7]
    values = torch.where(field & 8 != 0, -values, values)
    return indices, values if filled is None else values * filled


def _places(bits: Tensor, k: int) -> tuple[Tensor, Tensor | None]:
    """Where the set bits are. A GPU is not asked how many there are: k places, and which of them are filled."""
    if bits.device.type == "cpu":
        return bits.nonzero()[:, 0], None
    places = torch.searchsorted(bits.cumsum(0), torch.arange(1, k + 1, device=bits.device))
    return places, places < len(bits)


@cache
def _levels(device: torch.device) -> tuple[Tensor, Tensor]:
    """The 8 levels, and half-way between them on a logarithmic scale: below an edge, the next level is nearer."""
    exponents = torch.arange(8, dtype=torch.float64)
    levels, edges = torch.exp2(-0.75 * exponents), torch.exp2(-0.75 * (exponents[:7] + 0.5))
    return levels.float().to(device), edges.float().to(device)


def _parts(payload: Tensor, layout: Compact) -> list[Tensor]:
    return [payload[a:b] for a, b in zip(layout.starts, layout.starts[1:], strict=False)]


def _bits_of(numbers: Tensor, width: int) -> Tensor:
    """The lowest bits (m·width,) uint8 of whole numbers (m,), the lowest first."""
    places = torch.arange(width, device=numbers.device)
    return (numbers[:, None] >> places & 1).view(-1).to(torch.uint8)


def _numbers(bits: Tensor) -> Tensor:
    """The whole numbers (m,) int64 of bits (m, width), the lowest first."""
    return (bits.long() << torch.arange(bits.shape[1], device=bits.device)).sum(1)


def _put(part: Tensor, bits: Tensor) -> None:
    room = torch.zeros(8 * len(part), dtype=torch.uint8, device=part.device)
    room[: len(bits)] = bits
    places = torch.arange(8, dtype=torch.uint8, device=part.device)
    part.copy_((room.view(-1, 8) << places).sum(1, dtype=torch.uint8))


def _get(part: Tensor) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=part.device)
    return (part[:, None] >> places & 1).view(-1)
