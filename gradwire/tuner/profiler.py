"""The profiler: costs of a step's compute and of each way to send a group, measured on the job's own network.

It runs on every rank's worker at the end of the same step, when nothing else is under way, and every measurement is
made together: all ranks reduce the same group, then all ranks' seconds are gathered to a table. So decisions by a
table, such as how often to repeat, are the same on all ranks.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from math import inf
from pathlib import Path
from statistics import fmean, median
from threading import get_native_id
from time import perf_counter
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from gradwire.collective import HOST
from gradwire.controllers.requests import ProfileRequest
from gradwire.ops.gradients import Gradients
from gradwire.ops.host import computing_threads, kind_of, synchronize
from gradwire.plans import Group
from gradwire.process_limits import quota
from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.exchanges.plan_exchanges import exchange_of
from gradwire.runtime.job_options import Profiler
from gradwire.runtime.trace import Trace
from gradwire.schedule import Affine, Candidate, CostTable, Profile, SlotTime, Timeline, theil_sen
from gradwire.schedule.sent_bytes import STEADY, wire_bytes
from gradwire.slots import Slot
from gradwire.transports import Mesh
from gradwire.tuner import rehearsal
from gradwire.tuner.samples import samples_of

MOST_REPEATS, BUDGET_S = 9, 0.25
"""How often a measurement is repeated at most, and the seconds that it may take."""
MOST_STEPS = 64
"""Of a period that are measured."""
_WIRE = 2
"""The place of the wire's seconds in `_reduce`'s."""


def profiler_for(slots: Sequence[Slot], mesh: Mesh, device: torch.device) -> Profiler:
    """The profiler that answers a controller's requests, on all ranks together, between steps."""

    def profile(request: ProfileRequest, trace: Trace, gradients: Sequence[Mapping[str, Tensor]]) -> Profile:
        # compute: traced steps, slot by slot on the slowest rank
        planned = set(request.plan.names)
        trained = [slot for slot in slots if slot.name in planned]
        times = ComputeTimes.of(trace.timelines(), trained).on_slowest(mesh, device)
        ordered = sorted(trained, key=lambda slot: times.ready_s[slot.name])
        # network: every way at several sizes, all ranks together
        pieces = samples_of(ordered)
        bare = [replace(way, rule="") for way in request.ways]
        ways = list(dict.fromkeys(bare))  # those of several rules once
        sampled = {way: [measure(way, own, mesh, device) for own in pieces] for way in ways}
        # rehearsals, each rank alone
        efficiency = dict(zip(ways, _efficiencies(ways, gradients, trained, mesh, device), strict=True))
        samples, efficiencies = [sampled[way] for way in bare], [efficiency[way] for way in bare]
        candidates = [_candidate(*each) for each in zip(request.ways, samples, efficiencies, strict=True)]
        return Profile(
            slots=tuple(SlotTime(s.name, tuple(s.shape), times.ready_s[s.name], s.pairs, s.cut) for s in ordered),
            forward_s=times.forward_s,
            optimizer_s=times.optimizer_s,
            candidates=tuple(candidates),
            collectives=_collectives(request.ways, samples),
            ranks=mesh.averaged,
            gpus_per_host=mesh.host.world if mesh.host else 1,
            local=_local(samples) if mesh.host else {},
            device=kind_of(device),
            contention=contention(mesh, device),
        )

    return profile


@dataclass(frozen=True)
class ComputeTimes:
    """Seconds of a step's compute."""

    ready_s: dict[str, float]
    """Of each slot, after backward began."""
    forward_s: float
    optimizer_s: float

    @classmethod
    def of(cls, timelines: Sequence[Timeline], slots: Sequence[Slot]) -> "ComputeTimes":
        """The medians over the steps."""
        # the moments of all traced steps
        ready: dict[str, list[float]] = {slot.name: [] for slot in slots}
        forward: list[float] = []
        optimizer: list[float] = []
        # one entry for each traced step
        for spans in [step.spans for step in timelines]:
            began = max(span.end_s for span in spans if span.lane == "forward")
            forward.append(began)
            optimizer.append(sum(s.end_s - s.start_s for s in spans if s.lane == "optimizer"))
            for span in spans:
                if span.lane == "backward" and span.slots and span.slots[0] in ready:  # not a sparse gradient
                    ready[span.slots[0]].append(span.end_s - began)
        # a parameter may get no gradient
        last_s = max(median(seconds) for seconds in ready.values() if seconds)
        ready_s = {name: median(seconds) if seconds else last_s for name, seconds in ready.items()}
        return cls(ready_s, median(forward), median(optimizer))

    def on_slowest(self, mesh: Mesh, device: torch.device) -> "ComputeTimes":
        """The slowest rank's, slot by slot."""
        numbers = [self.forward_s, self.optimizer_s, *self.ready_s.values()]
        forward_s, optimizer_s, *ready_s = slowest(numbers, mesh, device)
        return ComputeTimes(dict(zip(self.ready_s, ready_s, strict=True)), forward_s, optimizer_s)


