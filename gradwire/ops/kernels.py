"""Which implementation of the kernels runs: the library on a CPU where it can be loaded, torch everywhere else."""

from types import ModuleType

import torch
from torch import Tensor

from gradwire.ops import native, reference
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, Compact
from gradwire.ops.vectors import Output


def native_for(x: Tensor) -> bool:
    """Whether the library computes with x."""
    return x.device.type == "cpu" and native.available()


def kernels_for(x: Tensor) -> ModuleType:
    """The functions that compute with x: see `gradwire.ops.reference`."""
    return native if native_for(x) else reference


def in_use() -> str:
    """What computes on a CPU, and why, for people."""
    return f"{'native' if native.available() else 'torch'} ({native.reason()})"


def decode_sum(rows: Tensor, out: Output, layout: Blocks | Entries | Compact) -> None:
    """Writes the sum of what rows (ranks, ≥ nbytes) uint8 stand for, rank by rank, to out (n,), or to its
    parts; see the reference."""
    kernels_for(rows).decode_sum(rows, out, layout)


def pack_entries(payload: Tensor, layout: Entries | Compact, indices: Tensor, values: Tensor) -> Tensor:
    """Writes ascending indices (≤ k,) int64 and values to payload; returns what was sent of each value."""
    if isinstance(layout, Entries) or not native_for(payload):
        return kernels_for(payload).pack_entries(payload, layout, indices, values)
    filled = values != 0  # no code says zero
    sent = torch.zeros_like(values)
    sent[filled] = native.pack_entries(payload, layout, indices[filled], values[filled])
    return sent


def take_entries(x: Tensor, payload: Tensor, layout: Entries | Compact, indices: Tensor, values: Tensor) -> None:
    """Writes values of x (n,) at ascending indices (≤ k,) to payload, and takes what is sent of them out of x."""
    x.index_add_(0, indices, pack_entries(payload, layout, indices, values), alpha=-1)


def unpack_entries(payload: Tensor, layout: Entries | Compact) -> tuple[Tensor, Tensor]:
    """The indices (≤ k,) int64 and values of a payload; on a GPU k of them, of which some values may be 0."""
    return kernels_for(payload).unpack_entries(payload, layout)
