"""Every collective on every axis, with odd sizes, checked for the right result."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradwire.collective import AllToAll, Broadcast, Collective, Gather, Message, SendReceive, Sum
from gradwire.lab.doctor.findings import Finding
from gradwire.lab.doctor.site import Site
from gradwire.ops.host import synchronize
from gradwire.transports import Transport

SIZES = (1, 7, 1023)
REMEDIES = {
    "nccl": "try NCCL_P2P_DISABLE=1, then NCCL_IB_DISABLE=1: the one that mends it names the link; nvidia-smi -q shows"
    " memory errors",
    "gloo": "try another network (GLOO_SOCKET_IFNAME); test this host's memory and network card",
}

Made = tuple[Collective, Tensor]
"""A collective, and what it must receive on this rank."""


def check(site: Site) -> list[Finding]:
    """For each axis, the collectives that gave this rank something wrong."""
    return [_on_axis(site, name, axis) for name, axis in site.carrying.axes.items()]


def _on_axis(site: Site, name: str, axis: Transport) -> Finding:
    wrong, ran = list[str](), list[str]()
    for kind, make in COLLECTIVES.items():
        for size in SIZES:
            if kind == "send and receive" and axis.world == 1:
                continue
            site.doing = f"in the {kind} of {size} elements along {name}"
            # bytes that depend on sender and receiver: a row at the wrong place is seen, too
            op, expected = make(axis, size, site.device)
            axis.run(op)
            synchronize(site.device)
            wrong += [] if torch.equal(op.receive.whole, expected) else [f"{kind} of {size} elements"]
            ran.append(kind)
    if wrong:
        return Finding(name, False, f"wrong results: {', '.join(wrong)}", REMEDIES[site.carrying.backend])
    return Finding(
        name, True, f"{len(ran)} collectives of {axis.world} ranks are right: {', '.join(dict.fromkeys(ran))}"
    )


def _numbers(size: int, source: int, target: int = 0) -> Tensor:
    """Bytes that differ with sender and receiver."""
    return ((torch.arange(size) * 3 + 31 * source + 7 * target + 1) % 251).to(torch.uint8)


def _rows(rows: Iterator[Tensor], device: torch.device) -> Tensor:
    return torch.stack(list(rows)).to(device)


def _sum(axis: Transport, size: int, device: torch.device) -> Made:
    own = _numbers(size, axis.rank).float().to(device)
    return Sum(Message.plain(own)), _rows((_numbers(size, r).float() for r in range(axis.world)), device).sum(0)


def _gather(axis: Transport, size: int, device: torch.device) -> Made:
    expected = _rows((_numbers(size, rank) for rank in range(axis.world)), device)
    own = Message.plain(_numbers(size, axis.rank).to(device))
    return Gather(own, Message.plain(torch.zeros_like(expected))), expected


def _all_to_all(axis: Transport, size: int, device: torch.device) -> Made:
    expected = _rows((_numbers(size, rank, axis.rank) for rank in range(axis.world)), device)
    own = _rows((_numbers(size, axis.rank, rank) for rank in range(axis.world)), device)
    return AllToAll(Message.plain(own), Message.plain(torch.zeros_like(expected))), expected


def _broadcast(axis: Transport, size: int, device: torch.device) -> Made:
    last = axis.world - 1
    own = Message.plain(_numbers(size, axis.rank).to(device))
    return Broadcast(own, last), _numbers(size, last).to(device)


def _send_receive(axis: Transport, size: int, device: torch.device) -> Made:
    """Each rank sends to the next one."""
    target, source = (axis.rank + 1) % axis.world, (axis.rank - 1) % axis.world
    own, expected = (_numbers(size, rank).to(device) for rank in (axis.rank, source))
    return SendReceive(Message.plain(own), Message.plain(torch.zeros_like(expected)), target, source), expected


COLLECTIVES: dict[str, Callable[[Transport, int, torch.device], Made]] = {
    "all-reduce": _sum,
    "all-gather": _gather,
    "all-to-all": _all_to_all,
    "broadcast": _broadcast,
    "send and receive": _send_receive,
}
