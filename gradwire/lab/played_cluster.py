"""A cluster that one rank plays: its ranks, hosts and links as text, and its transports."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf, lcm
from typing import Any, Self

import torch

from gradwire.lab.curve import StepCurve
from gradwire.lab.launch.rank_job import Peers
from gradwire.lab.network.link import LATENCY_US, NVLINK, Link
from gradwire.lab.other_ranks import OtherRanks
from gradwire.plans import Plan
from gradwire.schedule.simulate import Cluster
from gradwire.transports import Card, Mesh, Played
from gradwire.transports.others import Others
from gradwire.transports.played import SentCollective
from gradwire.transports.played_group import PlayedGroup

EXAMPLE = "64@25gbit"


def read(text: str, gpus_per_host: int = 1, inside: str = NVLINK, latency_us: float = LATENCY_US) -> Cluster:
    """The cluster of `text`, such as 64@25gbit: 64 ranks, in hosts with a link of 25 Gbit/s each. `inside` joins the
    ranks of a host. Raises ValueError for text that says none."""
    ranks, at, link = text.partition("@")
    if not at or not ranks.strip().isdecimal():
        raise ValueError(f"{text!r} is no cluster to play: write ranks@link, such as {EXAMPLE}")
    rates = [Link.parse(each).bits_per_second / 8 for each in (link, inside)]
    return Cluster(int(ranks), rates[0], gpus_per_host, 1e-6 * latency_us, rates[1])


def described(cluster: Cluster) -> str:
    """The cluster in words, for headings."""
    link, inside = (Link(round(8 * rate)) for rate in (cluster.bytes_per_s, cluster.inside_bytes_per_s))
    if cluster.ranks <= cluster.gpus_per_host:
        return f"{cluster.ranks} ranks of one host, joined by {inside}, of which one is played"
    hosts = f"{cluster.hosts} hosts of {cluster.gpus_per_host}" if cluster.gpus_per_host > 1 else "a host each"
    return f"{cluster.ranks} ranks, {hosts} with a {link} link, of which one is played"


class PlayedCluster:
    """The transports by which a process plays one rank of a cluster, whose host's card has a speed that may change,
    and what the others do."""

    def __init__(self, cluster: Cluster, others: OtherRanks | None = None, seed: int = 0) -> None:
        self.cluster, self._others, self._seed = cluster, others or OtherRanks(), seed
        inside = Card(cluster.inside_latency_s, cluster.inside_bytes_per_s)
        self.hosts, *self._speed = cluster.network
        self.card, per_host = Card(*self._speed), cluster.ranks // self.hosts
        # Gradwire's own collectives, and those of DDP and torch's hooks
        self.mesh = (
            Played.by_host(self.hosts, per_host, self.card, inside)
            if per_host > 1
            else Mesh.of(Played(self.hosts, self.card))
        )
        between = self.mesh.replica
        assert isinstance(between, Played)
        self._between = between
        self._flat = Played(cluster.ranks, self.card, self.hosts)
        self._group = PlayedGroup(self._flat)
        # a card that is busy while this rank would wait for the slowest one
        self._slowest = Card(0.0, inf)

    @classmethod
    def of(cls, values: Mapping[str, Any], others: Mapping[str, Any] | None = None, seed: int = 0) -> Self:
        """That of a `Cluster`, and of `OtherRanks`, with these values."""
        return cls(Cluster(**values), OtherRanks(**(others or {})), seed)

    def begin(self, plan: Plan | None) -> int:
        """Steps of another model begin, by a plan if Gradwire reduces. Returns how many batches should take turns."""
        if not self._others.different:
            return 1
        groups = plan.groups if plan else ()
        self._between.others = Others(lcm(*(group.compressor.period for group in groups)))
        return self._between.others.batches

    def wait_for_slowest(self, alone_s: float, step: int, device: torch.device) -> None:
        """Passes the time by which the slowest rank is behind in a step that takes so long without messages."""
        if late_s := alone_s * self._others.behind(self.cluster.ranks, self._seed, step):
            self._slowest.carry(late_s, device, lambda: None).wait()

    def peers(self, real: Peers) -> Peers:
        """The ranks as the one that is played sees them."""
        return replace(real, rank=0, world=self.cluster.ranks, transport=self.mesh, group=self._group)

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
