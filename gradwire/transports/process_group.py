"""The transport of processes: torch.distributed over gloo or NCCL. Over gloo, GPU tensors are staged on the host."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gradwire.collective import HOST, REPLICA, SHARD, AllToAll, Broadcast, Collective, Gather, Message, SendReceive, Sum
from gradwire.options import check_type
from gradwire.torch_private.process_groups import (
    abort_group,
    all_gather_single,
    backend_of,
    close_group,
    default_store,
    error_of,
    new_group_over,
    options_of,
    store_of,
    timeout_of,
)
from gradwire.transports import forked
from gradwire.transports.bounded_calls import run_bounded
from gradwire.transports.connections import Connections, connections_of, drop_groups
from gradwire.transports.direct_sends import DirectSends
from gradwire.transports.gathering import meet, numbered
from gradwire.transports.heartbeat import Heartbeat, raise_alarm
from gradwire.transports.mesh import ABORT_S, Mesh
from gradwire.transports.staged import Staging
from gradwire.transports.torch_store import TorchStore
from gradwire.transports.transport import Pending, Transport

MOST_DIRECT = 8
"""Ranks up to which gloo's all-gather and all-to-all are sent directly, from rank to rank."""
CPU, GPU = torch.device("cpu"), torch.device("cuda")
CLOSE_S = 2.0
"""How long to wait for the end of a communicator."""
SILENT_S = 7.0
"""A rank without a sign of life for so long is lost."""


