"""The profiler's samples of a model, and what follows for larger and smaller groups."""

import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import gradwire as gw
from gradwire.collective import HOST, REPLICA, SHARD, Collective, Message, Sum
from gradwire.controllers.requests import ProfileRequest
from gradwire.plans import uniform
from gradwire.schedule import Profile, Timeline
from gradwire.schedule.sent_bytes import STEADY, wire_bytes
from gradwire.schedule.timeline import Span
from gradwire.slots import Layout, Slot
from gradwire.tuner import profiler
from gradwire.tuner.profiler import ComputeTimes, ReductionTimes, profiler_for
from tests.support.harness import CPU, hosts, raising, together

WAYS = (
    gw.Group((), gw.FP32(), gw.NoMemory(), gw.AllReduce()),
    gw.Group((), gw.Quantized(8), gw.Residual(), gw.AllGather()),
)
ENCODE_S, WIRE_S = 1e-9, 8e-9
"""Seconds of an element, and of a byte on a link of 1 Gbit/s, beside 0.1 ms each."""
SHARED = 0.25
"""Of its speed that backward loses while the worker computes."""
MODELS = {
    "a large first layer": [(1_000, 4_096), (4_096,), (64, 64), (128, 64), (64, 32)],
    "equal large matrices": [(2_048, 2_048)] * 4,
    "one matrix": [(3_000, 3_000)],
    "one long row": [(1, 3_000_000)],
    "vectors alone": [(3_000_000,), (100,)],
    "GPT-2": [(768, 3_072), (3_072,), (3_072, 768), (768, 768), (768, 2_304), (50_257, 768)],
    "small": [(8, 8), (8,)],
    "tiny": [(1, 2)],
}


def measured(monkeypatch: pytest.MonkeyPatch, shapes: list[tuple[int, ...]]) -> tuple[Profile, list[list[Slot]]]:
    """The profile of a model on two ranks whose links and cores are known, and the samples that were measured."""
    slots, samples = [Slot.of(f"{i}", torch.empty(shape, device="meta")) for i, shape in enumerate(shapes)], []

    def measure(way: gw.Group, own: list[Slot], mesh: gw.Mesh, device: torch.device) -> profiler.ReductionTimes:
        layout = Layout(tuple(own))
        nbytes = wire_bytes(way, layout, 2)
        computed_s = 1e-4 + ENCODE_S * layout.numel
        samples.append(list(own))
        return profiler.ReductionTimes(layout.numel, nbytes, computed_s, 1e-4 + WIRE_S * nbytes, computed_s, 0.0)

    monkeypatch.setattr(profiler, "measure", measure)
    monkeypatch.setattr(profiler, "contention", lambda mesh, device: SHARED)
    times = ComputeTimes({slot.name: 0.001 * i for i, slot in enumerate(slots)}, 0.1, 0.1)
    monkeypatch.setattr(ComputeTimes, "of", lambda timelines, slots: times)
    trace: Any = SimpleNamespace(timelines=list)
    request = ProfileRequest(uniform(slots, gw.FP32()), WAYS, 1)
    meshes = [gw.Mesh.of(each) for each in gw.Threads.group(2)]
    answers = raising(together(2, lambda rank: profiler_for(slots, meshes[rank], CPU)(request, trace, [])))
    assert answers[0] == answers[1]
    assert answers[0].contention == SHARED
    return answers[0], samples


@pytest.mark.parametrize("model", MODELS)
def test_seconds_grow_with_elements_whatever_the_models_matrices(monkeypatch: pytest.MonkeyPatch, model: str):
    """Where the first matrix was large one size was measured, and every cost was constant."""
    profile, _ = measured(monkeypatch, MODELS[model])
    for candidate, per_element in zip(profile.candidates, (4, 1), strict=True):
        sizes = np.array([1e6, 1e8])
        for cost, truth in (
            (candidate.encode, ENCODE_S * sizes),
            (profile.collectives[candidate.way.communicator.called], WIRE_S * per_element * sizes),
        ):
            size = sizes if cost is candidate.encode else per_element * sizes
            assert np.all(cost(size) >= 0.9 * truth)
            if model not in ("small", "tiny"):
                np.testing.assert_allclose(cost(size), truth + 1e-4, rtol=0.15)