@dataclass(frozen=True)
class ReductionTimes:
    """Seconds of one reduction alone on the network."""

    elements: int
    wire_bytes: int
    """Sent by each rank."""
    encode_s: float
    wire_s: float
    decode_s: float
    host_s: float
    """Of collectives inside the host."""


def measure(way: Group, slots: Sequence[Slot], mesh: Mesh, device: torch.device) -> ReductionTimes:
    """Reduces noise as large as the slots, as often as is possible in a quarter of a second, in steps after warm-ups.
    Each step of the compressor's period counts with its median, and the result is their mean, the same on all ranks.
    Computing takes as long as on the slowest rank; a collective as long as on the rank that came last, for the others
    waited for it, and as among the slowest ranks that hold the same part of the model. All ranks call this together."""
    # a group of these slots, and noise for its gradient
    exchange = exchange_of(replace(way, slots=tuple(slot.name for slot in slots)), slots, mesh, device)
    layout = exchange.stored.layout
    generator = torch.Generator(device).manual_seed(mesh.rank)
    noise = torch.randn(layout.numel, generator=generator, dtype=torch.float32, device=device).to(slots[0].dtype)
    # a period once, to know how often fits
    period, steps = min(way.compressor.period, MOST_STEPS), count(STEADY)
    first = [sum(_reduce(exchange, noise, mesh, device, step)) for step in islice(steps, period)]
    first_s = slowest([sum(first)], mesh, device)[0]
    repeats = min(MOST_REPEATS, max(1, int(BUDGET_S / first_s)))
    timed = islice(steps, repeats * period)
    mine = [second for step in timed for second in _reduce(exchange, noise, mesh, device, step)]
    if not exchange.compresses:
        # another rank of the host sends
        mine[_WIRE::4] = [inf] * repeats * period
    # compute counts by the slowest rank, a collective by the one that came last
    table = _table(mine, mesh, device).reshape(mesh.ranks, repeats, period, 4)
    encode_s, decode_s = table[..., :_WIRE].amax(0).quantile(0.5, dim=0).mean(0).tolist()
    wire_s, host_s = table[mesh.same_parts, ..., _WIRE:].amin(1).amax(0).quantile(0.5, dim=0).mean(0).tolist()
    return ReductionTimes(layout.numel, wire_bytes(way, layout, mesh.replica.world), encode_s, wire_s, decode_s, host_s)


def _reduce(
    exchange: GroupExchange, noise: Tensor, mesh: Mesh, device: torch.device, step: int
) -> tuple[float, float, float, float]:
    """Seconds of encoding, of decoding, on the wire, and inside the host."""
    wire_s = host_s = encode_s = decode_s = 0.0
    # gradients of noise, and the exchange as in a step
    gradients = Gradients.of_vector(exchange.stored.layout, noise.clone())
    now = _now(device)
    for op in exchange.run(GroupInput(gradients), step):
        started = ended = _now(device)
        if op is not None:
            mesh.run(op)
            ended = _now(device)
        # encoding ends where the next collective starts, decoding where the mean is sent on inside the host
        if wire_s and op is not None and op.axis == HOST:
            decode_s += started - now
        else:
            encode_s += started - now
        if op is not None and op.axis == HOST:
            host_s += ended - started
        else:
            wire_s += ended - started
        now = ended
    # the mean is written after the last collective
    decode_s += _now(device) - now
    exchange.commit()
    return encode_s, decode_s, wire_s, host_s


def _now(device: torch.device) -> float:
    synchronize(device)
    return perf_counter()


def slowest(numbers: Sequence[float], mesh: Mesh, device: torch.device) -> list[float]:
    """The largest of all ranks' `numbers`, one by one, on all ranks."""
    return _table(numbers, mesh, device).amax(0).tolist()


