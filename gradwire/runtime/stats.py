"""Statistics of a job: bytes, times, and the ranks that the others wait for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from time import monotonic

import torch

from gradwire.ops.kernels import in_use
from gradwire.runtime.failures import rank_at
from gradwire.slots import Slot
from gradwire.transports import Mesh


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


@dataclass(frozen=True)
class Straggler:
    """A rank whose own part of a step, all but its wait for the means, takes `own_s` seconds. `median_s` is the ranks'
    median, of an even number the lower one."""

    rank: int
    host: str
    own_s: float
    median_s: float

    def __str__(self) -> str:
        return (
            f"{rank_at(self.rank, self.host)} takes {1000 * self.own_s:.0f} ms a step beside waiting, "
            f"{self.own_s / self.median_s:.1f} times the median"
        )


class OwnTime:
    """Of one rank: what of a step is not spent on waiting for the means. `steps` are those made so far, and `waited_s`
    what was waited in them."""

    def __init__(self) -> None:
        self.begin(0, 0.0)

    def begin(self, steps: int, waited_s: float) -> None:
        """Time counts from now on."""
        self._began_s, self._steps, self._waited_s = monotonic(), steps, waited_s

    def per_step(self, steps: int, waited_s: float) -> float:
        """Seconds, in the mean since time counts."""
        return (monotonic() - self._began_s - (waited_s - self._waited_s)) / max(1, steps - self._steps)


def stragglers(own_s: float, factor: float, hosts: Sequence[str], mesh: Mesh, device: torch.device) -> list[Straggler]:
    """Those whose own time is more than `factor` times the median, the slowest first. All ranks call this together."""
    all_s = mesh.gather(torch.tensor([own_s], dtype=torch.float64, device=device)).flatten().tolist()
    median_s = median_low(all_s)
    slow = [rank for rank, seconds in enumerate(all_s) if seconds > factor * median_s]
    slow.sort(key=lambda rank: -all_s[rank])
    return [Straggler(rank, hosts[rank] if hosts else "", all_s[rank], median_s) for rank in slow]
