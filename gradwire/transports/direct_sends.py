"""Collectives of torch.distributed that are made of messages from rank to rank."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist

from gradwire.collective import AllToAll, Gather, SendReceive
from gradwire.torch_private.process_groups import at_once
from gradwire.transports.transport import Pending

MOST_TAGS = 1 << 15
"""Tags are reused after so many collectives, when those with the same tag are long over."""


class _All:
    """A collective of several messages."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class DirectSends:
    """Messages of one group, which all ranks start in the same order: so they have the same tags."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank = rank
        self._world = world
        self._tag = 0

    def swap(self, group: dist.ProcessGroup, op: Gather | AllToAll) -> Pending:
        """Sends each rank its part and receives the row that comes from it, receives posted first.

        gloo's all-gather and all-to-all often use one direction of a link at a time, and take up to twice as long.
        """
        tag, receive = self._next_tag(), op.receive.whole
        # of a gather, all ranks' part is the same
        outgoing = op.send.whole.expand_as(receive)
        peers = [(self._rank + step) % self._world for step in range(1, self._world)]
        # receives first, so that every message finds its place
        works = [dist.irecv(receive[peer], group=group, group_src=peer, tag=tag) for peer in reversed(peers)]
        works += [dist.isend(outgoing[peer], group=group, group_dst=peer, tag=tag) for peer in peers]
        receive[self._rank].copy_(outgoing[self._rank])
        return _All(works)

    def send_receive(self, group: dist.ProcessGroup, op: SendReceive) -> Pending:
        """A rank may send, receive, both or neither."""
        tag = self._next_tag()
        calls: list[Callable[[], Any]] = []
        if op.source is not None:
            calls.append(partial(dist.irecv, op.receive.whole, group=group, group_src=op.source, tag=tag))
        if op.target is not None:
            calls.append(partial(dist.isend, op.send.whole, group=group, group_dst=op.target, tag=tag))
        return _All(at_once(group, op.send.whole.device, calls))

    def _next_tag(self) -> int:
        self._tag = (self._tag + 1) % MOST_TAGS
        return self._tag
