"""Statistics of a job: bytes, times, and the ranks that the others wait for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from time import monotonic

import torch

from gradwire.ops.backend import in_use
from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.runtime.failures.job_errors import rank_at
from gradwire.runtime.steps.steps import Steps
from gradwire.slots import Slot
from gradwire.transports import Mesh


class DenseTraffic:
    """Counts of reduced steps, and of the bytes that plain DDP would have sent in them: in a ring over all ranks, in
    which a host sends as much as a rank."""

    def __init__(self, slots: Sequence[Slot], mesh: Mesh) -> None:
        self._slots = slots
        self._ranks = mesh.averaged
        self._host = mesh.host
        # of a step, for the slots that are trained now
        self._step_bytes = 0
        self.steps = self.dense_bytes = 0

    def follow(self, trained: Sequence[Slot]) -> None:
        """Counts steps of these slots from now on."""
        names = {slot.name for slot in trained}
        numbers = sum(slot.numel * slot.dtype.itemsize for slot in self._slots if slot.name in names)
        self._step_bytes = 2 * (self._ranks - 1) * numbers // self._ranks

    def count(self, exchanges: Sequence[GroupExchange]) -> int:
        """Counts a step with these exchanges; returns its dense bytes. Where ranks share hosts, these are of the groups
        that this rank leads, or an equal part where the framework reduces by itself."""
        own = self._step_bytes
        if self._host is not None:
            led = [each.stored.layout.numel * each.compresses for each in exchanges]
            whole = sum(each.stored.layout.numel for each in exchanges)
            own = own * sum(led) // whole if whole else own // self._host.world
        self.steps += 1
        self.dense_bytes += own
        return own


@dataclass(frozen=True)
class Stats:
    """Totals of one rank since the handle was made."""

    steps: int
    wire_bytes: int
    """Bytes of gradients, and of a controller's numbers, handed to the network between hosts by this rank, which in a
    tree, as GlobalTopK's, is not what another rank sends; without the few of other sums, such as the verdict's."""
    dense_bytes: int
    """Bytes that plain DDP would have sent, in a ring over all ranks; where ranks share hosts, between hosts, for the
    groups that this rank leads."""
    encode_s: float
    """On a GPU this, and the two that follow, are estimates from one step of 16."""
    wire_s: float
    """The sum over collectives from start to completion; several are in flight at once."""
    decode_s: float
    wait_s: float
    """From the last gradient of each step until all means are there: the time for which training waits."""
    kernels: str = ""
    """The library that computes on a CPU, with its instruction set, or torch, and why; for a job on a GPU, whether
    Triton's kernels do there."""
    skipped: int = 0
    """Steps that counted for no rank: a gradient was not finite, or backward failed. Where no group of the plan keeps
    state, such a step's means are NaN, and it is not counted here. Of local steps, all fragments that were sent and
    counted for none."""
    held_bytes: int = 0
    """Memory of state and scratch that stays allocated between steps."""
    recorded: str = ""
    """On a GPU, how many groups replay recorded turns, and why the others do not."""
    account: str = ""
    """Of an automatic plan: what dense took, what was tried and why it was chosen, in lines."""

    @classmethod
    def of(cls, dense: DenseTraffic, wire: int, steps: Steps, seconds: Mapping[str, float]) -> "Stats":
        """The statistics, from `wire` bytes and the `seconds` of all spans by name."""
        encode_s, wire_s, decode_s, wait_s = (seconds.get(name, 0.0) for name in ("encode", "wire", "decode", "wait"))
        times, counts = (encode_s, wire_s, decode_s, wait_s), (dense.steps, wire, dense.dense_bytes)
        account = controller.account if (controller := steps.control.controller) else ""
        # while no step is counted or arranged
        with steps.changing:
            kept = steps.store, steps.job.scratch, steps.float_residuals, steps.kernels
            held = sum(each.nbytes for each in kept)
        return cls(*counts, *times, in_use(steps.executor.device), steps.skipped, held, str(steps.recordings), account)

    def over(self, inner_steps: int) -> "Stats":
        """The statistics per inner step, of local steps, in each of which plain DDP would have sent all."""
        dense_bytes = self.dense_bytes * inner_steps // max(1, self.steps)
        return replace(self, steps=inner_steps, dense_bytes=dense_bytes)

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than plain DDP; infinite where this rank has sent no gradient."""
        return self.dense_bytes / self.wire_bytes if self.dense_bytes and self.wire_bytes else float("inf")


@dataclass(frozen=True)
class Straggler:
    """A rank whose steps take long beside its waits for the means."""

    rank: int
    host: str
    own_s: float
    """Seconds of a step beside the wait."""
    median_s: float
    """The ranks' median of that; of an even number the lower one."""

    def __str__(self) -> str:
        return (
            f"{rank_at(self.rank, self.host)} takes {1000 * self.own_s:.0f} ms a step beside waiting, "
            f"{self.own_s / self.median_s:.1f} times the median"
        )


class OwnTime:
    """A rank's time per step beside its waits for the means. `steps` are those made so far, and `waited_s` the seconds
    waited in them."""

    def __init__(self) -> None:
        self.begin(0, 0.0)

    def begin(self, steps: int, waited_s: float) -> None:
        """Counts time from now on."""
        self._began_s = monotonic()
        self._steps = steps
        self._waited_s = waited_s

    def per_step(self, steps: int, waited_s: float) -> float:
        """Mean seconds since `begin`."""
        return (monotonic() - self._began_s - (waited_s - self._waited_s)) / max(1, steps - self._steps)


def stragglers(own_s: float, factor: float, hosts: Sequence[str], mesh: Mesh, device: torch.device) -> list[Straggler]:
    """The ranks whose own time is more than `factor` times the median, the slowest first. All ranks call this."""
    # every rank gets all ranks' times
    all_s = mesh.gather(torch.tensor([own_s], dtype=torch.float64, device=device)).flatten().tolist()
    median_s = median_low(all_s)
    slow = [rank for rank, seconds in enumerate(all_s) if seconds > factor * median_s]
    slow.sort(key=lambda rank: -all_s[rank])
    return [Straggler(rank, hosts[rank] if hosts else "", all_s[rank], median_s) for rank in slow]
