"""The regime of Cupcake's paper."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradwire.schedule.costs import Array
from gradwire.schedule.regimes import GroupCosts, Regime, State
from gradwire.schedule.work import Interval, SlowedBackward, TimedGroup


@dataclass(frozen=True)
class ComputeStream(Regime):
    """A: encoding interrupts backward, decoding follows it: all on the stream that runs backward, as in Cupcake's
    model (Wang et al., MLSys 2023), which leaves decoding out. State: seconds of encoding so far, the wire, the last
    decode, seconds of encoding and decoding."""

    dims = 4
    wire = 1
    slow = 1.0

    def run(self, works: Sequence[TimedGroup], backward: SlowedBackward) -> list[Interval]:
        spans: list[Interval] = []
        free = wire = 0.0
        sent: list[float] = []
        # encode as soon as a group is ready, which interrupts backward; send in order
        for group, work in enumerate(works):
            start = max(backward.at(work.ready_s), free)
            free = start + work.encode_s
            backward.busy.append((start, free))
            begun = max(wire, free)
            wire = begun + work.wire_s
            sent.append(wire)
            spans += [Interval("encode", start, free, group), Interval("wire", begun, wire, group)]
        # decode when backward and all encoding are over
        free = max(free, backward.at(max(work.ready_s for work in works)))
        for group, (work, arrived) in enumerate(zip(works, sent, strict=True)):
            start = max(free, arrived)
            free = start + work.decode_s
            spans.append(Interval("decode", start, free, group))
        return spans

    def step(self, state: State, ready: Array | float, load: GroupCosts, backward_s: float) -> State:
        encoded, wire, decoded, computed = state
        encoded = encoded + load.encode
        wire = np.maximum(wire, ready + encoded) + load.wire
        return encoded, wire, np.maximum(decoded, wire) + load.decode, computed + load.encode + load.decode

    def finish(self, state: State, backward_s: float) -> Array:
        return np.maximum(state[2], backward_s + state[3])

    def price(self, before: Array, after: Array, ready: Array, load: GroupCosts) -> Array:
        sent = before[0] - after[0]
        # each kind of second is weighed by what it delays
        on_wire = sent + before[1]
        return (
            ready * sent
            + load.encode * (before[0] + before[3])
            + load.wire * on_wire
            + load.decode * (after[2] + before[3])
        )

    def balance(self, weight: float) -> Array:
        return np.array([0.0, weight, 0.0, 1 - weight])

    def last(self, shares: Array, backward_s: float) -> float:
        return float(shares[3]) * backward_s
