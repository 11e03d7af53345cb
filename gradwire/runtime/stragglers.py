"""Which ranks the others wait for."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from time import monotonic

import torch

from gradwire.runtime.naming import rank_at
from gradwire.transports import Mesh


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
