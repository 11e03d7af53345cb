"""Which implementation of the kernels runs: the library on a CPU where it can be loaded, Triton on a GPU where it is
there and does what torch does, torch everywhere else."""

import os
from collections.abc import Sequence
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from gradwire.ops import native, reference
from gradwire.ops.entries import Entries, Places
from gradwire.ops.formats import Blocks
from gradwire.ops.tiles import spans
from gradwire.ops.vectors import Output, alike_parts


def native_for(x: Tensor) -> bool:
    """Whether the library computes with x."""
    return x.device.type == "cpu" and native.available()


def kernels_for(x: Tensor) -> ModuleType:
    """The functions that compute with x: see `gradwire.ops.reference`."""
    if native_for(x):
        return native
    return in_triton(x) or reference


def in_triton(x: Tensor) -> ModuleType | None:
    """The functions in Triton, where they compute with x."""
    return on_gpu()[0] if x.device.type == "cuda" else None


@cache
def on_gpu() -> tuple[ModuleType | None, str]:
    """The functions in Triton, or None and the reason. Tries them when first asked, which takes seconds."""
    if os.environ.get("GRADWIRE_KERNELS") == "reference":
        return None, "GRADWIRE_KERNELS=reference"
    if not torch.cuda.is_available():
        return None, "no GPU"
    try:
        from gradwire.ops import triton
        from gradwire.ops.triton.trial import differences

        wrong = differences(torch.device("cuda"))
    except Exception as error:  # no Triton, no compiler for its launcher, a GPU that it does not know, ...
        return None, f"Triton cannot be used: {type(error).__name__}: {error}"
    return (None, f"Triton computes {wrong} wrong here") if wrong else (triton, "")


def in_use() -> str:
    """What computes, and why, for people."""
    cpu = f"{'native' if native.available() else 'torch'} ({native.reason()})"
    if not torch.cuda.is_available():
        return cpu
    found, why = on_gpu()
    return f"{cpu}, on a GPU {'triton' if found else f'torch ({why})'}"


def mask_zeros(x: Tensor, other: Tensor) -> None:
    """x (n,) becomes 0 where the other (n,) is."""
    if (triton := in_triton(x)) is not None:
        triton.mask_zeros(x, other)
        return
    for start, end in spans(x):
        x[start:end].mul_(other[start:end].ne(0))


def decode_blocks(rows: Tensor, out: Output, layout: Blocks) -> None:
    """Writes the sum of what rows (ranks, ≥ nbytes) uint8 stand for, rank by rank, to out (n,), or to its parts, which
    end anywhere."""
    kernels_for(rows).decode_blocks(rows, out, layout)


def decode_entries(rows: Tensor, out: Output, layout: Entries) -> None:
    """As `decode_blocks`, for payloads of entries."""
    kernels_for(rows).decode_entries(rows, out, layout)


def quantise_parts(x: Tensor, rows: Tensor, layouts: Sequence[Blocks], *, keep: bool, seeds: Sequence[int]) -> None:
    """Writes the parts of x (n,) that these layouts are for, one after another, each to a row of its own (≥ nbytes,)
    uint8, and where `keep`, leaves in x what is not sent. Triton does all in one launch."""
    if (triton := in_triton(x)) is not None:
        triton.quantise_parts(x, rows, layouts, keep=keep, seeds=seeds)
        return
    parts, quantise = x.split([layout.numel for layout in layouts]), kernels_for(x).add_quantise
    for part, row, layout, seed in zip(parts, rows, layouts, seeds, strict=False):
        quantise(part, part, None, 1.0, 1.0, layout, row[: layout.nbytes], keep=keep, seed=seed)


def dequantise_parts(rows: Tensor, out: Tensor, layouts: Sequence[Blocks]) -> None:
    """Writes to the parts of out (n,) what `quantise_parts` wrote for them. Triton does all in one launch."""
    if (triton := in_triton(out)) is not None:
        triton.dequantise_parts(rows, out, layouts)
        return
    for part, row, layout in zip(out.split([layout.numel for layout in layouts]), rows, layouts, strict=False):
        kernels_for(out).decode_blocks(row[None], part, layout)


def cast_parts(x: Tensor, rows: Tensor, bounds: Sequence[int], limit: float, *, keep: bool) -> None:
    """Writes the parts of x (n,) between `bounds`, all as long as the first but for the last, to rows (·, ≥ length) of
    another type, no magnitude above `limit`; where `keep`, leaves in x what is not sent."""
    kernels_for(x).cast_parts(x, rows, bounds, limit, keep=keep)


def select_parts(x: Tensor, rows: Tensor, layouts: Sequence[Entries]) -> None:
    """As `quantise_parts`, the largest elements of each part. A GPU does all that are equally long at once."""
    if (triton := in_triton(x)) is not None:
        triton.select_parts(x, rows, layouts)
        return
    if x.device.type != "cpu":
        for layout, payloads, start, end in alike_parts(rows, layouts):
            parts = x[start:end].view(len(payloads), layout.n)
            move_entry_rows(parts, payloads, layout, reference.top_k(parts, layout.k))
        return
    parts, select = x.split([layout.n for layout in layouts]), kernels_for(x).add_select
    for part, row, layout in zip(parts, rows, layouts, strict=False):
        select(part, part, None, 1.0, 1.0, layout, row[: layout.nbytes])


