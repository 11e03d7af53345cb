"""Which implementation of the kernels runs: the library on a CPU where it can be loaded, torch everywhere else."""

from types import ModuleType

from torch import Tensor

from gradwire.ops import native, reference
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, Compact


def native_for(x: Tensor) -> bool:
    """Whether the library computes with x."""
    return x.device.type == "cpu" and native.available()


def kernels_for(x: Tensor) -> ModuleType:
    """The functions that compute with x: see `gradwire.ops.reference`."""
    return native if native_for(x) else reference


def in_use() -> str:
    """What computes on a CPU, and why, for people."""
    return f"{'native' if native.available() else 'torch'} ({native.reason()})"


def decode_sum(rows: Tensor, out: Tensor, layout: Blocks | Entries | Compact) -> None:
    """Writes the sum of what rows (ranks, ≥ nbytes) uint8 stand for, rank by rank, to out (n,); see the reference."""
    kernels_for(out).decode_sum(rows, out, layout)


def pack_entries(payload: Tensor, layout: Entries | Compact, indices: Tensor, values: Tensor) -> Tensor:
    """Writes ascending indices (≤ k,) int64 and values to payload; returns what was sent of each value."""
    return kernels_for(payload).pack_entries(payload, layout, indices, values)
