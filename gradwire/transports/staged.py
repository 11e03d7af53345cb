"""Staging: GPU tensors over a transport of host memory, such as gloo, by way of pinned memory."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch

from gradwire.collective import AllToAll, Broadcast, Collective, Gather, Message, SendReceive, Sum
from gradwire.transports.transport import Pending


class Staging:
    """Carries collectives of GPU tensors by `carry`, which starts one of host memory.

        start   caller: the stream copies the message to pinned memory, and an event is recorded behind the copy
        _begin  a thread of its own: waits for that event, then starts the collective, in the order of the starts
        wait    caller: waits for the collective; the stream copies what has come to the GPU

    Only the caller's `wait` waits for the network; for Gradwire that is its worker, never the thread that trains. Every
    message has one twin on the host for as long as it lives. The stream copies in order, so a copy to the GPU is over
    before the next step's overwrites the twin.
    """

    def __init__(self, carry: Callable[[Collective], Pending], rank: int) -> None:
        self._carry, self._rank = carry, rank
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gradwire-staging")
        self._twins: WeakKeyDictionary[Message, Message] = WeakKeyDictionary()

    def start(self, op: Collective) -> Pending:
        """Starts `op`, whose tensors lie on a GPU."""
        on_host, (sends, receives) = self._on_host(op), _roles(op, self._rank)
        if sends:
            on_host.send.whole.copy_(op.send.whole, non_blocking=True)
        # also where nothing is sent: a copy of the step before may still read what will be received into
        copied = Copied(op.send.whole.device)
        return _Staged(op, on_host, self._thread.submit(self._begin, on_host, copied), receives)

    def close(self) -> None:
        """Ends the thread, behind what was started."""
        self._thread.shutdown(wait=False)

    def _begin(self, on_host: Collective, copied: "Copied") -> Pending:
        copied.wait()
        return self._carry(on_host)

    def _on_host(self, op: Collective) -> Collective:
        """The same collective of twins on the host."""
        match op:
            case Sum() | Broadcast():
                return replace(op, message=self._twin(op.message))
            case Gather() | AllToAll() | SendReceive():
                return replace(op, send=self._twin(op.send), receive=self._twin(op.receive))

    def _twin(self, message: Message) -> Message:
        if message not in self._twins:
            # pinned, so that a GPU copies to it by itself
            whole = message.whole
            pinned = torch.empty(whole.shape, dtype=whole.dtype, device="cpu", pin_memory=True)
            self._twins[message] = Message.plain(pinned)
        return self._twins[message]


@dataclass(frozen=True)
class _Staged:
    """A collective on its way by the host."""

    op: Collective
    on_host: Collective
    begun: "Future[Pending]"
    receives: bool

    def wait(self) -> None:
        self.begun.result().wait()
        if self.receives:
            self.op.receive.whole.copy_(self.on_host.receive.whole, non_blocking=True)


def _roles(op: Collective, rank: int) -> tuple[bool, bool]:
    """Whether a rank's message is read, and whether something comes to it."""
    match op:
        case Broadcast(source=source):
            # one rank sends, all others receive
            return source == rank, source != rank
        case SendReceive(target=target, source=source):
            return target is not None, source is not None
        case _:
            return True, True


class Copied:
    """The moment at which a device has done all work of its current stream so far."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._event = device, torch.cuda.current_stream(device).record_event()

    def wait(self) -> None:
        """Returns at that moment, on any thread."""
        # a thread that asks CUDA without a device of its own makes a context on the first one
        with torch.cuda.device(self._device):
            self._event.synchronize()
