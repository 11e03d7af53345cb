"""Regimes: on which streams encoding, the wire and decoding run, and which therefore wait for which.

A regime is written twice, and tests compare the two. `run` plays groups through and records spans. `step` is
the same as a recurrence over states, vectorised for the search: a state is a tuple of numbers, mostly times; a larger
number never makes anything later end sooner. `price` follows from `step`, or from `least`, and serves lower bounds, see
`bounds`. Time zero is the start of backward. The wire carries one group at a time, in order.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gradwire.schedule.costs import Array
from gradwire.schedule.work import Interval, SlowedBackward, TimedGroup
from gradwire.script import script

State = tuple[Array, ...]


class GroupCosts(NamedTuple):
    """Many possible groups' seconds."""

    encode: Array
    wire: Array
    decode: Array


NO_LOAD = GroupCosts(np.zeros(1), np.zeros(1), np.zeros(1))


class Regime(ABC):
    """Rules by which groups are encoded, sent and decoded beside backward."""

    dims: int
    """How many numbers a state has."""
    wire: int
    """Which of the state's numbers is the wire."""
    slow: float = 0.0
    """The fraction of its speed that backward loses while the worker computes."""

    @abstractmethod
    def run(self, works: Sequence[TimedGroup], backward: SlowedBackward) -> list[Interval]:
        """The intervals in which each group is encoded, sent and decoded."""

    @abstractmethod
    def step(self, state: State, ready: Array | float, load: GroupCosts, backward_s: float) -> State:
        """The state after one more group, which is ready at `ready` in backward alone, of all its `backward_s`."""

    def least(self, state: State, ready: Array | float, load: GroupCosts, backward_s: float) -> State:
        """A convex lower bound on `step`, from which `price` follows."""
        return self.step(state, ready, load, backward_s)

    @abstractmethod
    def finish(self, state: State, backward_s: float) -> Array:
        """The time at which all means are in place."""

    def settle(self, state: State, ready: Array | float) -> State:
        """The largest state that is equivalent to this one, if the next group is not ready before `ready`."""
        return self.step(state, ready, NO_LOAD, 0.0)

    @abstractmethod
    def price(self, before: Array, after: Array, ready: Array, load: GroupCosts) -> Array:
        """The seconds that each group adds to a weighted mean of the state's numbers, at least (see `bounds`).

        `before` and `after` (dims, groups) are the weights of the state's numbers ahead of the group and behind it,
        `ready` (groups,) when its gradients are there. For each group the weights sum to 1 at most; what is missing is
        the weight of backward, which no group delays."""

    @abstractmethod
    def balance(self, weight: float) -> Array:
        """Shares (dims,) of which `weight` is the wire's, and the rest that of the stream that computes."""

    def due(self, shares: Array, tail: bool) -> Array:
        """`shares` (dims, n) with the weights filled in that follow from the others, such as that of decoding which is
        still due; `tail` says whether another group may follow the last."""
        return shares

    def last(self, shares: Array, backward_s: float) -> float:
        """A lower bound on the time from the mean of the last state's numbers, weighted by `shares` (dims,), to the
        end."""
        return 0.0


WORKER, WIRE, DUE, LATE, WORK = range(5)
"""The numbers of a `Worker`'s state."""


