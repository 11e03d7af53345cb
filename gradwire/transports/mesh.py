"""A mesh: which transport carries the collectives of which axis."""

import gc
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from math import prod
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from gradwire.collective import HOST, REPLICA, Broadcast, Collective, Gather, Message, Sum
from gradwire.options import check_type, one_line
from gradwire.transports.bounded_calls import run_bounded
from gradwire.transports.parcels import parcels
from gradwire.transports.transport import KeyValueStore, Pending, Transport, of_others

ABORT_S = 5.0
"""How long to wait for an abort."""
GIVEN_UP = "given up"
"""The key of a job in which ranks waited for others in vain."""
SAME = (REPLICA, HOST)
"""The axes along which all ranks hold the same part of the model."""
_carried: "WeakValueDictionary[int, Mesh]" = WeakValueDictionary()
"""The job that has a transport or a controller now, by the id of the transport's `carrier`, or the controller's."""


class Mesh:
    """Transports by axis. Gradients are reduced along "replica". Where there is an axis "host", they are first added
    up, dense, among the ranks of a host; one of them, in turn from group to group, then takes part in what is
    compressed. So each host sends what one rank would, and memories lie with the rank that compresses. Along any other
    axis nothing is reduced: its ranks hold different parts of the model, and agree on what all do together.

    `rank` and `ranks` count all ranks of all axes, in the order of `axes`, the first varying slowest. `store` is the
    store of all of them; by default that of the axis "replica", which will do where it is the only one. `leaders`
    is how many ranks of a host lead groups in turn; by default all of them.
    """

    def __init__(
        self, axes: Mapping[str, Transport], store: KeyValueStore | None = None, leaders: int | None = None
    ) -> None:
        check_type("axes", axes, (Mapping,), '{"replica": transport}', optional=False)
        if REPLICA not in axes:
            raise ValueError(f'no axis of {one_line(list(axes))} is "replica"; write gw.Mesh({{"replica": transport}})')
        self.axes = dict(axes)
        self.replica = self.axes[REPLICA]
        self.host = self.axes.get(HOST)
        # all ranks of a host lead groups in turn
        self.leaders = leaders or (self.host.world if self.host else 1)
        self.store = store or self.replica.store
        self._taken: list[int] = []

    @classmethod
    def of(cls, transport: "Transport | Mesh") -> "Mesh":
        """A mesh; a transport alone becomes the axis "replica"."""
        return transport if isinstance(transport, Mesh) else cls({REPLICA: transport})

    def for_job(self) -> "Mesh":
        """The same transports with keys of the store for one job alone. All ranks call this together."""
        # every job on these transports has keys of its own; skip jobs that the others gave up without this rank
        while True:
            self.replica.jobs += 1
            part = _Part(self.store, f"job/{self.replica.jobs}")
            if not part.check([GIVEN_UP]):
                return Mesh(self.axes, part, self.leaders)

    def take(self, controller: object | None) -> None:
        """Takes the transports, and the `controller` if there is one, for this job alone, until `release`. Two jobs on
        one transport would start collectives in an order that differs between ranks, and two with one controller would
        mix what it knows. Raises ValueError, on this rank, where another job has one."""
        wanted = {id(transport.carrier): "transport carries" for transport in self.axes.values()}
        if controller is not None:
            wanted[id(controller)] = f"{type(controller).__name__} controls"
        # a model that was dropped may not be collected yet
        if any(each in _carried for each in wanted):
            gc.collect()
        if busy := next((what for each, what in wanted.items() if each in _carried), None):
            raise ValueError(f"this {busy} another job; make one for each, or first call handle.detach()")
        self._taken = [*wanted]
        _carried.update(dict.fromkeys(wanted, self))

    def release(self) -> None:
        """Gives back what `take` has taken."""
        taken, self._taken = self._taken, []
        for carrier in taken:
            _carried.pop(carrier, None)

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        return prod(transport.world for transport in self.axes.values())

    @property
    def averaged(self) -> int:
        """The number of ranks over which gradients are averaged."""
        return self.replica.world * (self.host.world if self.host else 1)

    @property
    def rank(self) -> int:
        """This rank's number among all of them."""
        return self._rank({axis: transport.rank for axis, transport in self.axes.items()})

    @property
    def divided(self) -> list[str]:
        """The axes along which ranks hold different parts of the model."""
        return [axis for axis in self.axes if axis not in SAME]

    @property
    def same_parts(self) -> list[list[int]]:
        """For each part of the model, the ranks that hold it."""
        sizes = [transport.world for transport in self.axes.values()]
        same = [dim for dim, axis in enumerate(self.axes) if axis in SAME]
        ranks = torch.arange(self.ranks, dtype=torch.int64, device="cpu").view(sizes)
        # the axes along which ranks hold the same part first: (ranks of a part, parts)
        ranks = ranks.movedim(same, list(range(len(same))))
        return ranks.reshape(self.averaged, -1).T.tolist()

    def place(self, rank: int) -> dict[str, int]:
        """A rank's number on each axis."""
        place: dict[str, int] = {}
        for axis, transport in reversed(self.axes.items()):
            rank, place[axis] = divmod(rank, transport.world)
        return place

    def _rank(self, place: Mapping[str, int]) -> int:
        """The rank at a place, its number on each axis."""
        rank = 0
        for axis, transport in self.axes.items():
            rank = rank * transport.world + place[axis]
        return rank

    @property
    def timeout_s(self) -> float:
        """How long a rank waits for another one."""
        return min(transport.timeout_s for transport in self.axes.values())

    @property
    def gives_up_s(self) -> float:
        """Seconds after which the others go on without a rank that does not run."""
        return min(transport.gives_up_s for transport in self.axes.values())

    def start(self, op: Collective) -> Pending:
        """Starts `op` on its axis. Raises `Lost`, as all that follow do, where another rank is the reason."""
        with of_others():
            return self.axes[op.axis].start(op)

    def wait(self, pending: Pending) -> None:
        """Waits for a collective that was started."""
        with of_others():
            pending.wait()

    def run(self, op: Collective) -> None:
        """Starts `op` on its axis and waits for it."""
        with of_others():
            self.axes[op.axis].run(op)

    def sum(self, tensor: Tensor, axes: Collection[str] | None = None) -> None:
        """Sums `tensor` over all ranks, or along these axes alone, in place."""
        for axis in self.axes:
            if axes is None or axis in axes:
                self.run(Sum(Message.plain(tensor), axis))

    def share(
        self, tensors: Sequence[Tensor], device: torch.device, *, source: int = 0, axes: Collection[str] | None = None
    ) -> None:
        """Broadcasts the `tensors` of rank `source`, in place, in messages on `device`: of any type and strides; types
        and shapes are agreed. With `axes`, only along these: for each place on all other axes from the rank there."""
        # where the source is on each axis
        place, along = self.place(source), [axis for axis in self.axes if axes is None or axis in axes]
        gives = all(self.axes[axis].rank == place[axis] for axis in along)
        # axis by axis: after the first, all ranks of that axis have the parcel, and give it on
        for parcel in parcels(tensors, device):
            if gives:
                parcel.pack()
            for axis in along:
                self.run(Broadcast(Message.plain(parcel.buffer), place[axis], axis))
            if not gives:
                parcel.unpack()

    def gather(self, tensor: Tensor) -> Tensor:
        """The `tensor` (n,) of every rank, of any type, as (ranks, n)."""
        rows = tensor.contiguous().view(torch.uint8)
        # from the innermost axis out, so that rows come in the order of the ranks
        for axis, transport in reversed(self.axes.items()):
            received = rows.new_empty((transport.world, rows.numel()))
            self.run(Gather(Message.plain(rows.view(-1)), Message.plain(received), axis))
            rows = received
        return rows.view(self.ranks, -1).view(tensor.dtype)

    def open(self, device: torch.device) -> None:
        """Opens all transports."""
        with of_others():
            for transport in self.axes.values():
                transport.open(device)

    def check(self, device: torch.device) -> None:
        """Raises ValueError, naming what works, where tensors of this device cannot be carried."""
        for transport in self.axes.values():
            transport.check(device)

    def abort(self, reason: str) -> None:
        """Aborts all transports at once, for on NCCL one may wait for another, or for the group's timeout. Returns
        after ABORT_S even then."""
        calls = [partial(transport.abort, reason) for transport in self.axes.values()]
        for call in run_bounded(calls, ABORT_S):
            with suppress(Exception):
                call()  # the process ends
        self.release()

    def close(self) -> None:
        """Closes all transports, also where closing one of them fails."""
        with ExitStack() as closing:
            for transport in reversed(self.axes.values()):
                closing.callback(transport.close)

    @property
    def needs_polling(self) -> bool:
        """Whether waits on some axis may not notice a lost rank."""
        return any(transport.needs_polling for transport in self.axes.values())

    def lost(self, waits: bool) -> str | None:
        """The reason why collectives under way will not end, from the axes that need polling; None while they may."""
        # ask all: each leaves its heartbeat
        polled = [transport.lost(waits) for transport in self.axes.values() if transport.needs_polling]
        return next(filter(None, polled), None)

    @property
    def silent(self) -> set[int]:
        """The ranks that `lost` has found to give no sign of life."""
        here, axes = self.place(self.rank), self.axes.items()
        return {self._rank({**here, axis: each.silent}) for axis, each in axes if each.silent is not None}

    def failure(self) -> str | None:
        """The reason that another rank left when it aborted, if any."""
        return next((why for transport in self.axes.values() if (why := transport.failure())), None)


class _Part:
    """The keys of a store that begin with `prefix`. Raises `Lost` where the store is gone."""

    def __init__(self, store: KeyValueStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def set(self, key: str, value: str) -> None:
        with of_others():
            self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str, timeout_s: float) -> str | None:
        with of_others():
            return self._store.get(f"{self._prefix}/{key}", timeout_s)

    def add(self, key: str, number: int) -> int:
        with of_others():
            return self._store.add(f"{self._prefix}/{key}", number)

    def check(self, keys: Sequence[str]) -> bool:
        with of_others():
            return self._store.check([f"{self._prefix}/{key}" for key in keys])

    def delete(self, key: str) -> None:
        with of_others():
            self._store.delete(f"{self._prefix}/{key}")
