"""Error feedback of sparse gradients: the error of each row when it was last sent, until its index comes again.

A step stages the errors of its rows. They are written once the step counts and can no longer be taken back.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.compressors import FP32, Compressor
from gradwire.memories import Memory, NoMemory
from gradwire.slots import Slot

RowScheme = tuple[Compressor, Memory]
"""How rows of sparse gradients are sent."""
PLAIN_ROWS: RowScheme = (FP32(), NoMemory())
Rows = tuple[Tensor, Tensor]
"""Indices (n,) of rows, and the rows (n, ...)."""


class RowMemory:
    """The residuals of some slots, by number: float32, in a parameter's shape, all zero at first."""

    def __init__(self, slots: Sequence[Slot], device: torch.device) -> None:
        self._slots, self._device = slots, device
        self._residuals: dict[int, Tensor] = {}
        # by slot: rows of the step under way, and of the last one
        self._staged: dict[int, Rows] = {}
        self._last: dict[int, Rows] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all residuals."""
        return sum(residual.nbytes for residual in self._residuals.values())

    def read(self, slot: int, indices: Tensor) -> Tensor:
        """The residuals of these rows."""
        return self._of(slot)[indices]

    def stage(self, slot: int, indices: Tensor, rows: Tensor) -> None:
        """Stages the errors of these rows, in the step under way."""
        self._staged[slot] = indices, rows

    def commit(self) -> None:
        """The step was good."""
        self._last, self._staged = self._staged, {}

    def take_back(self) -> None:
        """The last step counts no more."""
        self._last = {}

    def forget(self) -> None:
        """The step was not good."""
        self._staged = {}

    def close(self) -> None:
        """The last step can be taken back no more."""
        last, self._last = self._last, {}
        for slot, (indices, rows) in last.items():
            self._of(slot)[indices] = rows

    def export(self, slot: int, always: bool) -> Tensor | None:
        """A copy of a slot's residual after the last step. None if it never had one; with `always`, zeros then."""
        if not always and slot not in self._residuals and slot not in self._last:
            return None
        # the rows as they were written, then those of the last step
        copy = self._of(slot).clone()
        if slot in self._last:
            indices, rows = self._last[slot]
            copy[indices] = rows
        return copy

    def load(self, slot: int, residual: Tensor | None) -> None:
        """Takes over a slot's residual; zero for None."""
        self._residuals.pop(slot, None)
        if residual is not None:
            self._of(slot).copy_(residual)

    def _of(self, slot: int) -> Tensor:
        if slot not in self._residuals:
            zeros = torch.zeros(self._slots[slot].shape, dtype=torch.float32, device=self._device)
            self._residuals[slot] = zeros
        return self._residuals[slot]
