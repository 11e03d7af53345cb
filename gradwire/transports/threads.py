"""The transport of threads of one process: whole multi-rank reductions without a launcher, for trials and tests."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from gradwire.collective import AllToAll, Broadcast, Collective, Gather, SendReceive, Sum
from gradwire.transports.transport import Pending, Transport

PATIENCE_S = 60.0
"""Seconds after which a rank gives up waiting for the others."""


@dataclass
class _Meeting:
    """One collective: the ranks' tensors, until the last one comes and does the work for all."""

    ops: dict[int, Collective] = field(default_factory=dict)
    """By rank; all the same kind, once the last one has come."""
    done: threading.Event = field(default_factory=threading.Event)
    error: str | None = None
    """Why it failed, once `done` is set."""

    def wait(self) -> None:
        if not self.done.wait(PATIENCE_S):
            raise RuntimeError(f"only ranks {sorted(self.ops)} came to the collective within {PATIENCE_S:.0f} s")
        if self.error:
            raise RuntimeError(self.error)


class _Store:
    """The texts and numbers of a store, for threads of one process."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._words[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._words, timeout_s)
            return self._words.get(key)

    def add(self, key: str, number: int) -> int:
        with self._changed:
            self._numbers[key] = self._numbers.get(key, 0) + number
            return self._numbers[key]

    def check(self, keys: Sequence[str]) -> bool:
        with self._changed:
            return all(key in self._words for key in keys)

    def delete(self, key: str) -> None:
        with self._changed:
            self._words.pop(key, None)


class _Hub:
    """The meeting point of the ranks' threads, in the order in which each starts collectives:

    1. `join`: a rank brings its op to the meeting of this number, under `lock`.
    2. The last one to come does the work for all, still under `lock`, and sets `done`.
    3. `wait`, without the lock: the others return when `done` is set. `fail` sets it for all meetings that are open.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self.store = _Store()
        self.lock = threading.Lock()
        self.meetings: dict[int, _Meeting] = {}
        self.failed: str | None = None

    def join(self, rank: int, index: int, op: Collective) -> Pending:
        # under the lock: the first to come opens the meeting, the last one does the work
        with self.lock:
            meeting = self.meetings.setdefault(index, _Meeting())
            meeting.ops[rank] = op
            meeting.error = self.failed
            if self.failed or len(meeting.ops) == self.world:
                if not meeting.error:
                    meeting.error = _carry_out([meeting.ops[r] for r in range(self.world)])
                meeting.done.set()
                # over: nothing of it is kept
                del self.meetings[index]
        return meeting

    def fail(self, reason: str) -> None:
        # under the lock: no meeting opens or ends while all that are open fail
        with self.lock:
            self.failed = reason
            for meeting in self.meetings.values():
                meeting.error = reason
                meeting.done.set()


class Threads(Transport):
    """One rank of a group of threads; `Threads.group(world)` makes all of them."""

    def __init__(self, rank: int, hub: _Hub) -> None:
        self.rank = rank
        self.world = hub.world
        self.store = hub.store
        self.started: list[Collective] = []
        self._hub = hub

    @classmethod
    def group(cls, world: int) -> list["Threads"]:
        """The transports of `world` ranks that meet each other."""
        hub = _Hub(world)
        return [cls(rank, hub) for rank in range(world)]

    def start(self, op: Collective) -> Pending:
        self.started.append(op)
        return self._hub.join(self.rank, len(self.started) - 1, op)

    def abort(self, reason: str) -> None:
        self._hub.fail(reason)

    def failure(self) -> str | None:
        return self._hub.failed


def _carry_out(ops: Sequence[Collective]) -> str | None:
    """Carries out the ranks' collective; returns an error where they do not fit together."""
    # different collectives on different ranks would hang a real transport
    kinds = [(type(op).__name__, tuple(op.receive.whole.shape), op.receive.whole.dtype) for op in ops]
    if len(set(kinds)) > 1:
        return f"the ranks asked for different collectives: {kinds}"
    # all ranks are in one process: copy from each to each
    sent, received = [op.send.whole for op in ops], [op.receive.whole for op in ops]
    match ops[0]:
        case Sum():
            # all ranks get the same sum
            total = torch.stack(sent).sum(0)
            for tensor in received:
                tensor.copy_(total)
        case Gather():
            for tensor in received:
                torch.stack(sent, out=tensor)
        case AllToAll():
            for rank, tensor in enumerate(received):
                torch.stack([rows[rank] for rows in sent], out=tensor)
        case Broadcast(_, source):
            sources = [op.source for op in cast(Sequence[Broadcast], ops)]
            if len(set(sources)) > 1:
                return f"the ranks asked for broadcasts from different ranks: {sources}"
            for tensor in received:
                tensor.copy_(sent[source])
        case SendReceive():
            return _carry_from_rank_to_rank(cast(Sequence[SendReceive], ops))
    return None


def _carry_from_rank_to_rank(ops: Sequence[SendReceive]) -> str | None:
    for rank, op in enumerate(ops):
        # a real transport would wait for ever
        if op.source is not None and ops[op.source].target != rank:
            return f"rank {rank} waits for rank {op.source}, which sends elsewhere"
        if op.target is not None and ops[op.target].source != rank:
            return f"rank {rank} sends to rank {op.target}, which waits for another"
    for op in ops:
        if op.source is not None:
            op.receive.whole.copy_(ops[op.source].send.whole)
    return None
