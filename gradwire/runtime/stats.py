"""What a job has sent so far, and where its time went."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.slots import Slot


def dense_bytes(slots: Sequence[Slot], ranks: int) -> int:
    """What a rank sends in a dense step."""
    return 2 * (ranks - 1) * sum(slot.numel * slot.dtype.itemsize for slot in slots) // ranks


@dataclass(frozen=True)
class Stats:
    """Totals of one rank since the handle was made.

    `wire_bytes` were handed to the network, `dense_bytes` are what plain DDP would have sent. `encode_s` and
    `decode_s` are spent computing, `wire_s` is the sum over collectives from start to completion (several are
    in flight at once), `wait_s` is from the last gradient of a step until all means were there: what training
    waits for. `kernels` says what computes on a CPU: the library, at which level of instructions, or torch, and why.
    `skipped` of the steps counted for no rank: something in them was not finite, or backward failed.
    """

    steps: int
    wire_bytes: int
    dense_bytes: int
    encode_s: float
    wire_s: float
    decode_s: float
    wait_s: float
    kernels: str = ""
    skipped: int = 0

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than plain DDP."""
        return self.dense_bytes / self.wire_bytes if self.wire_bytes else float("inf")