class ProcessGroup(Transport):
    """The ranks of a torch.distributed group, all of which make this together. `own` makes one for Gradwire alone.
    An error of a job ends the group.

    `name` is the same on all its ranks and no other transport's; by default one is made up. `store` is by default that
    of torch.distributed's default group.
    """

    def __init__(self, group: dist.ProcessGroup, name: str | None = None, store: Any = None) -> None:
        check_type("group", group, (dist.ProcessGroup,), "torch.distributed.new_group()", optional=False)
        self._group: dist.ProcessGroup | None = group
        self.rank, self.world = group.rank(), group.size()
        self._direct = backend_of(group, CPU) == "gloo" and self.world <= MOST_DIRECT
        self._sends = DirectSends(self.rank, self.world)
        self.timeout_s = timeout_of(group).total_seconds()
        # a group may be given again, and what was left in the store for the job before is not to be read
        name = name or numbered(f"gradwire/{group.group_name}", self.rank, store)
        # the store, with one more connection for the monitor's thread, and the heartbeat over that
        self.store = self._texts = TorchStore(name, store)
        self._queues = backend_of(group, GPU) == "nccl"
        self.needs_polling = self._queues or backend_of(group, CPU) == "gloo"
        # opened here: another thread's would be among the next group's connections
        self._beside = self._texts.second()
        self._heart = Heartbeat(self._beside, self.rank, self.world)
        self._apart = store is not None
        self._connections = Connections()
        self._staging: Staging | None = None
        forked.register(self)

    @classmethod
    def own(cls, like: dist.ProcessGroup | None = None) -> "ProcessGroup":
        """A new group with the ranks and the timeout of `like` (default: all ranks), for Gradwire's collectives alone.
        All of its ranks must call this together.

        Raises ValueError where torch.distributed was not initialised, and RuntimeError where a rank does not come."""
        parent = world_or(like)
        return cls._of(dist.get_process_group_ranks(parent), parent)

    @classmethod
    def beside(cls, group: dist.ProcessGroup) -> "ProcessGroup":
        """A new group with the ranks, the backends and the timeout of `group`, over the store that this was made with;
        torch.distributed need not know of it. All of its ranks must call this together, once."""
        name, store = "gradwire", store_of(group)
        with connections_of(group) as connections:
            made = new_group_over(store, name, group.rank(), list(range(group.size())), group)
        transport = cls(made, name, store)
        transport._connections = connections
        return transport

    @classmethod
    def by_host(cls, ranks_per_host: int, like: dist.ProcessGroup | None = None) -> Mesh:
        """The axes of hosts of `ranks_per_host` consecutive ranks each. All ranks must call this together.

        Raises ValueError where the ranks do not divide into such hosts."""
        parent = world_or(like)
        ranks = dist.get_process_group_ranks(parent)
        check_type("ranks_per_host", ranks_per_host, (int,), "8", optional=False)
        if ranks_per_host < 1 or len(ranks) % ranks_per_host:
            raise ValueError(f"{len(ranks)} ranks do not fill hosts of {ranks_per_host}; use a divisor of {len(ranks)}")
        # consecutive ranks are on one host, as torchrun numbers them
        hosts = [ranks[first : first + ranks_per_host] for first in range(0, len(ranks), ranks_per_host)]
        return cls._table(hosts, HOST, parent)

    @classmethod
    def by_replica(cls, mesh: DeviceMesh) -> Mesh:
        """The axes of a device mesh whose first dimension counts replicas, each of which the ranks along all others
        hold together. All ranks must call this together."""
        return cls._table(mesh.mesh.flatten(1).tolist() if mesh.ndim > 1 else mesh.mesh.unsqueeze(1).tolist(), SHARD)

    @classmethod
    def _table(cls, rows: list[list[int]], inside: str, like: dist.ProcessGroup | None = None) -> Mesh:
        """Gradients are reduced along the columns; rows are the axis `inside`."""
        # this rank's row and column
        parent, rank = world_or(like), dist.get_rank()
        row = next(row for row in rows if rank in row)
        column = [other[row.index(rank)] for other in rows]
        # all ranks meet; then both groups are made by their members alone, all ranks in this order
        name = meet(rank, [other for row in rows for other in row], timeout_of(parent).total_seconds())
        axes = {REPLICA: cls._of(column, parent, few=len(row) > 1), inside: cls._of(row, parent)}
        return Mesh(axes, TorchStore(name))

    @classmethod
    def _of(cls, ranks: list[int], parent: dist.ProcessGroup, few: bool = False) -> "ProcessGroup":
        """A group of these ranks. With `few`, its kernels hold few multiprocessors while they wait for a slow link."""
        # a name that all members agree on
        timeout = timeout_of(parent)
        name = meet(dist.get_rank(), ranks, timeout.total_seconds())
        # all members come here in the same order, as new_group wants it
        with connections_of(parent) as connections:
            group: Any
            if len(ranks) == dist.get_world_size() and parent is dist.group.WORLD:
                group = dist.new_group(ranks, timeout=timeout, pg_options=options_of(parent, few))
            else:
                group = new_group_over(default_store(), name, ranks.index(dist.get_rank()), ranks, parent, few)
        # keep the connections, to shut them down by name
        made = cls(group, name)
        made._connections = connections
        return made

    @property
    def gives_up_s(self) -> float:
        # over NCCL its beats are missed
        return silent_s(self.look_s) if self._queues else self.timeout_s

    @property
    def carrier(self) -> object:
        # another transport of the same group would use the same tags
        return self._group or self

    def start(self, op: Collective) -> Pending:
        if self._queues or op.send.whole.device == CPU:
            return self._start(op)
        # gloo reads the host's memory
        self._staging = self._staging or Staging(self._start, self.rank)
        return self._staging.start(op)

    def _start(self, op: Collective) -> Any:
        group = self._open()
        match op:
            case Sum(message):
                return dist.all_reduce(message.whole, group=group, async_op=True)
            case Gather() | AllToAll() if self._direct and op.send.whole.device == CPU:
                # few ranks on gloo: rows from rank to rank, in both directions at once
                return self._sends.swap(group, op)
            case Gather(send, receive):
                return all_gather_single(receive.whole.view(-1), send.whole, group=group, async_op=True)
            case AllToAll(send, receive):
                return dist.all_to_all_single(receive.whole, send.whole, group=group, async_op=True)
            case Broadcast(message, source):
                return dist.broadcast(message.whole, group=group, group_src=source, async_op=True)
            case SendReceive():
                return self._sends.send_receive(group, op)

    def _open(self) -> dist.ProcessGroup:
        if self._group is None:
            raise RuntimeError("this transport was closed; make a new one, such as gw.ProcessGroup.own()")
        return self._group

    def open(self, device: torch.device) -> None:
        """Has NCCL make its communicator. What goes from rank to rank needs it, and a rank that is lost while others
        wait for it in there would leave them hanging."""
        if self._queues:
            self.run(Sum(Message.plain(torch.zeros(1, dtype=torch.float32, device=device))))

    def check(self, device: torch.device) -> None:
        # over gloo, tensors of a GPU are staged on the host
        carrier = device if self._queues else CPU
        if backend_of(self._open(), carrier) == "none":
            raise ValueError(
                f"the process group has no backend for {carrier}; call init_process_group() with one that has"
            )

    def abort(self, reason: str) -> None:
        """Leaves the reason in the store for the others, and closes this rank's connections."""
        # the reason is in the store before connections close, for the others look for it then
        with suppress(RuntimeError):  # the store's host may be gone as well
            if not self._heart.alarmed and self._texts.first("failure", reason) == reason and self._queues:
                raise_alarm(self._texts, self.world)
        # from here on no collective starts
        held = [] if self._group is None else [self._group]
        self._group = None
        if held and (self._apart or dist.is_initialized()):
            # end what is under way, without waiting for threads that wait for other ranks
            self._connections.shut_down()
            self._end(abort_group, held[0], ABORT_S)
            drop_groups(held)

    def close(self) -> None:
        # once, and not after the job's own end has closed it
        group, self._group = self._group, None
        if self._staging:
            self._staging.close()
        if group is None or not (self._apart or dist.is_initialized()):
            return
        self._end(close_group, group, CLOSE_S)

    def _end(self, end: Callable[[dist.ProcessGroup], None], group: dist.ProcessGroup, seconds: float) -> None:
        # NCCL's end waits for the other ranks; where garbage collection closes it, these may train on
        if not self._queues:
            end(group)
        elif run_bounded([partial(end, group)], seconds):
            forked.keep_for_ever(group)  # the process ends

    def after_fork(self) -> None:
        """Drops the group in a forked child: it is the parent's."""
        forked.keep_for_ever(self._group)
        self._group = None

    def failure(self) -> str | None:
        try:
            return self._texts.get("failure", 0)
        except RuntimeError:  # the store's host is gone as well
            return None

    # On the monitor's thread, every second or so

    def lost(self, waits: bool) -> str | None:
        # gloo: has a rank left a reason that no wait has raised?
        if not self._queues:
            with suppress(RuntimeError):
                # the store's host is gone, as it may be when the job is over
                return self._beside.get("failure", 0)
            return None
        # NCCL: beat, then look for an alarm, an error of NCCL's own, or a silent partner
        self.silent = silent = self._heart.silent(self.gives_up_s, waits)
        if self._heart.alarmed:
            return self._beside.first("failure", "a rank has raised the alarm")
        if (group := self._group) and (error := error_of(group)):
            return f"NCCL reports {error} on rank {self.rank}; NCCL_DEBUG=WARN has it say more"
        if silent is None:
            return None
        return f"a rank was lost ({silent} has given no sign of life for {self.gives_up_s:.0f} s)"


def silent_s(look_s: float) -> float:
    """How long a rank may give no sign of life where ranks look every `look_s` seconds: for three looks at least:
    `Heartbeat` takes a rank whose looks are further apart than half of this for one that was stopped itself."""
    return max(SILENT_S, 3 * look_s)


def world_or(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """`group`, or the group of all ranks. Raises ValueError where torch.distributed was not initialised."""
    if not dist.is_initialized():
        raise ValueError("no process group; call torch.distributed.init_process_group() first")
    group = group or dist.group.WORLD
    assert group is not None
    return group