def unpack_parts(rows: Tensor, out: Tensor, layouts: Sequence[Entries]) -> None:
    """Writes to the parts of out (n,) the entries of their rows, as `dequantise_parts`."""
    if (triton := in_triton(out)) is not None:
        triton.unpack_parts(rows, out, layouts)
        return
    if out.device.type != "cpu":
        for layout, payloads, start, end in alike_parts(rows, layouts):
            parts = out[start:end].view(len(payloads), layout.n).zero_()
            parts.scatter_add_(1, *reference.unpack_entry_rows(payloads, layout))
        return
    for part, row, layout in zip(out.split([layout.n for layout in layouts]), rows, layouts, strict=False):
        kernels_for(out).decode_entries(row[None], part, layout)


def pack_entries(payload: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> Tensor:
    """Writes ascending indices (≤ k,) int64 and values to payload; returns what was sent of each value. Zeros have no
    level, and take no room where levels are sent."""
    return kernels_for(payload).pack_entries(payload, layout, indices, values)


def take_entries(x: Tensor, payload: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> None:
    """Writes values of x (n,) at ascending indices (≤ k,) to payload, and takes what is sent of them out of x."""
    x.index_add_(0, indices, pack_entries(payload, layout, indices, values), alpha=-1)


def move_entries(x: Tensor, payload: Tensor, layout: Entries, indices: Tensor) -> None:
    """`take_entries` of what x (n,) has there."""
    if x.device.type == "cpu":
        take_entries(x, payload, layout, indices, x[indices])
    else:
        move_entry_rows(x[None], payload[None], layout, indices[None])


def take_entry_rows(x: Tensor, payloads: Tensor, layout: Entries, indices: Tensor, values: Tensor) -> None:
    """`take_entries` of several vectors x (rows, n) at indices (rows, k), on a GPU."""
    x.scatter_add_(1, indices, kernels_for(x).pack_entry_rows(payloads, layout, indices, values).neg())


def move_entry_rows(x: Tensor, payloads: Tensor, layout: Entries, indices: Tensor) -> None:
    """`move_entries` of several vectors x (rows, n), on a GPU."""
    if (triton := in_triton(x)) is not None:
        payloads[:, : layout.nbytes].zero_()
        triton.move_entries(x, payloads, layout, indices)
    else:
        take_entry_rows(x, payloads, layout, indices, x.gather(1, indices))


def unpack_entries(payload: Tensor, layout: Entries) -> tuple[Tensor, Tensor]:
    """The indices (≤ k,) int64 and values of a payload; on a GPU k of them, of which some values may be 0."""
    return kernels_for(payload).unpack_entries(payload, layout)


def unpack_all(rows: Tensor, layout: Entries) -> tuple[Tensor, Tensor]:
    """`unpack_entries` of several payloads (rows, ≥ nbytes), one after another."""
    if rows.device.type != "cpu":
        indices, values = kernels_for(rows).unpack_entry_rows(rows, layout)
        return indices.view(-1), values.reshape(-1)
    indices, values = zip(*(unpack_entries(row, layout) for row in rows), strict=True)
    return torch.cat(indices), torch.cat(values)


def orthogonalize(factors: Sequence[Tensor]) -> None:
    """See `gradwire.ops.reference.orthogonal`; on a GPU the batches lie one after another."""
    if factors:
        (in_triton(factors[0]) or reference).orthogonalize(factors)


def renew(factors: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """See `gradwire.ops.reference.factors`; on a GPU the batches lie one after another."""
    return (in_triton(factors[0]) or reference).renew(factors, before)


def add_at(out: Tensor, indices: Tensor, values: Tensor, rows: int) -> None:
    """out[index] += value, one after another, for what so many payloads hold, on a GPU equally much each: there one
    after another as well, for in one of them all indices differ, and so every replica rounds alike."""
    if out.device.type == "cpu":
        out.index_add_(0, indices, values)
        return
    for places, added in zip(indices.view(rows, -1), values.view(rows, -1), strict=True):
        out.index_add_(0, places, added)


def pack_places(payload: Tensor, layout: Places, indices: Tensor) -> None:
    """Writes ascending indices (≤ k,) int64 to payload (nbytes,) uint8."""
    kernels_for(payload).pack_places(payload, layout, indices)


def unpack_places(rows: Tensor, layout: Places) -> tuple[Tensor, Tensor]:
    """The indices (rows, k) int64 of payloads, and which of this room was filled, (rows, k) bool."""
    if rows.device.type != "cpu":
        return kernels_for(rows).unpack_place_rows(rows, layout)
    indices, filled = zip(*(kernels_for(rows).unpack_places(row, layout) for row in rows), strict=True)
    return torch.stack(indices), torch.stack(filled)
