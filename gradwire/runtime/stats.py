"""What a job has sent so far, and where its time went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradwire.ops.backend import in_use
from gradwire.slots import Slot


class Reduced:
    """Counts the steps that were reduced, and the bytes that a rank would have sent in them had they been dense; each
    of `step_bytes`, for the slots that are trained now."""

    def __init__(self, slots: Sequence[Slot], ranks: int) -> None:
        self._slots, self._ranks = slots, ranks
        self.steps = self.dense_bytes = self.step_bytes = 0

    def follow(self, trained: Sequence[Slot]) -> None:
        """These are trained from now on."""
        names = {slot.name for slot in trained}
        numbers = sum(slot.numel * slot.dtype.itemsize for slot in self._slots if slot.name in names)
        self.step_bytes = 2 * (self._ranks - 1) * numbers // self._ranks

    def count(self) -> None:
        """One more step."""
        self.steps += 1
        self.dense_bytes += self.step_bytes


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

    @classmethod
    def of(cls, reduced: Reduced, wire: int, skipped: int, seconds: Mapping[str, float]) -> "Stats":
        """`wire` are bytes, `seconds` those of all spans by name."""
        encode_s, wire_s, decode_s, wait_s = (seconds.get(name, 0.0) for name in ("encode", "wire", "decode", "wait"))
        return cls(reduced.steps, wire, reduced.dense_bytes, encode_s, wire_s, decode_s, wait_s, in_use(), skipped)

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than plain DDP."""
        return self.dense_bytes / self.wire_bytes if self.wire_bytes else float("inf")
