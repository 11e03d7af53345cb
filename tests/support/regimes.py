"""Regimes that nothing runs, beside the runtime's own: the search holds in these as well."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradwire.schedule.costs import Array
from gradwire.schedule.regimes import GroupCosts, Regime, State
from gradwire.schedule.work import Interval, SlowedBackward, TimedGroup


@dataclass(frozen=True)
class OwnStream(Regime):
    """B: encoding and decoding each on a stream of its own, at no cost to backward. State: the encoder, the wire, the
    decoder."""

    dims = 3
    wire = 1

    def run(self, works: Sequence[TimedGroup], backward: SlowedBackward) -> list[Interval]:
        spans: list[Interval] = []
        encoder = wire = decoder = 0.0
        # each lane takes a group when it is free and the group is there
        for group, work in enumerate(works):
            starts = [max(encoder, backward.at(work.ready_s))]
            encoder = starts[0] + work.encode_s
            starts.append(max(wire, encoder))
            wire = starts[1] + work.wire_s
            starts.append(max(decoder, wire))
            decoder = starts[2] + work.decode_s
            ends = (encoder, wire, decoder)
            spans += [Interval(*lane, group) for lane in zip(("encode", "wire", "decode"), starts, ends, strict=True)]
        return spans

    def step(self, state: State, ready: Array | float, load: GroupCosts, backward_s: float) -> State:
        encoder = np.maximum(state[0], ready) + load.encode
        wire = np.maximum(state[1], encoder) + load.wire
        return encoder, wire, np.maximum(state[2], wire) + load.decode

    def finish(self, state: State, backward_s: float) -> Array:
        return state[2]

    def price(self, before: Array, after: Array, ready: Array, load: GroupCosts) -> Array:
        begun = after[:3].sum(0) - before[:3].sum(0)
        on_wire = after[1] + after[2] - before[2]
        return ready * begun + load.encode * (before[0] + begun) + load.wire * on_wire + load.decode * after[2]

    def balance(self, weight: float) -> Array:
        return np.array([1 - weight, weight, 0.0])


@dataclass(frozen=True)
class SideStream(Regime):
    """C: encode, wire and decode one after another on one side stream, as in Cupcake's code and in any communication
    hook that compresses on the stream of the collectives. State: that stream."""

    dims = 1
    wire = 0

    def run(self, works: Sequence[TimedGroup], backward: SlowedBackward) -> list[Interval]:
        spans: list[Interval] = []
        now = 0.0
        for group, work in enumerate(works):
            # one group after another: none is encoded while another is sent
            now = max(now, backward.at(work.ready_s))
            for lane, seconds in (("encode", work.encode_s), ("wire", work.wire_s), ("decode", work.decode_s)):
                spans.append(Interval(lane, now, now + seconds, group))
                now += seconds
        return spans

    def step(self, state: State, ready: Array | float, load: GroupCosts, backward_s: float) -> State:
        return (np.maximum(state[0], ready) + (load.encode + load.wire + load.decode),)

    def finish(self, state: State, backward_s: float) -> Array:
        return state[0]

    def price(self, before: Array, after: Array, ready: Array, load: GroupCosts) -> Array:
        return ready * (after[0] - before[0]) + (load.encode + load.wire + load.decode) * after[0]

    def balance(self, weight: float) -> Array:
        return np.ones(1)
