"""Latency and bandwidth of each axis, by all-reduces."""

from statistics import median
from time import perf_counter

import torch

from gradwire.collective import Message, Sum
from gradwire.lab.doctor.findings import Finding
from gradwire.lab.doctor.site import ALL, INSIDE, Site
from gradwire.ops.host import synchronize
from gradwire.transports import Transport

SMALL, FIRST, LARGEST = 1, 1 << 14, 1 << 24
"""Elements of a message: for the latency, and the first and the largest for the bandwidth."""
TURNS, GROWTH, ENOUGH_S = 15, 4, 0.2
SLOW_GBIT = 5.0
REMEDY = "NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose the network; NCCL_DEBUG=INFO says which one NCCL took"


def check(site: Site) -> list[Finding]:
    """The time of a small all-reduce on each axis, and what a large one sends in a second."""
    return [_on_axis(site, name, axis) for name, axis in site.carrying.axes.items() if axis.world > 1] or [
        Finding(ALL, None, "one rank sends nothing")
    ]


def _on_axis(site: Site, name: str, axis: Transport) -> Finding:
    site.doing = f"in small all-reduces along {name}"
    small = median(_all_reduce_s(site, axis, SMALL) for _ in range(TURNS))
    # larger messages, until one takes long enough to measure
    size = FIRST
    while True:
        site.doing = f"in an all-reduce of {size} elements along {name}"
        seconds = min(_all_reduce_s(site, axis, size) for _ in range(2))
        if site.summed(seconds, axis) >= axis.world * ENOUGH_S or size * GROWTH > LARGEST:
            break
        size *= GROWTH
    # what each rank of a ring sends: two passes of all parts but one
    bits = 8 * 2 * (axis.world - 1) * 4 * size / axis.world
    gbit = bits / seconds / 1e9
    words = (
        f"latency {1e3 * small:.3g} ms, {gbit:.3g} Gbit/s from each rank (all-reduces of 4 B and {_bytes(4 * size)})"
    )
    slow = name != INSIDE and site.carrying.backend == "nccl" and gbit < SLOW_GBIT
    return Finding(name, True, words, REMEDY if slow else "")


def _all_reduce_s(site: Site, axis: Transport, size: int) -> float:
    """The time of one all-reduce, the ranks together at its begin."""
    vector = torch.zeros(size, dtype=torch.float32, device=site.device)
    # the ranks wait for each other here, so that only the all-reduce is timed
    site.summed(0.0, axis)
    synchronize(site.device)
    began = perf_counter()
    axis.run(Sum(Message.plain(vector)))
    synchronize(site.device)
    return perf_counter() - began


def _bytes(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
