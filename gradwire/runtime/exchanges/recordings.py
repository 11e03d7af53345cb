"""Recorded turns: what a group launches between two collectives is recorded once, and replayed in later steps.

    run         worker: a step of a group. Where its key is recorded, its turns are replayed; else they are computed,
                and the key is noted
    step_ended  worker: once the keys of a step have all come before, what was noted is due
    record      worker, while the thread that trains waits in `open_step`: all keys of all groups are recorded at once.
                Nothing is computed by that, and no data is needed

A *key* is all that a group's launches depend on, where its compressor, memory and communicator are `recordable`: the
phase of the step, which halves of its double buffers are the present state, and the addresses of its gradients and of
the loss's scale. Steps without such a key are computed, such as one with an absent gradient. Zeroing before a step,
collectives, timing events and commits are not recorded.
"""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from gradwire.collective import Collective
from gradwire.compressors import DoubleBuffer, Reduction
from gradwire.compressors.context import SmallBuffers
from gradwire.ops.vectors import Scalar
from gradwire.ops.workspace import scratch_on
from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.exchanges.replica_exchange import ReplicaExchange
from gradwire.runtime.worker.executor import Executor
from gradwire.runtime.worker.graphs import Graphs

_log = logging.getLogger("gradwire")

MOST = 32
"""Keys that are recorded of a group; a graph is some 100 KB on a GPU."""
TRIES = 3
"""Recordings of a group that are thrown away for having made buffers, before it is given up."""
LAST = object()
"""Marks a step's last turn, which no collective follows."""


@dataclass(frozen=True)
class PendingRecording:
    """A step of some key, with all that its turns need to be recorded later."""

    given: GroupInput
    """The group's input."""
    step: int
    """The number of the step."""
    flat: Mapping[str, DoubleBuffer]
    """The double buffers of its state of gradient size, by kind."""
    small: Mapping[str, SmallBuffers]
    """The double buffers of its small state, by name."""


@dataclass(frozen=True)
class Recorded:
    """The turns of a key, each with the collective that follows it, and the state that they stage."""

    turns: Sequence[tuple[Callable[[], None], Collective | object | None]]
    """A function that replays the turn, and the collective that follows; None where this rank takes no part."""
    staged: Sequence[str]
    """The names of the small state that it writes."""


class GroupRecordings:
    """The recorded turns of one group."""

    fresh = False
    """The last step had a new key."""
    why_not = ""
    """Why it is never recorded."""
    why_computed = ""
    """Why the last step was computed; "" where it had a key."""

    def __init__(self, exchange: GroupExchange, make_graphs: Callable[[], Graphs], looks: Callable[[], bool]) -> None:
        # only a `ReplicaExchange` is ever recorded: see `_why_never`
        self._exchange = cast(ReplicaExchange, exchange)
        self._make_graphs, self._looks = make_graphs, looks
        self.why_not = _why_never(exchange)
        self._tries = 0
        self.clear()

    def clear(self) -> None:
        """Drops all recordings."""
        self._graphs = self._make_graphs()
        self._seen: dict[Hashable, PendingRecording] = {}
        self._recorded: dict[Hashable, Recorded] = {}
        self._kept: list[object] = []
        self.fresh = False

    @property
    def waits(self) -> bool:
        """Whether keys were noted that are not recorded."""
        return len(self._seen) > len(self._recorded)

    @property
    def is_to_come(self) -> bool:
        """Whether some of its steps are still computed each time, and may be recorded later."""
        return not self.why_not and (self.waits or not self._recorded)

    @property
    def status(self) -> str:
        """Why it is not recorded; "" where it is."""
        return "" if self._recorded else self.why_not or self.why_computed or "its steps have not all come yet"

    def run(self, given: GroupInput, step: int) -> Reduction:
        """See `GroupExchange.run`."""
        # replay, or compute and note the key
        key, self.fresh = self._key(given, step), False
        if key is None:
            return self._exchange.run(given, step)
        if (recorded := self._recorded.get(key)) is not None:
            return self._replay(recorded, given, step)
        self._note(key, given, step)
        return self._exchange.run(given, step)

    def record(self) -> None:
        """Records what was noted."""
        # buffers as they are, which recording must leave
        context = self._exchange.context
        rooms = context.buffers, context.scratch, scratch_on(context.device)
        before = [room.contents() for room in rooms]
        try:
            # record every key that was noted, without computing anything
            for key in self._seen.keys() - self._recorded.keys():
                self._recorded[key] = self._record(self._seen[key])
        except Exception as error:
            self.why_not = f"recording it failed: {type(error).__name__}: {error}"
            _log.warning("%s is computed at every step: %s", self._exchange, self.why_not)
            self.clear()
        # graphs still write there when larger buffers take their place
        self._kept.append(before)
        made = [room.restore(contents) for room, contents in zip(rooms, before, strict=True)]
        if any(made) and not self.why_not:
            # nothing was computed into the new buffers
            self._tries += 1
            self.why_not = "its steps make new buffers" if self._tries == TRIES else ""
            self.clear()

    def _key(self, given: GroupInput, step: int) -> Hashable | None:
        """The key of a step; None where it is computed in any case, by `why_not` or `why_computed`."""
        self.why_computed = "" if self.why_not else self._why_computed(given)
        if self.why_not or self.why_computed:
            return None
        exchange = self._exchange
        # what a recording fixes: which half, phase and memory its kernels read and write
        return (
            exchange.group.compressor.phase(step), exchange.group.communicator.phase(step, exchange.context.world),
            *map(_place, (given.scale, given.share, given.float_residual)), id(given.gradients), *exchange.stored.sides,
        )  # fmt: skip

    def _why_computed(self, given: GroupInput) -> str:
        """Why this step is computed even where its key is recorded; "" where it is replayed."""
        # kernels of a recording read the buffers of a whole step
        if given.given_up or given.absent:
            return "a gradient was absent"
        if given.gradients is not self._exchange.stored.fixed:
            return "its gradients lie elsewhere at every step"
        if self._exchange.stored.pending:
            return "it sends what an earlier plan has left"
        return "the controller looks at its gradients" if self._looks() else ""

    def _note(self, key: Hashable, given: GroupInput, step: int) -> None:
        """Keeps the first step of a key, to be recorded."""
        before = self._seen.get(key)
        self.fresh = before is None or before.step == step
        if before is None:
            stored = self._exchange.stored
            self._seen[key] = PendingRecording(given, step, stored.flat, dict(stored.slot_state.buffers))
        # a group whose keys never repeat would only fill memory
        if len(self._seen) > MOST:
            self.why_not = f"more than {MOST} of its steps differ"
            self.clear()

    def _record(self, occasion: PendingRecording) -> Recorded:
        exchange = self._exchange
        context, slots = exchange.context, exchange.context.slots
        # as if this were the step of the occasion: its state, its halves
        exchange.enter(occasion.given, occasion.step)
        now, slots.buffers = slots.buffers, dict(occasion.small)
        context.flat = dict(occasion.flat)
        try:
            # record turn by turn; collectives are kept, and not run
            reduction, turns = exchange.turns(occasion.given), []
            while not turns or turns[-1][1] is not LAST:
                turns.append(self._graphs.record(lambda: next(reduction, LAST)))
            return Recorded(turns, slots.staged)
        finally:
            # as before: what the turns staged was never computed
            slots.forget()
            slots.buffers = now

    def _replay(self, recorded: Recorded, given: GroupInput, step: int) -> Reduction:
        exchange = self._exchange
        # zero the flag, count the step: that is not recorded
        exchange.begin(given, step)
        # replay turn by turn, with the collectives between
        for replay, op in recorded.turns:
            replay()
            if op is not LAST:
                yield op  # pyright: ignore[reportReturnType]
        # the small state is staged, as if the turns had written it
        exchange.context.slots.written(*recorded.staged)


