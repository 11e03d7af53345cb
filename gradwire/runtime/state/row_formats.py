"""How the rows of a sparse gradient lie in a payload: as they are, or in few bits."""

from dataclasses import dataclass
from math import prod
from typing import cast

import torch
from torch import Tensor

from gradwire.compressors import Compressor, Quantized
from gradwire.compressors.quantized import NO_NOISE
from gradwire.ops.backend import backend_for
from gradwire.ops.formats import Blocks, nearest
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.workspace import scratch_on
from gradwire.runtime.state.row_memory import PLAIN_ROWS
from gradwire.slots import Slot


class Plain:
    """Rows in the parameter's own type."""

    def nbytes(self, slot: Slot, count: int) -> int:
        """Bytes of so many rows (n, ...) of a slot."""
        return count * _width(slot) * slot.dtype.itemsize

    def write(self, slot: Slot, rows: Tensor, out: Tensor) -> None:
        """Writes rows to out (nbytes,) uint8. Returns their errors (n, ...) there, if there are any."""
        self.read(slot, out, len(rows)).copy_(rows)

    def read(self, slot: Slot, payload: Tensor, count: int) -> Tensor:
        """So many rows, in the slot's type, or float32."""
        return payload.view(slot.dtype).view(count, *slot.shape[1:])


@dataclass(frozen=True)
class Coded:
    """Rows in codes of few bits, with scales of neighbours in a row."""

    codec: Quantized

    def nbytes(self, slot: Slot, count: int) -> int:
        return self._blocks(slot, count).nbytes if count else 0

    def write(self, slot: Slot, rows: Tensor, out: Tensor) -> Tensor:
        # codes go out, and their error stays in x
        x = rows.to(torch.float32, copy=True).view(-1)
        if len(x):
            vector = LazySum.of(x)
            # tables for so many rows are for this step alone
            with scratch_on(x.device).passing():
                vector.quantise([self._blocks(slot, len(rows))], out[None], keep=True, seeds=[NO_NOISE])
        return x.view(rows.shape)

    def read(self, slot: Slot, payload: Tensor, count: int) -> Tensor:
        rows = torch.empty(count * _width(slot), dtype=torch.float32, device=payload.device)
        if count:
            with scratch_on(payload.device).passing():
                backend_for(payload).sum_blocks(payload[None, None], rows, [self._blocks(slot, count)])
        return rows.view(count, *slot.shape[1:])

    def _blocks(self, slot: Slot, count: int) -> Blocks:
        # blocks that end where rows do, so that no scale is for two rows, if they can
        width, block = _width(slot), self.codec.block
        whole = next((each for each in range(block, 7, -8) if width % each == 0), block)
        return Blocks((count * width,), nearest(self.codec.bits, whole))


def format_of(compressor: Compressor) -> Plain | Coded:
    """The format of rows that are sent by this compressor."""
    return Plain() if compressor == PLAIN_ROWS[0] else Coded(cast(Quantized, compressor))


def _width(slot: Slot) -> int:
    return prod(slot.shape[1:])
