"""Ranks are processes: torch.distributed over gloo or NCCL."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradwire.collective import Broadcast, Collective, Exchange, Gather, Hop, Idle, Local, Sum
from gradwire.transports.base import Pending, Transport
from gradwire.transports.hierarchical import Hierarchical

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13


MOST_DIRECT = 8
MOST_TAGS = 1 << 15


class _All:
    """Several messages that make one collective."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class ProcessGroup(Transport):
    """The ranks of a torch.distributed group. `own` makes one that nobody else uses."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group: dist.ProcessGroup | None = group
        self._global = dist.get_process_group_ranks(group)
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._direct = dist.get_backend(group) == "gloo" and self.world <= MOST_DIRECT
        self._tag = 0
        self._failure_key = f"gradwire/failure/{group.group_name}"

    @classmethod
    def own(cls, like: dist.ProcessGroup | None = None) -> "ProcessGroup":
        """A new group with the ranks and the timeout of `like` (default: all ranks), so that its collectives
        meet nobody else's on the way. All of its ranks must call this together.

        Raises ValueError where torch.distributed was not initialised."""
        parent = world_or(like)
        ranks = dist.get_process_group_ranks(parent)
        return cls(_new_group(ranks, timeout_of(parent)))

    @classmethod
    def by_host(cls, ranks_per_host: int, like: dist.ProcessGroup | None = None) -> Hierarchical:
        """A hierarchical transport for hosts of `ranks_per_host` consecutive ranks each.

        Raises ValueError where the ranks do not divide into such hosts."""
        parent = world_or(like)
        ranks = dist.get_process_group_ranks(parent)
        if len(ranks) % ranks_per_host:
            raise ValueError(f"{len(ranks)} ranks do not fill hosts of {ranks_per_host}; use a divisor of {len(ranks)}")
        timeout = timeout_of(parent)
        hosts = [ranks[i : i + ranks_per_host] for i in range(0, len(ranks), ranks_per_host)]
        me = dist.get_rank()
        local = [_new_group(host, timeout) for host in hosts if me in host]
        between = [_new_group(list(peers), timeout) for peers in zip(*hosts, strict=True) if me in peers]
        return Hierarchical(cls(local[0]), cls(between[0]))

    def start(self, op: Collective) -> Pending:
        group = self._group
        match op:
            case Sum(tensor):
                return _started(dist.all_reduce(tensor, group=group, async_op=True))
            case Gather() | Exchange() if self._direct:
                return self._swap(op)
            case Gather(send, receive):
                return _started(_all_gather(receive.view(-1), send, group=group, async_op=True))
            case Exchange(send, receive):
                return _started(dist.all_to_all_single(receive, send, group=group, async_op=True))
            case Broadcast(tensor, source):
                return _started(dist.broadcast(tensor, self._global[source], group=group, async_op=True))
            case Hop():
                return self._hop(op)
            case Local() | Idle():
                raise AssertionError("only a hierarchical transport has an inside")

    def _swap(self, op: Gather | Exchange) -> Pending:
        """Sends each rank its part and receives the row that comes from it, receives posted first.

        gloo's all-gather and all-to-all often use one direction of a link at a time, and take up to twice as long.
        """
        self._tag = (self._tag + 1) % MOST_TAGS
        outgoing = list(op.send) if isinstance(op, Exchange) else [op.send] * self.world
        peers = [(self.rank + step) % self.world for step in range(1, self.world)]
        works = [
            dist.irecv(op.receive[peer], group=self._group, group_src=peer, tag=self._tag) for peer in reversed(peers)
        ]
        works += [dist.isend(outgoing[peer], group=self._group, group_dst=peer, tag=self._tag) for peer in peers]
        op.receive[self.rank].copy_(outgoing[self.rank])
        return _All(works)

    def _hop(self, op: Hop) -> Pending:
        self._tag = (self._tag + 1) % MOST_TAGS
        works = []
        if op.source is not None:
            works.append(dist.irecv(op.receive, group=self._group, group_src=op.source, tag=self._tag))
        if op.target is not None:
            works.append(dist.isend(op.send, group=self._group, group_dst=op.target, tag=self._tag))
        return _All(works)

    def abort(self, reason: str) -> None:
        """Leaves the reason where the others look for it, and closes this rank's connections."""
        with suppress(RuntimeError):  # the store's host may be gone as well
            _store().compare_set(self._failure_key, "", reason)  # unlike set, waits until it is there; the first stays
        self.close()

    def close(self) -> None:
        group, self._group = self._group, None
        if group is None or not dist.is_initialized():
            return
        if dist.get_backend(group) == "nccl":
            group.abort()
        else:
            dist.destroy_process_group(group)

    def failure(self) -> str | None:
        try:
            store = _store()
            return store.get(self._failure_key).decode() if store.check([self._failure_key]) else None
        except RuntimeError:  # the store's host is gone as well
            return None


def world_or(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """`group`, or the group of all ranks. Raises ValueError where torch.distributed was not initialised."""
    if not dist.is_initialized():
        raise ValueError("no process group; call torch.distributed.init_process_group() first")
    group = group or dist.group.WORLD
    assert group is not None
    return group


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long the group's collectives wait for a rank."""
    device, _, _ = dist.get_backend_config(group).partition(":")  # "cuda:nccl", or "cpu:gloo,cuda:nccl"
    return group._get_backend(torch.device(device)).options._timeout


def _new_group(ranks: list[int], timeout: timedelta) -> dist.ProcessGroup:
    whole = len(ranks) == dist.get_world_size()
    group = dist.new_group(ranks, timeout=timeout, use_local_synchronization=not whole)
    assert isinstance(group, dist.ProcessGroup)
    return group


def _started(work: Any) -> Pending:
    return work


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
