"""Payloads of other batches, in place of those of ranks that are not there."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gradwire.collective import Message

KEPT = 5
"""Payloads of a message: this step's, and those of four other batches."""


class Others:
    """The other ranks' payloads in gathers and all-to-alls: those that this rank sent in earlier steps, where it had
    other batches, so that decoding sums what differs. They are of steps that are a multiple of `period` back, for a
    payload may have another form in each step of its compressor's period."""

    def __init__(self, period: int = 1) -> None:
        self.period = period
        self._rings: WeakKeyDictionary[Message, _Ring] = WeakKeyDictionary()

    @property
    def batches(self) -> int:
        """With so many batches in turns, no payload that is kept is of the batch of this step."""
        return (KEPT - 1) * self.period + 1

    def send(self, mine: Message, receive: Message, rank: int) -> None:
        """Writes to `receive` (ranks, bytes) what comes to `rank`, which sends `mine` to the others. Flags are this
        step's own: a step that was skipped is over."""
        if receive not in self._rings:
            self._rings[receive] = _Ring.of(mine.whole, len(receive.whole), rank, self.period)
        self._rings[receive].turn(mine.whole, receive.whole)
        if receive.flags is not None and mine.flags is not None:
            receive.flags.copy_(mine.flags)


@dataclass
class _Ring:
    """Payloads of one message that were sent in the last steps."""

    kept: Tensor
    """(steps, bytes)"""
    rows: Tensor
    """(steps, ranks): whose payload each rank has, by the step that is the latest."""
    period: int
    count: int = 0

    @classmethod
    def of(cls, payload: Tensor, world: int, rank: int, period: int) -> "_Ring":
        steps = KEPT * period
        # ranks take turns with the steps back; this one has the latest
        back = [0 if other == rank else 1 + other % (KEPT - 1) for other in range(world)]
        rows = [[(step - period * each) % steps for each in back] for step in range(steps)]
        kept = payload.new_empty((steps, *payload.shape))
        return cls(kept, torch.tensor(rows, dtype=torch.int64, device=payload.device), period)

    def turn(self, mine: Tensor, everyones: Tensor) -> None:
        """Keeps this step's payload, and writes `everyones` (ranks, bytes)."""
        step = self.count % len(self.kept)
        # until there are others of this form it stands for them
        self.kept[step :: self.period if self.count < self.period else len(self.kept)] = mine
        torch.index_select(self.kept, 0, self.rows[step], out=everyones)
        self.count += 1
