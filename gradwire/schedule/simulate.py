"""Simulation: a job's profile on other ranks, hosts and links, planned anew."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradwire.communicators import AllGather, ScatterReduce
from gradwire.plans import Plan, default_communicator
from gradwire.schedule import baselines
from gradwire.schedule.candidate_names import candidate_names
from gradwire.schedule.cluster import Cluster
from gradwire.schedule.link_costs import between_hosts, inside_host
from gradwire.schedule.problem import Problem
from gradwire.schedule.profile import Profile
from gradwire.schedule.profiled import Candidate
from gradwire.schedule.progress import efficiency_levels, plan_efficiency, search_efficiency, search_progress
from gradwire.schedule.regimes import Regime, Worker
from gradwire.schedule.search import Solution, evaluate
from gradwire.schedule.sent_bytes import layout_of

BEST = "best plan"
GIVEN = "given plan"
EPS = 0.01
"""The best plan's step may be longer than the shortest by this fraction."""
SIZES = 16
"""Bucket sizes that are tried for each candidate."""


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
        inside_s = _inner_s(profile, cluster, regime)
        # in which all slots are ready at the same time, and backward hides nothing
        rounds = dataclasses.replace(problem, ready_s=np.zeros(len(problem.ready_s)), around_s=0.0)
        shortest = search_efficiency(rounds, regime, EPS, efficiency_levels(rounds)[0])
        for way, found in (_ways(there, rounds, regime, plan) | {BEST: shortest}).items():
            yield _outcome(
                there, cluster, f"{way} every {every}", found, inside_s + found.step_s / every, alone_s, every
            )


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
    # the number of groups of each candidate, in words
    names = candidate_names(there.candidates)
    counts = Counter(names[group.option] for group in found.groups)
    groups = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    return Outcome(cluster, way, step_s, alone_s, groups, nbytes, every)


def _inner_s(profile: Profile, cluster: Cluster, regime: Regime) -> float:
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
    per_host = cluster.ranks // network.peers
    # what a rank computes stays; decoding more payloads takes longer
    return dataclasses.replace(
        profile,
        candidates=tuple(_decoding(candidate, network.peers / profile.hosts) for candidate in profile.candidates),
        collectives=between_hosts(profile.candidates, network, profile.device),
        ranks=cluster.ranks,
        gpus_per_host=per_host,
        local=inside_host(cluster, profile.device) if per_host > 1 else {},
    )


def lacks_scatter_reduce(profile: Profile, peers: int) -> list[str]:
    """Names of the candidates that the profile has by all-gather alone, and that `attach` would send by scatter-reduce
    among so many peers: hosts, or ranks of a single host."""
    slots = layout_of([slot.shape for slot in profile.slots if slot.dim > 1]).slots
    ways = [candidate.way for candidate in profile.candidates]
    reduced = [way.compressor for way in ways if way.communicator == ScatterReduce()]
    return [
        name
        for name, way in zip(candidate_names(profile.candidates), ways, strict=True)
        if way.communicator == AllGather() and way.compressor not in reduced
        and default_communicator(way.compressor, slots, peers) == ScatterReduce()
    ]  # fmt: skip


def _decoding(candidate: Candidate, times: float) -> Candidate:
    if not candidate.way.communicator.decodes_all:
        return candidate
    return dataclasses.replace(candidate, decode=candidate.decode.times(times))
