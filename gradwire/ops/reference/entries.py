"""Payloads of entries, some elements with their indices: see `gradwire.ops.entries.Entries`."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gradwire.ops.entries import GROUP, Entries
from gradwire.ops.host import to_device
from gradwire.ops.reference.elias_fano import no_payload, pack_place_rows, places_in, unpack_place_rows
from gradwire.ops.reference.levels import LARGEST
from gradwire.ops.workspace import scratch_on


def pack_entries(payloads: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> Tensor:
    """Writes ascending indices (rows, ≤ k) int64 and their values to payloads (rows, ≥ nbytes) uint8; returns the
    values as they are sent. Where levels are sent, zeros, which have none, are not. Zeros at an index of n or more,
    behind a row's last entry, are no entries."""
    if not layout.exact:
        return _pack_levels(payloads, layout, indices, values)
    # values
    sent = payloads[:, layout.values_at : layout.nbytes].view(torch.float32)
    sent[:, : values.shape[1]].copy_(values)
    sent[:, values.shape[1] :].zero_()
    # indices
    pack_place_rows(_places(payloads, layout), layout.places, indices, indices < layout.n)
    return values


Pack = Callable[[Tensor, Entries, Tensor, Tensor], Tensor]


def move_entries(x: Tensor, payloads: Tensor, layout: Entries, indices: Tensor, pack: Pack = pack_entries) -> None:
    """Moves the elements of vectors x (rows, n) at ascending indices (rows, ≤ k) to payloads (rows, ≥ nbytes): leaves
    the error in x."""
    values = x.gather(1, indices)
    sent = pack(payloads, layout, indices, values)
    x.scatter_(1, indices, 0) if layout.exact else x.scatter_(1, indices, values - sent)


def unpack_entries(payloads: Tensor, layout: Entries) -> tuple[Tensor, Tensor]:
    """Indices int64 and values, (m,) each, of payloads (rows, ≥ nbytes), one payload after another; on a GPU always k
    of each, of which unused ones have value 0. On a CPU raises ValueError for bytes that are no payload."""
    if payloads.shape[1] < layout.nbytes:
        raise ValueError(f"a payload of {payloads.shape[1]} bytes; {layout} takes {layout.nbytes}")
    if payloads.device.type != "cpu":
        indices, values = unpack_entry_rows(payloads, layout)
        return indices.view(-1), values.reshape(-1)
    return joined(_unpack_one(row, layout) for row in payloads)


def joined(unpacked: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Indices and values of several payloads, one after another."""
    indices, values = zip(*unpacked, strict=True)
    return (indices[0], values[0]) if len(indices) == 1 else (torch.cat(indices), torch.cat(values))


def _unpack_one(payload: Tensor, layout: Entries) -> tuple[Tensor, Tensor]:
    indices = places_in(_places(payload, layout), layout.places)
    if indices is None:
        raise no_payload(layout)
    return indices, _values(payload[None], layout, indices[None])[0]


def unpack_entry_rows(payloads: Tensor, layout: Entries) -> tuple[Tensor, Tensor]:
    """`unpack_entries` on a GPU, row by row: (rows, k) each."""
    indices, filled = unpack_place_rows(_places(payloads, layout), layout.places)
    values = _values(payloads, layout, indices)
    return indices, values if layout.exact else values * filled


def _places(payloads: Tensor, layout: Entries) -> Tensor:
    return payloads[..., layout.places_at : layout.values_at]


def _values(payloads: Tensor, layout: Entries, indices: Tensor) -> Tensor:
    """The values (rows, m) at indices (rows, m) of payloads (rows, ≥ nbytes)."""
    rows, m = indices.shape
    values = payloads[:, layout.values_at : layout.nbytes]
    if layout.exact:
        return values.view(torch.float32)[:, :m]
    # sign and level by table, two to a byte, times the group's scale
    scales = payloads[:, : layout.places_at].view(torch.bfloat16).gather(1, indices // GROUP)
    table = _pairs(payloads.device)
    return torch.index_select(table, 0, values.reshape(-1).int()).view(rows, -1)[:, :m] * scales


def _pack_levels(payloads: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> Tensor:
    # scale each group by its largest magnitude
    filled = values != 0
    indices, (levels, edges) = indices * filled, levels_and_edges(payloads.device).split([8, 7])
    scales = _pack_scales(payloads, layout, indices, values)
    # the nearest level
    level = (values.abs()[..., None] < scales[..., None] * edges).sum(2)
    # pack the indices of all but zeros
    order = filled.logical_not().argsort(stable=True)  # zeros go to the end: no host sync
    pack_place_rows(_places(payloads, layout), layout.places, indices.gather(1, order), filled.gather(1, order))
    # pack the codes, two in a byte
    packed = payloads[:, layout.values_at : layout.nbytes]
    codes = torch.zeros(len(packed), 2 * packed.shape[1], dtype=torch.uint8, device=payloads.device)
    codes[:, : order.shape[1]] = ((level + 8 * (values < 0)) * filled).gather(1, order)
    torch.bitwise_or(codes[:, ::2], codes[:, 1::2] << 4, out=packed)
    return torch.copysign(scales * levels[level], values) * filled


def _pack_scales(payloads: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> Tensor:
    """Writes the largest magnitude of each group of elements; returns the scale of each value."""
    group, scales = indices // GROUP, payloads[:, : layout.places_at].view(torch.bfloat16)
    most = torch.zeros(scales.shape, dtype=torch.float32, device=payloads.device).scatter_reduce_(
        1, group, values.abs(), "amax"
    )
    return scales.copy_(most.clamp_(max=LARGEST)).gather(1, group).float()


def levels_and_edges(device: torch.device) -> Tensor:
    """The 8 levels, and the 7 edges half-way between them on a logarithmic scale, (15,)."""

    def make() -> Tensor:
        # in float64, so that rounding to float32 is the same everywhere
        exponents = torch.arange(8, dtype=torch.float64, device="cpu")
        both = torch.exp2(-0.75 * torch.cat([exponents, exponents[:7] + 0.5]))
        return to_device(both.float(), device)

    return scratch_on(device).once("levels and edges", make)


def _pairs(device: torch.device) -> Tensor:
    """The values of each byte's two codes, (256, 2)."""

    def make() -> Tensor:
        levels = levels_and_edges(torch.device("cpu"))[:8]
        both, codes = torch.cat([levels, -levels]), torch.arange(256, dtype=torch.int64, device="cpu")
        return to_device(torch.stack([both[codes & 15], both[codes >> 4]], 1), device)

    return scratch_on(device).once("pairs", make)