def _table(numbers: Sequence[float], mesh: Mesh, device: torch.device) -> Tensor:
    """All ranks' n numbers, (ranks, n), on all ranks."""
    return mesh.gather(torch.tensor(numbers, dtype=torch.float64, device=device))


def contention(mesh: Mesh, device: torch.device) -> float:
    """The largest share of its speed that backward loses on a rank while the worker computes: the share that one thread
    more takes from threads that share their cores fairly, half of it at most; none on a GPU."""
    threads = computing_threads(device)
    if not threads:
        return 0.0
    # workers with the same boot id are on this machine; one that plays several ranks counts once
    machine = float(crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()))
    allowed, group = quota()
    affinity = os.sched_getaffinity(0)
    bound = float(crc32(str(sorted(affinity)).encode()))
    mine = [machine, float(group), bound, float(os.stat("/proc/self/ns/pid").st_ino), float(get_native_id())]
    workers = _table(mine, mesh, device).unique(dim=0)
    here = workers[workers[:, 0].eq(machine)]
    # workers of one control group share its quota, workers that are bound to the same cores share these
    in_group, on_cores = (int(here[:, i].eq(own).sum()) for i, own in ((1, float(group)), (2, bound)))
    cores = min(len(affinity) / on_cores, allowed / in_group)
    # threads share the cores fairly
    lost = max(0.0, 1 - max(cores, threads) / (threads + 1))
    return slowest([lost], mesh, device)[0]


def _efficiencies(
    ways: Sequence[Group],
    gradients: Sequence[Mapping[str, Tensor]],
    slots: Sequence[Slot],
    mesh: Mesh,
    device: torch.device,
) -> list[float]:
    """The efficiency of each way, averaged over the ranks, which may hold different parts of the model."""
    # samples may be smaller than the matrices; low ranks shrink with them
    sides = {slot.name: min(slot.matrix) for slot in slots}
    shrunk = [min(each.shape) / sides[name] for step in gradients[:1] for name, each in step.items()]
    by = min(1.0, fmean(shrunk)) if shrunk else 1.0
    return _table([rehearsal.efficiency(way, gradients, by) for way in ways], mesh, device).mean(0).tolist()


def _candidate(way: Group, samples: Sequence[ReductionTimes], efficiency: float) -> Candidate:
    sizes = np.array([float(sample.elements) for sample in samples])
    encode = np.array([sample.encode_s for sample in samples])
    decode = np.array([sample.decode_s for sample in samples])
    return Candidate(way, CostTable.of(sizes, encode), CostTable.of(sizes, decode), efficiency)


def _collectives(ways: Sequence[Group], samples: Sequence[Sequence[ReductionTimes]]) -> dict[str, Affine | CostTable]:
    """Seconds against bytes sent, by communicator: from codecs, whose messages are large and small, where there are."""
    costs: dict[str, Affine | CostTable] = {}
    for name in dict.fromkeys(way.communicator.called for way in ways):
        # codecs have payloads of all sizes; others' sizes are few
        own = [(way, row) for way, row in zip(ways, samples, strict=True) if way.communicator.called == name]
        codecs = [(way, row) for way, row in own if not way.compressor.own_collectives]
        # the cost of one round
        costs[name] = _line([
            (sample.wire_bytes / way.compressor.rounds, sample.wire_s / way.compressor.rounds)
            for way, row in codecs or own
            for sample in row
        ])  # fmt: skip
    return costs


def _local(samples: Sequence[Sequence[ReductionTimes]]) -> dict[str, Affine | CostTable]:
    """Seconds inside a host against bytes of the gradient; the two collectives share them."""
    cost = _line([(4 * sample.elements, sample.host_s / 2) for row in samples for sample in row])
    return {"sum": cost, "broadcast": cost}


def _line(points: Sequence[tuple[float, float]]) -> Affine:
    """Through measured (bytes, seconds); through the origin where all sent the same number of bytes."""
    sizes, seconds = torch.tensor(points, dtype=torch.float64, device="cpu").T
    if sizes.unique().numel() > 1:
        return theil_sen(sizes.numpy(), seconds.numpy())
    nbytes, longest_s = float(sizes[0]), float(seconds.max())
    return Affine(per_unit=longest_s / nbytes) if nbytes else Affine(longest_s)
