"""The profiler's samples of a model, and what follows for larger and smaller groups."""

import os
import threading
from itertools import pairwise
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import gradwire as gw
from gradwire.controllers.requests import ProfileRequest
from gradwire.plans import uniform
from gradwire.schedule import Profile
from gradwire.schedule.sent_bytes import STEADY, wire_bytes
from gradwire.slots import Layout, Slot
from gradwire.tuner import profiler
from gradwire.tuner.profiler import ComputeTimes, profiler_for
from tests.support.harness import CPU, raising, together

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
    assert answers[0].profile == answers[1].profile
    assert answers[0].profile.contention == SHARED
    return answers[0].profile, samples


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
