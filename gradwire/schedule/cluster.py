"""Clusters: ranks in hosts, and the links between them."""

from dataclasses import dataclass
from typing import NamedTuple

from gradwire.wire import ETHERNET

MOST_RANKS, MOST_LATENCY_S = 1_000_000, 10.0
"""The most ranks of a cluster, and the longest latency of a message."""


@dataclass(frozen=True)
class Cluster:
    """Ranks in hosts. Ranks of a single host use its inside links alone."""

    ranks: int
    """Of the whole job."""
    bytes_per_s: float
    """Of a link between hosts, with the headers of TCP over Ethernet."""
    gpus_per_host: int = 1
    latency_s: float = 50e-6
    """Of a message between hosts, beside its bytes."""
    inside_bytes_per_s: float = 12e9
    """Of a link inside a host, which has no headers."""
    inside_latency_s: float = 10e-6
    """Of a message inside a host."""

    def __post_init__(self) -> None:
        if self.gpus_per_host < 1:
            raise ValueError(f"a host has 1 GPU or more, not {self.gpus_per_host}")
        if self.ranks < 2:
            raise ValueError(f"{self.ranks} rank{'s' * (self.ranks != 1)} cannot exchange anything: give 2 or more")
        if self.ranks > MOST_RANKS:
            raise ValueError(f"there is no cluster of {self.ranks:,} ranks: give {MOST_RANKS:,} or fewer")
        if self.ranks > self.gpus_per_host and self.ranks % self.gpus_per_host:
            raise ValueError(f"{self.ranks} ranks do not fill hosts of {self.gpus_per_host} GPUs; give a multiple")
        # a latency that can be
        if not 0 <= self.latency_s <= MOST_LATENCY_S:
            given = f"{1e6 * self.latency_s:g} µs"
            raise ValueError(f"a message cannot take {given} beside its bytes: give 0 or more, and at most 10 s")

    @property
    def hosts(self) -> int:
        return max(1, self.ranks // self.gpus_per_host)

    @property
    def network(self) -> "PeerLinks":
        """Of one rank of each host or, where there is a single host, of its ranks."""
        if self.ranks <= self.gpus_per_host:
            return PeerLinks(self.ranks, self.inside_latency_s, self.inside_bytes_per_s)
        return PeerLinks(self.hosts, self.latency_s, ETHERNET * self.bytes_per_s)


class PeerLinks(NamedTuple):
    """The links over which compressed gradients travel."""

    peers: int
    """Ranks that exchange compressed gradients: one of each host, or all of a single host."""
    latency_s: float
    """Of a message beside its bytes."""
    bytes_per_s: float
    """Of messages, without headers."""
