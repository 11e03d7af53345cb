"""The transports of a cluster of which one rank is played, and the jobs that may run on one."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, lcm
from typing import Any, Self

import torch

from gradwire.compressors import Compressor
from gradwire.lab.curve import StepCurve
from gradwire.lab.launch.rank_job import Peers, Spec
from gradwire.lab.play_spec import PlaySpec
from gradwire.transports import Card, Mesh, Played
from gradwire.transports.others import Others
from gradwire.transports.played import SentCollective
from gradwire.transports.played_group import PlayedGroup


class PlayedCluster:
    """The transports by which a process plays one rank of a cluster, whose host's card has a speed that may change,
    and what the others do."""

    def __init__(self, spec: PlaySpec, seed: int = 0, card: type[Card] = Card) -> None:
        self.cluster = spec.cluster
        self._others = spec.others
        self._seed = seed
        cluster = spec.cluster
        inside = Card(cluster.inside_latency_s, cluster.inside_bytes_per_s)
        self.hosts, *self._speed = cluster.network
        self.card, per_host = card(*self._speed), cluster.ranks // self.hosts
        # Gradwire's own collectives, and those of DDP and torch's hooks
        self._between = Played(self.hosts, self.card)
        self.mesh = self._between.by_host(per_host, inside) if per_host > 1 else Mesh.of(self._between)
        self._flat = Played(cluster.ranks, self.card, self.hosts)
        self.group = PlayedGroup(self._flat)
        # a card that is busy while this rank would wait for the slowest one
        self._slowest = Card(0.0, inf)

    def begin(self, compressors: Iterable[Compressor]) -> int:
        """Steps of another model begin, by these compressors. Returns how many batches should take turns."""
        if not self._others.different:
            return 1
        self._between.others = Others(lcm(*(compressor.period for compressor in compressors)))
        return self._between.others.batches

    @property
    def late(self) -> bool:
        """Whether steps wait for a slower rank."""
        return self._others.late

    def wait_for_slowest(self, alone_s: float, every: int, step: int, device: torch.device) -> None:
        """Waits until the slowest rank has come, where ranks meet: in the last of `every` steps. `alone_s` are the
        seconds of a step without messages."""
        if (step + 1) % every:
            return
        if late_s := alone_s * self._others.behind(self.cluster.ranks, self._seed, step, every):
            self._slowest.carry(late_s, device, lambda: None).wait()

    def peers(self, real: Peers) -> Peers:
        """The ranks as the one that is played sees them."""
        return replace(real, rank=0, world=self.cluster.ranks, transport=self.mesh, group=self.group)

    def sent(self) -> Counter[tuple[SentCollective, int]]:
        """How often each collective was sent over the card so far, with how many ranks of a host took part."""
        per_host = self.cluster.ranks // self.hosts
        between = Counter({(sent, 1): count for sent, count in self._between.sent.items()})
        return between + Counter({(sent, per_host): count for sent, count in self._flat.sent.items()})

    def step_s(self, curve: StepCurve) -> float:
        """The seconds of a step here, as the curve has it."""
        return curve.at(*self.cluster.network)

    def set_speed(self, bytes_per_s: float | None = None) -> None:
        """Has the card send at this speed without latency, or again at its own."""
        self.card.latency_s, self.card.bytes_per_s = (0.0, bytes_per_s) if bytes_per_s else self._speed


@dataclass(frozen=True, kw_only=True)
class PlayedSpec(Spec):
    """A job. With `play` each process plays one rank of that cluster by itself."""

    play: PlaySpec | None = None

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        read: dict[str, Any] = {"play": plain["play"] and PlaySpec.from_line(plain["play"])}
        return cls(**plain | read)

    def played(self) -> PlayedCluster | None:
        """The transports of that cluster."""
        return PlayedCluster(self.play, self.seed) if self.play else None