@dataclass(frozen=True)
class Worker(Regime):
    """The runtime's own order. One worker, a thread or a CUDA stream, encodes a group and starts its collective, then
    waits for the collective of the group before and decodes that, so that two are in flight.

    The worker and backward share the processor: while both compute, each loses the share `contention` of its speed, at
    most a half. A compressor with several rounds counts as one collective that begins when its last one can.

    The state has five numbers, in seconds:

        WORKER    when the worker is free
        WIRE      when the wire is free
        DUE       the decoding that is still due, of the group before
        LATE      by how much backward is late
        WORK      when the worker would be free if backward had not slowed it down
    """

    contention: float = 0.0
    dims = 5
    wire = WIRE

    def __post_init__(self) -> None:
        if not 0 <= self.contention <= 0.5:
            raise ValueError(f"contention={self.contention} is the share of its speed that each of two loses: 0 to 0.5")

    @property
    def slow(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.contention

    @property
    def lag(self) -> float:
        """By how many seconds backward and the worker are later for each of the other's that they share."""
        return self.contention / (1 - self.contention)

    def run(self, works: Sequence[TimedGroup], backward: SlowedBackward) -> list[Interval]:
        spans: list[Interval] = []
        now = wire = 0.0
        backward_s = max(work.ready_s for work in works)

        def compute(lane: str, start: float, seconds: float, group: int) -> float:
            # while backward goes on, both are slower
            shared = min(seconds, max(0.0, backward.at(backward_s) - start))
            end = start + seconds + self.lag * shared
            backward.busy.append((start, end))
            spans.append(Interval(lane, start, end, group))
            return end

        arrived: dict[int, float] = {}
        # the runtime's script: a group, then the one before it one turn on
        for group, turn in script(range(len(works)), [1] * len(works)):
            work = works[group]
            if turn:
                # decode what has arrived
                now = compute("decode", max(now, arrived[group]), work.decode_s, group)
                continue
            # encode as soon as the gradients are there
            now = compute("encode", max(now, backward.at(work.ready_s)), work.encode_s, group)
            # send as soon as the wire is free
            begun = max(wire, now)
            arrived[group] = wire = begun + work.wire_s
            spans.append(Interval("wire", begun, wire, group))
        return spans

    def step(self, state: State, ready: Array | float, load: GroupCosts, backward_s: float) -> State:
        worker, wire, due, late, work = state
        work = self._worked(work, late, ready, load.encode + due)
        # encode
        encoded = self._computed(np.maximum(worker, ready + late), load.encode, backward_s + late)
        late = late + self.lag * load.encode
        # send
        sent = np.maximum(wire, encoded) + load.wire
        # decode the group before
        worker = self._computed(np.maximum(encoded, wire), due, backward_s + late)
        # too much once backward has ended, when the worker is later still: no matter
        late = late + self.lag * due
        work = np.maximum(work, worker - self.lag * backward_s)
        return worker, sent, load.decode + 0 * worker, late, np.maximum(work, worker - self.lag * (worker - late))

    def _computed(self, start: Array, seconds: Array, backward_ends: Array) -> Array:
        """The time at which the worker is done, if it begins at `start`."""
        return start + seconds + self.lag * np.minimum(seconds, np.maximum(0, backward_ends - start))

    def _worked(self, work: Array, late: Array, ready: Array | float, computed: Array) -> Array:
        """The last of the state's numbers after so much more was computed, not before `ready`."""
        return np.maximum(work, ready - self.lag * ready + late) + computed

    def least(self, state: State, ready: Array | float, load: GroupCosts, backward_s: float) -> State:
        worker, wire, due, late, work = state
        # as in `step`, without the slowdown
        encoded = np.maximum(worker, ready + late) + load.encode
        sent = np.maximum(wire, encoded) + load.wire
        computed = load.encode + due
        work = self._worked(work, late, ready, computed)
        return np.maximum(encoded, wire) + due, sent, load.decode + 0 * worker, late + self.lag * computed, work

    def finish(self, state: State, backward_s: float) -> Array:
        free = np.maximum(np.maximum(state[WORKER], state[WIRE]), state[WORK] + self.lag * backward_s)
        return free + state[DUE]

    def settle(self, state: State, ready: Array | float) -> State:
        worker = np.maximum(state[WORKER], ready + state[LATE])
        return worker, np.maximum(state[WIRE], worker), *state[DUE:]

    def price(self, before: Array, after: Array, ready: Array, load: GroupCosts) -> Array:
        # each kind of second is weighed by what it delays: see `step`
        entered = after[WORK] - before[WORK]
        begun = before[LATE] - after[LATE] - entered
        computed = before[WORKER] + begun + self.lag * after[LATE] + after[WORK]
        return (
            ready * (begun + entered - self.lag * entered)
            + load.encode * computed
            + load.wire * after[WIRE]
            + load.decode * after[DUE]
        )

    def balance(self, weight: float) -> Array:
        return np.array([1 - weight, weight, 0.0, 0.0, 0.0])

    def due(self, shares: Array, tail: bool) -> Array:
        decoding = shares[WORKER] + self.lag * shares[LATE] + shares[WORK]
        least = np.minimum.accumulate(np.append(decoding[1:], decoding[-1] if tail else 1.0)[::-1])[::-1]
        return np.stack([shares[WORKER], shares[WIRE], least, shares[LATE], shares[WORK]])

    def last(self, shares: Array, backward_s: float) -> float:
        return float(shares[WORK]) * self.lag * backward_s
