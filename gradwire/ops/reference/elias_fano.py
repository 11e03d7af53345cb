"""Packing and unpacking of coordinates: see `gradwire.ops.entries.EliasFano`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.ops.entries import EliasFano
from gradwire.ops.reference.bits import pack_bits, unpack_bits
from gradwire.ops.workspace import scratch_on


def pack_indices(payloads: Tensor, layout: EliasFano, indices: Tensor) -> None:
    """Packs ascending indices (rows, ≤ k) int64 in payloads (rows, ≥ nbytes) uint8; on a GPU, those below n."""
    pack_place_rows(payloads, layout, indices, indices < layout.n)


def pack_place_rows(payloads: Tensor, layout: EliasFano, indices: Tensor, filled: Tensor) -> None:
    """Packs indices (rows, ≤ k) in payloads (rows, ≥ nbytes): of each row those `filled` (rows, ≤ k) bool, which ascend
    and come first."""
    (rows, m), width, lower_at = indices.shape, layout.low_bits, 8 * layout.upper_bytes
    ranks, digits = _constants(layout, 1, payloads.device)
    bits = torch.zeros(rows, 8 * layout.nbytes + 8, dtype=torch.bool, device=payloads.device)
    indices = indices * filled
    # upper bits: entry j sets bit (index >> l) + j
    places = torch.where(filled, (indices >> width).add_(ranks[:, :m]), bits.shape[1] - 1)
    bits.scatter_(1, places, True)
    # lower bits, as they are
    lower = bits[:, lower_at : lower_at + m * width].unflatten(1, (m, width))
    torch.ne(indices[:, :, None] & digits, 0, out=lower)
    pack_bits(bits[:, :-8], payloads[:, : layout.nbytes])


def unpack_indices(payloads: Tensor, layout: EliasFano) -> tuple[Tensor, Tensor]:
    """The coordinates (rows, k) int64 of payloads (rows, ≥ nbytes), and which of them were filled, (rows, k) bool. On a
    CPU raises ValueError for bytes that are no payload."""
    if payloads.device.type != "cpu":
        return unpack_place_rows(payloads, layout)
    # a CPU: row by row, and checked
    found = [places_in(row, layout) for row in payloads]
    if any(each is None for each in found):
        raise no_payload(layout)
    return padded_rows([each for each in found if each is not None], layout.k)


def padded_rows(found: Sequence[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Coordinates (≤ k,) int64 of each row, padded with zeros to (rows, k), and which are not padding; on a CPU."""
    indices = torch.zeros(len(found), k, dtype=torch.int64, device="cpu")
    counts = torch.tensor([[len(each)] for each in found], dtype=torch.int64, device="cpu")
    for row, each in zip(indices, found, strict=True):
        row[: len(each)] = each
    return indices, torch.arange(k, dtype=torch.int64, device="cpu") < counts


def places_in(payload: Tensor, layout: EliasFano) -> Tensor | None:
    """The coordinates (≤ k,) int64 of a payload, None for bytes that are none; on a CPU."""
    # entry j is the set bit number j
    upper, lower = _bits(payload[None], layout)
    places = upper[0].nonzero()[:, 0]
    m = len(places)
    if m > layout.k:
        return None
    ranks, digits = _constants(layout, 1, payload.device)
    # upper bits from its place, lower bits as they are
    indices = (places - ranks[0, :m] << layout.low_bits).add_((lower[0, :m] * digits).sum(1))
    return None if m and int(indices.max()) >= layout.n else indices


def unpack_place_rows(payloads: Tensor, layout: EliasFano) -> tuple[Tensor, Tensor]:
    """`unpack_indices` without a host sync. Whether these are payloads is not checked, but all coordinates are below
    n."""
    upper, lower = _bits(payloads, layout)
    ranks, digits = _constants(layout, len(payloads), payloads.device)
    # set bit number j is the first at which j + 1 are set
    places = torch.searchsorted(upper.cumsum(1), ranks, right=True)
    filled = places < upper.shape[1]
    # put upper and lower bits together
    indices = (places.sub_(ranks) << layout.low_bits).add_((lower * digits).sum(2))
    return indices.clamp_(max=layout.n - 1), filled


def _bits(payloads: Tensor, layout: EliasFano) -> tuple[Tensor, Tensor]:
    """The upper bits (rows, ·) and the lower ones (rows, k, l) of payloads (rows, ≥ nbytes)."""
    bits = unpack_bits(payloads[:, : layout.nbytes]).view(len(payloads), -1)
    upper, lower = bits.split([8 * layout.upper_bytes, 8 * (layout.nbytes - layout.upper_bytes)], 1)
    return upper, lower[:, : layout.k * layout.low_bits].unflatten(1, (layout.k, layout.low_bits))


def _constants(layout: EliasFano, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """0 to k - 1 for each of so many rows, (rows, k), and the value of each lower bit, (l,)."""

    def make() -> tuple[Tensor, Tensor]:
        ranks = torch.arange(layout.k, dtype=torch.int64, device=device).repeat(rows, 1)
        return ranks, 1 << torch.arange(layout.low_bits, dtype=torch.int64, device=device)

    return scratch_on(device).once(("places", layout, rows), make)


def no_payload(layout: object) -> ValueError:
    """The error for bytes that are no payload of a layout."""
    return ValueError(f"this is no payload of {layout}: its counts or indices are out of range")
