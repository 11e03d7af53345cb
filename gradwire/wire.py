"""Costs of collectives in the alpha-beta model: messages one after another, and bytes, seen from one rank.

The formulas are the standard ones of ring and tree algorithms (Thakur, Rabenseifner and Gropp, IJHPCA 2005,
https://doi.org/10.1177/1094342005051521); N ranks, m bytes. NCCL uses all of them, gloo rings for sums and trees for
broadcasts alone.
"""

from dataclasses import dataclass

ETHERNET = 1448 / 1538
"""The share of a link that a message's own bytes have over TCP: 1,448 of the 1,538 that a full frame takes, with the
headers of TCP, IP and Ethernet, the preamble, and the gap to the next frame."""


@dataclass(frozen=True)
class Wire:
    """The cost of collectives for one rank."""

    messages: int
    """That it sends or passes on, one after another."""
    wire_bytes: int
    """Of all of them."""

    def __add__(self, other: "Wire") -> "Wire":
        return Wire(self.messages + other.messages, self.wire_bytes + other.wire_bytes)

    def seconds(self, latency_s: float, bytes_per_second: float) -> float:
        """alpha·messages + beta·bytes: `latency_s` is the cost of a message beside its bytes."""
        return self.messages * latency_s + self.wire_bytes / bytes_per_second


def all_reduce(nbytes: int, world: int) -> Wire:
    """A ring over vectors of m bytes: 2(N-1) messages of m/N."""
    return Wire(2 * (world - 1), 2 * (world - 1) * nbytes // world)


def all_reduce_by_trees(nbytes: int, world: int) -> Wire:
    """Two trees, each for a half of m bytes, up and down: 2·log2 N messages, rounded up, and 2m bytes (Sanders, Speck
    and Träff, Parallel Computing 2009, https://doi.org/10.1016/j.parco.2009.09.001)."""
    return Wire(2 * depth(world), 2 * nbytes)


def all_gather(nbytes: int, world: int) -> Wire:
    """Every rank's m bytes to all others: N-1 messages of m."""
    return Wire(world - 1, (world - 1) * nbytes)


def all_to_all(nbytes: int, world: int) -> Wire:
    """m bytes, a different part for each rank: N-1 messages of m/N."""
    return Wire(world - 1, (world - 1) * nbytes // world)


def broadcast(nbytes: int, world: int) -> Wire:
    """m bytes down a binomial tree, or up: the root sends them, or takes them, log2 N times, rounded up."""
    return Wire(depth(world), depth(world) * nbytes)


def broadcast_around(nbytes: int, world: int) -> Wire:
    """m bytes around a ring whose ranks pass pieces on as they come: N-1 messages, and m bytes."""
    return Wire(world - 1, nbytes)


def depth(world: int) -> int:
    """The rounds of a binomial tree over N ranks: log2 N, rounded up."""
    return (world - 1).bit_length()