class Recordings:
    """The recorded turns of a job's groups."""

    due = False
    """Keys were noted, and the last step has brought no new one."""

    def __init__(self, executor: Executor, looks: Callable[[], bool]) -> None:
        self._executor, self._looks = executor, looks
        self._groups: list[GroupRecordings] = []

    def follow(self, exchanges: Sequence[GroupExchange]) -> None:
        """Drops all recordings, for other groups are reduced from now on."""
        self.due, self._groups = False, []
        if make_graphs := self._executor.graphs():
            self._groups = [GroupRecordings(exchange, make_graphs, self._looks) for exchange in exchanges]

    def clear(self) -> None:
        """Drops all recordings, for gradients or state lie elsewhere from now on."""
        self.due = False
        for group in self._groups:
            group.clear()

    def run(self, exchange: GroupExchange, given: GroupInput, step: int) -> Reduction:
        """See `GroupExchange.run`."""
        return self._groups[exchange.index].run(given, step) if self._groups else exchange.run(given, step)

    def step_ended(self, exchanges: Sequence[GroupExchange]) -> None:
        """All groups of a step are reduced."""
        if self._groups:
            fresh = any(self._groups[exchange.index].fresh for exchange in exchanges)
            self.due = not fresh and any(group.waits for group in self._groups)

    @property
    def are_to_come(self) -> bool:
        """Whether this step takes longer than later ones, for some group is still to be recorded."""
        return any(group.is_to_come for group in self._groups)

    def record(self) -> None:
        """Records what was noted; between two steps, while the thread that trains waits."""
        self.due = False
        for group in self._groups:
            if group.waits:
                group.record()

    def __str__(self) -> str:
        """Which groups are recorded, and why the others are not; "" where nothing is, as on a CPU."""
        if not self._groups:
            return ""
        why = {index: group.status for index, group in enumerate(self._groups) if group.status}
        each = [f"group {index}: {reason}" for index, reason in why.items()]
        return "; ".join([f"{len(self._groups) - len(why)} of {len(self._groups)} groups", *each])


def _place(number: Scalar | None) -> object:
    """The address of a number that kernels read from memory; a plain number itself, which a recording fixes."""
    return number.data_ptr() if isinstance(number, Tensor) else number


def _why_never(exchange: GroupExchange) -> str:
    """Why a group's turns are never recorded; "" where they may be."""
    if exchange.why_not_recorded:
        return exchange.why_not_recorded
    group = exchange.group
    other = [part for part in (group.compressor, group.memory, group.communicator) if not part.recordable]
    return f"{other[0]} is not recordable" if other else ""
