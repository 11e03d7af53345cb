"""Simulation: a job's profile on other ranks, hosts and links, planned anew."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradwire import wire
from gradwire.compressors import Compressor
from gradwire.plans import Plan
from gradwire.schedule import baselines
from gradwire.schedule.costs import Affine, CostTable
from gradwire.schedule.problem import Problem
from gradwire.schedule.profile import Candidate, Profile, over_link
from gradwire.schedule.progress import efficiency_levels, plan_efficiency, search_efficiency, search_progress
from gradwire.schedule.regimes import Regime, Worker
from gradwire.schedule.search import Solution, evaluate
from gradwire.wire import ETHERNET, Wire, depth

BEST = "best plan"
GIVEN = "given plan"
EPS = 0.01
"""The best plan's step may be longer than the shortest by this fraction."""
SIZES = 16
"""Bucket sizes that are tried for each candidate."""
MOST_RANKS, MOST_LATENCY_S = 1_000_000, 10.0
"""Of a cluster."""
_MOST_BYTES = 1e13
"""Beyond any gradient."""
_UNIT = 1 << 40
"""Bytes of which a collective's are shares, to the last digit of a float32."""


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
    """Ranks that have one each."""
    latency_s: float
    """Of a message beside its bytes."""
    bytes_per_s: float
    """Of messages, without headers."""


@dataclass(frozen=True)
class Outcome:
    """Prediction for one way to send gradients on one cluster."""

    cluster: Cluster
    way: str
    step_s: float
    """Seconds of a step; with local steps of a mean one."""
    alone_s: float
    """Seconds of a step without communication."""
    groups: str
    """How many groups each compressor sends."""
    wire_bytes: float
    """Sent by a rank, or by a host of several ranks, in a (mean) step."""
    every: int = 1
    """Steps in a round of local steps."""
    efficiency: float | None = None
    """Progress of a step in dense steps; None for local steps."""
    plan: Plan | None = None
    """None for local steps."""

    @property
    def progress(self) -> float:
        """Dense steps' progress per second, 0 where that is not known."""
        return (self.efficiency or 0.0) / self.step_s

    @property
    def scaling_efficiency(self) -> float:
        """The scaling factor: the throughput of N ranks over N times that of one."""
        return self.alone_s / self.step_s


def simulate(
    profile: Profile, cluster: Cluster, regime: Regime | None = None, plan: Plan | None = None, every: int = 1
) -> Iterator[Outcome]:
    """Each candidate alone, in its best bucket size; `plan` as it is, where one is given that is not native; and the
    plan with the most progress per second, or with the shortest step where that is the profile's objective; its step is
    within 1 % of the shortest where that can be proven in time. Where `every` is more than 1, also all of these with
    local steps, of which so many make a round; the best plan's round is the shortest that harms no training. Raises
    ValueError for a plan that the profile does not know."""
    # the profile as it would be there, and its scheduling problem
    regime = regime or Worker(profile.contention)
    there = on_cluster(profile, cluster)
    problem = there.problem()
    alone_s = problem.around_s + float(problem.ready_s[-1])
    # every step sends
    ways = _ways(there, problem, regime, plan)
    best = search_progress(problem, regime, EPS, list(ways.values()))
    for way, found in (ways | {BEST: best}).items():
        outcome = _outcome(there, cluster, way, found, found.step_s, alone_s)
        efficiency = plan_efficiency(problem, found.groups)
        yield dataclasses.replace(outcome, efficiency=efficiency, plan=there.plan(found.groups))
    # rounds of local steps: inner steps, and one exchange shared by all of them
    if every > 1:
        inside_s = inner_s(profile, cluster, regime)
        rounds = at_once(problem)
        shortest = search_efficiency(rounds, regime, EPS, efficiency_levels(rounds)[0])
        for way, found in (_ways(there, rounds, regime, plan) | {BEST: shortest}).items():
            yield _outcome(
                there, cluster, f"{way} every {every}", found, inside_s + found.step_s / every, alone_s, every
            )


def at_once(problem: Problem) -> Problem:
    """A round of local steps: all slots are ready at the same time, and backward hides nothing."""
    return dataclasses.replace(problem, ready_s=np.zeros(len(problem.ready_s)), around_s=0.0)


def _ways(there: Profile, problem: Problem, regime: Regime, plan: Plan | None) -> dict[str, Solution]:
    """The best solution with each candidate alone, by name, and the given plan's."""
    known = candidate_names(there.candidates)
    named = {known[option]: baselines.best_buckets(problem, regime, option, SIZES) for option in problem.chosen_from}
    if plan and not plan.native:  # DDP by itself is nothing that the search times
        named[GIVEN] = evaluate(problem, there.choices(plan), regime)
    return named


def _outcome(
    there: Profile, cluster: Cluster, way: str, found: Solution, step_s: float, alone_s: float, every: int = 1
) -> Outcome:
    nbytes = sum(there.wire_bytes(group) for group in found.groups) / every
    return Outcome(cluster, way, step_s, alone_s, _composed(found, candidate_names(there.candidates)), nbytes, every)


def inner_s(profile: Profile, cluster: Cluster, regime: Regime) -> float:
    """Seconds of an inner step, which sends nothing between hosts."""
    problem = profile.problem()
    # each rank takes its inner steps by itself
    if cluster.gpus_per_host == 1 or cluster.ranks <= cluster.gpus_per_host:
        return problem.around_s + float(problem.ready_s[-1])
    # the best that plain DDP or FSDP2 can do over the links inside a host; lossy ways where nothing else is known
    host = on_cluster(profile, dataclasses.replace(cluster, ranks=cluster.gpus_per_host)).problem()
    every = range(len(host.options))
    options = [index for index in every if host.options[index].lossless] or every
    return min(baselines.best_buckets(host, regime, option, SIZES).step_s for option in options)


