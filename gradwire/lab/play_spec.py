"""A cluster of which one rank is played, read from the options that `gradwire bench`, `plan` and `simulate`, `gw.bench`
and `gw.plan` share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Self

from gradwire.lab.network.link import LATENCY_US, NVLINK, Link
from gradwire.lab.other_ranks import OtherRanks
from gradwire.schedule.cluster import Cluster

EXAMPLE = "64@25gbit"


@dataclass(frozen=True)
class PlaySpec:
    """A cluster of which one rank is played, and how its other ranks differ from that one. Its text is for headings."""

    cluster: Cluster
    others: OtherRanks = field(default_factory=OtherRanks)

    @classmethod
    def read(
        cls,
        play: str,
        gpus_per_host: int = 1,
        inside: str | None = None,
        latency_us: float | None = None,
        different: bool = False,
        jitter: float = 0.0,
        slow_rank: float = 1.0,
        *,
        typed: bool = False,
    ) -> Self:
        """Reads `play`, such as 64@25gbit: 64 ranks, in hosts with a link of 25 Gbit/s each. `inside` is the link that
        joins the ranks of a host (NVLink), `latency_us` what a message takes beside its bytes (50); `different`,
        `jitter` and `slow_rank` are fields of `OtherRanks`.

        Raises ValueError for text that says no cluster, and for an option of a link that the cluster does not have.
        Where `typed`, errors name options as on the command line, else as in Python."""
        # ranks @ link
        ranks, at, link = play.partition("@")
        if not at or not ranks.strip().isdecimal():
            raise ValueError(f"{play!r} is no cluster to play: write ranks@link, such as {EXAMPLE}")
        # between hosts and inside of one
        rates = [Link.parse(each).bits_per_second / 8 for each in (link, inside or NVLINK)]
        latency_s = 1e-6 * (LATENCY_US if latency_us is None else latency_us)
        cluster = Cluster(int(ranks), rates[0], gpus_per_host, latency_s, rates[1])
        check_links([cluster], inside, latency_us, typed)
        return cls(cluster, OtherRanks(different, jitter, slow_rank))

    @classmethod
    def of(cls, play: str | None, *, typed: bool = False, **options: Any) -> Self | None:
        """As `read`; None without `play`. Raises ValueError for other options without it."""
        if play:
            return cls.read(play, typed=typed, **options)
        defaults = signature(cls.read).parameters
        given = [_named(name, typed) for name, value in options.items() if value != defaults[name].default]
        if given:
            example = f"--play {EXAMPLE}" if typed else f"play={EXAMPLE!r}"
            raise ValueError(f"only a played cluster has {', '.join(given)}; add one: {example}")
        return None

    @classmethod
    def from_line(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`."""
        return cls(Cluster(**values["cluster"]), OtherRanks(**values["others"]))

    def __str__(self) -> str:
        return f"{_described(self.cluster)}{self.others}"


def check_links(clusters: Sequence[Cluster], inside: str | None, latency_us: float | None, typed: bool) -> None:
    """Raises ValueError for an option of a link that none of the clusters has; `typed` as in `PlaySpec.read`."""
    if latency_us is not None and all(cluster.hosts == 1 for cluster in clusters):
        # each count once, though it may stand for several links
        ranks, given = ", ".join({str(cluster.ranks): None for cluster in clusters}), _named("latency_us", typed)
        raise ValueError(f"{ranks} ranks send nothing between hosts, on one host: leave {given} out")
    if inside and all(cluster.gpus_per_host == 1 for cluster in clusters):
        given, hosts = _named("inside", typed), _named("gpus_per_host", typed)
        raise ValueError(f"a host of 1 GPU has no links inside: leave {given} out, or give {hosts}")


def _named(option: str, typed: bool) -> str:
    return f"--{option.replace('_', '-')}" if typed else option


def _described(cluster: Cluster) -> str:
    link, inside = map(Link.carrying, (cluster.bytes_per_s, cluster.inside_bytes_per_s))
    if cluster.ranks <= cluster.gpus_per_host:
        return f"{cluster.ranks} ranks of one host, joined by {inside}, of which one is played"
    hosts = f"{cluster.hosts} hosts of {cluster.gpus_per_host}" if cluster.gpus_per_host > 1 else "a host each"
    return f"{cluster.ranks} ranks, {hosts} with a {link} link, of which one is played"
