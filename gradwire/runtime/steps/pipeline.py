"""The pipeline: groups between their first collective and their means, advanced entry by entry of a step's script."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from gradwire.collective import HOST, Collective
from gradwire.compressors import Reduction
from gradwire.ops.backend import backend_on
from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.runtime.failures.job_errors import PeerFailed, ReductionError
from gradwire.runtime.trace import Recorder
from gradwire.runtime.worker.events import EPOCH, Event
from gradwire.torch_private.profiling import in_profile
from gradwire.transports import Mesh, Pending
from gradwire.transports.transport import Lost

T = TypeVar("T")
RANGE = "gradwire: turn {} of group {}, {}"
"""What a turn is called in torch's profiler."""


@dataclass
class UnderWay:
    """A group between its first collective and its means."""

    exchange: GroupExchange
    reduction: Reduction
    op: Collective | None = None
    """The collective that it waits for; None before the first, and in a round in which this rank takes no part."""
    pending: Pending | None = None
    """None in a round in which this rank takes no part."""
    started: Event = EPOCH
    turn: int = 0
    """How many turns it has had."""


class Pipeline:
    """The groups under way. Raises ReductionError where one fails or a rank is lost."""

    wire_bytes: int
    """Of all that was handed to `send`, between hosts."""

    def __init__(self, mesh: Mesh, recorder: Recorder) -> None:
        self.mesh, self.recorder = mesh, recorder
        self.wire_bytes = 0
        self._under_way: dict[int, UnderWay] = {}

    def start(self, exchange: GroupExchange, reduction: Reduction) -> None:
        """Encodes a group whose gradients are there, and starts the first collective of its `reduction`."""
        self._go_on(UnderWay(exchange, reduction), self.recorder.now())

    def advance(self, group: int) -> None:
        """Waits for a group's collective, and starts its next one, or decodes."""
        # wait for the collective before: the worker stands here
        running, now = self._under_way.pop(group), None
        if running.op is not None and running.pending is not None:
            with self._named("reducing", running.exchange):
                self.mesh.wait(running.pending)
            label, wire_bytes = type(running.op).__name__, self._wire_bytes(running.op)
            now = self.recorder.add("wire", running.started, group, label, wire_bytes)
        # decode, or encode for the next round and start it
        self._go_on(running, now or self.recorder.now())

    def open(self, device: torch.device) -> None:
        """Tries kernels, which a GPU may have to compile, and makes connections, all before the first step. All ranks
        call this together."""
        backend_on(device)
        self.together(partial(self.mesh.open, device))

    def drain(self) -> None:
        """Drops the groups under way."""
        self._under_way.clear()

    def send(self, op: Collective) -> Pending:
        """Starts a collective and counts its bytes."""
        self.wire_bytes += self._wire_bytes(op)
        return self.mesh.start(op)

    def together(self, talk: Callable[[], T]) -> T:
        """Runs a task in which all ranks exchange something between groups, while this one waits."""
        with self._named("agreeing with", "the other ranks"):
            return talk()

    def sum(self, tensor: Tensor, axes: Collection[str] | None = None) -> None:
        """`Mesh.sum`, by all ranks together."""
        self.together(partial(self.mesh.sum, tensor, axes))

    def _go_on(self, running: UnderWay, start: Event) -> None:
        # the group's own part, from `start` on: until it yields its next collective, or has written the means
        exchange = running.exchange
        running.turn += 1
        try:
            with in_profile(RANGE, running.turn - 1, exchange.index, exchange.group.compressor):
                running.op = next(running.reduction)
        except StopIteration:
            self.recorder.add("decode", start, exchange.index)
            return
        except ReductionError:  # a controller's that looked
            raise
        except Exception as error:
            raise self._failed(f"reducing {exchange}", error) from error
        # start the collective, which goes on while other groups are encoded
        running.started = self.recorder.add("encode", start, exchange.index)
        self._under_way[exchange.index] = running
        with self._named("reducing", exchange):
            running.pending = None if running.op is None else self.send(running.op)

    def _wire_bytes(self, op: Collective) -> int:
        """The bytes that this rank sends between hosts."""
        # those of a host stay inside
        return 0 if op.axis == HOST else op.wire_bytes(self.mesh.axes[op.axis].world)

    @contextmanager
    def _named(self, doing: str, what: object) -> Iterator[None]:
        """A context whose errors say what has failed: on which rank, or why another one has ended it."""
        try:
            yield
        except ReductionError:  # it says so itself, as that of a meeting does
            raise
        except Lost as error:
            # the reason that another rank left when it failed, or else that one was lost
            why = self.mesh.failure() or f"a rank was lost ({error})"
            raise PeerFailed(f"{doing} {what} ended", why) from error
        except RuntimeError as error:
            raise self._failed(f"{doing} {what}", error) from error

    def _failed(self, what: str, error: Exception) -> ReductionError:
        return ReductionError(f"{what} failed on rank {self.mesh.rank}: {type(error).__name__}: {error}")
