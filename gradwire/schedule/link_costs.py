"""Costs of collectives over links by the alpha-beta model: a latency for each message, and seconds for each byte."""

from collections.abc import Callable, Sequence

import numpy as np

from gradwire import wire
from gradwire.schedule.cluster import Cluster, PeerLinks
from gradwire.schedule.costs import Affine, CostTable
from gradwire.schedule.profile import Profile
from gradwire.schedule.profiled import Candidate
from gradwire.schedule.sent_bytes import STEADY, layout_of
from gradwire.wire import Wire, depth

_MOST_BYTES = 1e13
"""Beyond any gradient."""
_UNIT = 1 << 40
"""The bytes for which costs are computed: so many that whole bytes round nothing off. Other sizes take their share."""


def over_link(
    candidates: Sequence[Candidate], hosts: int, latency_s: float, bytes_per_s: float
) -> dict[str, Affine | CostTable]:
    """The `collectives` of a profile by the alpha-beta model: `latency_s` for each message, one after another."""
    costs: dict[str, Affine | CostTable] = {}
    for way in (candidate.way for candidate in candidates):
        messages = way.communicator.wire(way.compressor, layout_of([(64, 64)]), hosts, STEADY).messages
        costs[way.communicator.called] = Affine(messages / way.compressor.rounds * latency_s, 1 / bytes_per_s)
    return costs


def between_hosts(candidates: Sequence[Candidate], links: PeerLinks, device: str) -> dict[str, Affine | CostTable]:
    """The `collectives` of a profile on these links; gloo knows the ring alone for an all-reduce."""
    costs = over_link(candidates, *links)
    return costs if device == "cpu" else costs | {"AllReduce": all_reduce(*links)}


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


def inside_host(cluster: Cluster, device: str) -> dict[str, Affine | CostTable]:
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
    """The seconds of a collective against its bytes, by its `cost` for `unit_bytes`."""
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