def test_a_measurement_leaves_torchs_random_numbers_to_the_training():
    """Dropout drew others under `Auto` than under plain DDP."""
    slots, meshes = [Slot.of("w", torch.empty(8, 8))], [gw.Mesh.of(each) for each in gw.Threads.group(2)]
    before = torch.get_rng_state()
    for way in WAYS:
        raising(together(2, lambda rank, way=way: profiler.measure(way, slots, meshes[rank], CPU)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("compressor", [gw.ACPSGD(2, start_step=1000), gw.Interleaved(period=20), gw.FP32()])
def test_seconds_are_the_mean_over_a_period_once_warm_ups_are_over(
    monkeypatch: pytest.MonkeyPatch, compressor: gw.Compressor
):
    """They were those of step 0 alone: of ACP-SGD's dense steps before `start_step`, of one of two interleaved."""

    def reduce(exchange: Any, noise: Any, mesh: Any, device: Any, step: int) -> tuple[float, ...]:
        assert step >= STEADY
        return 1.0 + step % compressor.period, 4.0, 8.0 + step % compressor.period, 0.0

    monkeypatch.setattr(profiler, "_reduce", reduce)
    way = gw.Group((), compressor, gw.Residual(), gw.AllReduce() if compressor.summable else gw.AllGather())
    times = profiler.measure(way, [Slot.of("w", torch.empty(8, 8))], gw.Mesh.of(gw.Threads.group(1)[0]), CPU)
    more_s = (compressor.period - 1) / 2
    assert (times.encode_s, times.decode_s, times.wire_s) == (1.0 + more_s, 4.0, 8.0 + more_s)


def test_encoding_ends_where_the_wire_begins_and_decoding_begins_where_it_ends(monkeypatch: pytest.MonkeyPatch):
    """Also where the collectives of a host lie around those between hosts, as on the rank that leads a group."""
    now, message = [0.0], Message.plain(torch.empty(1))

    def run(given: Any, step: int) -> Iterator[Collective | None]:
        for axis, computed_s in ((HOST, 1.0), (REPLICA, 2.0), (None, 0.0), (REPLICA, 4.0), (HOST, 8.0)):
            now[0] += computed_s
            yield Sum(message, axis) if axis else None
        now[0] += 16.0

    def carry(op: Collective) -> None:
        now[0] += {HOST: 100.0, REPLICA: 1000.0}[op.axis]

    monkeypatch.setattr(profiler, "_now", lambda device: now[0])
    layout = Layout((Slot.of("w", torch.empty(8, 8)),))
    exchange: Any = SimpleNamespace(stored=SimpleNamespace(layout=layout), run=run, commit=list)
    mesh: Any = SimpleNamespace(run=carry)
    assert profiler._reduce(exchange, torch.zeros(64), mesh, CPU, 0) == (7.0, 24.0, 2000.0, 200.0)


@pytest.mark.parametrize(("axis", "expected"), [(HOST, (4.0, 8.0, 50.0, 5.0)), (SHARD, (4.0, 8.0, 70.0, 6.0))])
def test_computing_takes_as_long_as_on_the_slowest_rank_and_a_collective_as_on_the_one_that_came_last(
    axis: str, expected: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
):
    """Of hosts, ranks 0 and 2 send for the others; of shards, ranks 0 and 2 hold one part and 1 and 3 the other."""
    meshes = [gw.Mesh({REPLICA: mesh.replica, axis: mesh.host}, mesh.store) for mesh in hosts(2, 2)]  # pyright: ignore
    others_s = (70.0, 80.0) if axis == SHARD else (0.0, 0.0)  # on the wire
    took = [(1.0, 8.0, 100.0, 5.0), (1.0, 2.0, others_s[0], 6.0), (4.0, 2.0, 50.0, 9.0), (2.0, 2.0, others_s[1], 6.0)]
    monkeypatch.setattr(profiler, "_reduce", lambda exchange, noise, mesh, device, step: took[mesh.rank])
    slots = [Slot.of("w", torch.empty(8, 8))]
    times = raising(together(4, lambda rank: profiler.measure(WAYS[1], slots, meshes[rank], CPU)))
    assert [(each.encode_s, each.decode_s, each.wire_s, each.host_s) for each in times] == [expected] * 4


def test_seconds_inside_a_host_are_those_of_its_two_collectives():
    """By the bytes of the gradient in float32."""
    rows = [[ReductionTimes(n, n, 0.0, 0.0, 0.0, 2e-4 + 8e-9 * n) for n in (1000, 5000, 9000)]]
    assert sum(float(cost(np.array(4 * 7000.0))) for cost in profiler._local(rows).values()) == pytest.approx(
        2e-4 + 8e-9 * 7000
    )


def test_gradients_are_ready_so_long_after_backward_began():
    """Of a micro-batch more its second forward pass; a parameter without a gradient is ready with the last."""
    spans = [
        ("forward", 0.0, 1.0, ()), ("forward", 2.0, 3.0, ()), ("backward", 3.0, 5.0, ("a",)),
        ("backward", 5.0, 9.0, ("b",)), ("backward", 9.0, 9.5, ("sparse",)), ("optimizer", 10.0, 10.5, ()),
        ("optimizer", 11.0, 11.25, ()),
    ]  # fmt: skip
    step = Timeline(tuple(Span(lane, start, end, "", -1, 0, slots=slots) for lane, start, end, slots in spans))
    times = ComputeTimes.of([step] * 3, [Slot.of(name, torch.empty(2)) for name in ("a", "b", "unused")])
    assert times == ComputeTimes({"a": 2.0, "b": 6.0, "unused": 6.0}, 3.0, 0.75)


@pytest.mark.parametrize("model", MODELS)
def test_samples_are_far_apart_and_of_the_models_own_matrices(monkeypatch: pytest.MonkeyPatch, model: str):
    shapes = MODELS[model]
    _, samples = measured(monkeypatch, shapes)
    totals = sorted({sum(slot.numel for slot in own) for own in samples})
    assert all(b >= 1.5 * a for a, b in pairwise(totals))
    assert len(totals) > 1 or model == "tiny"
    # a few large matrices are measured as what they are: low ranks follow from their sides
    assert totals[-1] >= min(max(np.prod(shape) for shape in shapes), 1 << 24)
    for slot in [slot for own in samples for slot in own]:
        own = Slot.of(slot.name, torch.empty(shapes[int(slot.name)], device="meta"))
        assert slot == own or slot.numel < own.numel
        assert slot.matrix[0] == 1 or slot.matrix[1] == own.matrix[1]


@pytest.mark.parametrize(
    ("affinity", "quotas", "expected"),
    [
        (8, [(inf, 0), (inf, 0)], 0.0),
        (2, [(inf, 0), (inf, 0)], 0.5),
        # a container's cores, not the machine's, for both ranks
        (8, [(2.0, 7), (2.0, 7)], 0.5),
        (8, [(4.0, 7), (4.0, 7)], 0.0),
        # containers side by side
        (8, [(2.0, 7), (2.0, 8)], 0.0),
        (8, [(2.0, 7), (1.0, 8)], 0.5),
        (8, [(1.5, 7), (inf, 0)], 0.25),
        # each rank is bound to a half of them
        (-4, [(inf, 0), (inf, 0)], 0.0),
        (-2, [(inf, 0), (inf, 0)], 0.5),
    ],
)
def test_cores_are_those_that_control_groups_leave(
    affinity: int, quotas: list[tuple[float, int]], expected: float, monkeypatch: pytest.MonkeyPatch
):
    """They were the machine's, and none contended for a container's. Cores to which ranks are bound, each to its own,
    are below 0 here."""
    meshes, own = [gw.Mesh.of(each) for each in gw.Threads.group(2)], threading.local()
    half = -affinity // 2
    bound = [range(half), range(half, 2 * half)] if half > 0 else [range(affinity)] * 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: bound[own.rank])
    monkeypatch.setattr(profiler, "computing_threads", lambda device: 1)
    monkeypatch.setattr(profiler, "quota", lambda: quotas[own.rank])

    def measure(rank: int) -> float:
        own.rank = rank
        return profiler.contention(meshes[rank], CPU)

    assert raising(together(2, measure)) == [expected] * 2