def on_cluster(profile: Profile, cluster: Cluster) -> Profile:
    """The profile of the same job on `cluster`: each rank computes as it did, the network is another. Decoding an
    all-gather grows with the number of payloads."""
    network = cluster.network
    costs, per_host = over_link(profile.candidates, *network), cluster.ranks // network.peers
    # gloo knows the ring alone
    if "AllReduce" in costs and profile.device != "cpu":
        costs["AllReduce"] = all_reduce(*network)
    # what a rank computes stays; decoding more payloads takes longer
    return dataclasses.replace(
        profile,
        candidates=tuple(_decoding(candidate, network.peers / profile.hosts) for candidate in profile.candidates),
        collectives=costs,
        ranks=cluster.ranks,
        gpus_per_host=per_host,
        local=inside(cluster, profile.device) if per_host > 1 else {},
    )


def all_reduce(hosts: int, latency_s: float, bytes_per_s: float) -> CostTable:
    """Seconds against the bytes that one rank sends around a ring, by a ring or by two trees, whichever is faster, as
    NCCL chooses."""
    sent = wire.all_reduce(_UNIT, hosts).wire_bytes
    ways = wire.all_reduce(_UNIT, hosts), wire.all_reduce_by_trees(_UNIT, hosts)
    return _faster(*(_line(way, sent, latency_s, bytes_per_s) for way in ways))


def _faster(ring: Affine, trees: Affine) -> CostTable:
    """The seconds of the faster of a ring and of trees, which need fewer messages one after another, and more bytes."""
    gain = ring.fixed - trees.fixed
    even = gain / (trees.per_unit - ring.per_unit) if gain > 0 else 1.0
    # beyond the last a table is no flatter than on the whole
    sizes = np.array([0.0, even, _MOST_BYTES])
    return CostTable.of(sizes, np.minimum(ring(sizes), trees(sizes)))


def inside(cluster: Cluster, device: str) -> dict[str, Affine | CostTable]:
    """Seconds of the dense sum, and of handing the mean around, inside a host, against the gradient's bytes: by a ring
    or by trees, whichever is faster; gloo knows the ring alone for a sum, and the tree for a broadcast."""

    def line(way: Callable[[int, int], Wire]) -> Affine:
        cost = way(_UNIT, cluster.gpus_per_host)
        return _line(cost, _UNIT, cluster.inside_latency_s, cluster.inside_bytes_per_s)

    ring, tree = line(wire.all_reduce), line(wire.broadcast)
    if device == "cpu":
        return {"sum": ring, "broadcast": tree}
    return {
        "sum": _faster(ring, line(wire.all_reduce_by_trees)),
        "broadcast": _faster(line(wire.broadcast_around), tree),
    }


def _line(cost: Wire, unit_bytes: int, latency_s: float, bytes_per_s: float) -> Affine:
    """The seconds of a collective against a number of bytes of which `cost` is for `unit_bytes`."""
    return Affine(cost.messages * latency_s, cost.wire_bytes / unit_bytes / bytes_per_s)


def latency_of(profile: Profile) -> float:
    """Latency of a message where the profile was taken. Raises ValueError where that was one host, or no line of it has
    a latency."""
    if profile.hosts == 1:
        raise ValueError("the profile was measured on one host: give --latency-us")
    unit = over_link(profile.candidates, profile.hosts, 1.0, float("inf"))
    messages = {name: float(np.asarray(cost(np.zeros(1)))[0]) for name, cost in unit.items()}
    if profile.device != "cpu" and "AllReduce" in messages:
        # NCCL's trees have fewer
        messages["AllReduce"] = 2 * min(profile.hosts - 1, depth(profile.hosts))
    fixed = {name: float(profile.collectives[name](np.zeros(1))[0]) for name in messages}
    # a line that was cut off at 0, or is of a single size, says nothing of it
    known = [fixed[name] / count for name, count in messages.items() if fixed[name]]
    if not known:
        raise ValueError("the profile does not say how long a message takes beside its bytes: give --latency-us")
    return min(known)


def candidate_names(candidates: Sequence[Candidate]) -> list[str]:
    """Names of candidates: their compressors, with the rule if there is one, and the communicator where two have the
    same."""
    rules = [f" for {candidate.way.rule!r}" if candidate.way.rule else "" for candidate in candidates]
    short = [_name(each.way.compressor) + rule for each, rule in zip(candidates, rules, strict=True)]
    return [
        f"{name} by {candidate.way.communicator.called}" if short.count(name) > 1 else name
        for name, candidate in zip(short, candidates, strict=True)
    ]


def _composed(found: Solution, names: Sequence[str]) -> str:
    """The number of groups of each candidate, in words."""
    counts = Counter(names[group.option] for group in found.groups)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _name(compressor: Compressor) -> str:
    """A compressor's class, its first option, and others that differ from their defaults."""
    options = [(field.name, getattr(compressor, field.name), field.default) for field in dataclasses.fields(compressor)]  # pyright: ignore[reportArgumentType]
    shown = [f"{name}={value}" for i, (name, value, default) in enumerate(options) if not i or value != default]
    return f"{type(compressor).__name__}({', '.join(shown)})" if shown else type(compressor).__name__


def _decoding(candidate: Candidate, times: float) -> Candidate:
    if not candidate.way.communicator.decodes_all:
        return candidate
    return dataclasses.replace(candidate, decode=candidate.decode.times(times))
