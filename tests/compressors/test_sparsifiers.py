"""The sparsifiers against dense sorts, and what their estimates are worth."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.collective import framed
from gradwire.compressors import Codec, EstimatedThreshold, GroupContext, context_for
from gradwire.ops.backend import Backend, backend_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.ops.reference.largest import TINY
from gradwire.ops.slices import SliceEntries, Slices
from gradwire.slots import Layout, Slot
from tests.ops.test_select import SHAPES, heavy_tailed, log_normal, normal
from tests.support.harness import CPU, SMALL, alone, draw, job, plan_of, slots_of

RATIO = 0.01
ESTIMATED = [
    gw.DGC(RATIO), gw.GaussianK(RATIO), gw.RedSync(RATIO), gw.SIDCo(RATIO), gw.SIDCo(RATIO, "gamma"),
    gw.SIDCo(RATIO, "pareto"), gw.SIDCo(RATIO, stages=1),
]  # fmt: skip


def context_of(slots: list[Slot], codec: Codec, step: int = 0) -> GroupContext:
    context = context_for(Layout(tuple(slots)), codec, CPU)
    context.step = step
    return context


def sent(codec: Codec, x: Tensor, context: GroupContext) -> Tensor:
    """What is sent of x, which stays as it is; the rest is what encoding leaves."""
    payload = torch.full((codec.group_bytes(context.layout, context.step),), 255, dtype=torch.uint8)
    left, out = x.clone(), torch.empty_like(x)
    codec.encode(LazySum.of(left), payload[None], context.whole)
    codec.decode(payload[None, None], Mean.of(out), context.whole)
    assert torch.equal(left, x.masked_fill(out.ne(0), 0)) or not codec.sparse
    return out


def by_sorting(matrix: Tensor, k: int, axis: int) -> Tensor:
    """The k largest of every slice along the axis, the rest zero: of equals the first."""
    order = matrix.abs().sort(dim=axis, descending=True, stable=True).indices.narrow(axis, 0, k)
    return torch.zeros_like(matrix).scatter_(axis, order, matrix.gather(axis, order))


MATRICES = [(1, 1), (7, 1), (1, 9), (5, 40), (40, 5), (300, 7), (33, 1025), (1025, 33), (129, 2100), (2, 70_000)]


@pytest.mark.parametrize("shape", MATRICES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("ratio", [0.0001, 0.05, 1.0])
def test_all_dimension_is_a_dense_sort_of_every_row(shape: tuple[int, int], axis, ratio: float):
    codec = gw.AllDimensionTopK(ratio, axis)
    generator = torch.Generator().manual_seed(1)
    along = 1 if shape[0] == 1 else (1 if shape[1] >= shape[0] else 0) if axis is None else axis
    k = max(1, round(ratio * shape[along]))
    for matrix in (torch.randn(shape, generator=generator), torch.randint(-2, 3, shape, generator=generator).float()):
        context = context_of(slots_of({"w": matrix}), codec)
        assert torch.equal(sent(codec, matrix.view(-1), context).view(shape), by_sorting(matrix, k, along))


def test_all_dimension_in_a_group_of_odd_slots():
    """Biases are one row, weights are rows of their slowest axis in memory, whatever their strides."""
    slots = slots_of(SMALL)
    for axis in (0, 1, None):
        codec = gw.AllDimensionTopK(0.2, axis)
        context = context_of(slots, codec)
        x = torch.randn(context.layout.numel, generator=torch.Generator().manual_seed(2))
        out = sent(codec, x, context)
        for slot, before, after in zip(slots, context.layout.parts(x), context.layout.parts(out), strict=True):
            rows, columns = slot.matrix
            along = 1 if rows == 1 else (1 if columns >= rows else 0) if axis is None else axis
            k = max(1, round(0.2 * slot.matrix[along]))
            assert torch.equal(after.view(rows, columns), by_sorting(before.view(rows, columns), k, along))
        assert int(out.ne(0).sum()) == round(codec.density(context.layout) * len(x))


@pytest.mark.parametrize(("length", "each"), [(65_536, 6), (65_537, 8)])
def test_indices_take_16_bits_where_they_fit(length: int, each: int):
    codec = gw.AllDimensionTopK(0.001)
    context = context_of(slots_of({"w": torch.empty(2, length)}), codec)
    x = torch.zeros(2, length)
    x[0, -66:], x[1, :66] = 1.0, -1.0
    assert codec.group_bytes(context.layout, 0) == each * 2 * 66
    assert torch.equal(sent(codec, x.view(-1), context), x.view(-1))


@pytest.mark.parametrize("length", [10, 70_000])
@pytest.mark.parametrize("axis", [0, 1])
def test_an_index_behind_its_slice_is_no_payload(length: int, axis: int):
    layout = SliceEntries.of([Slices(0, 2, length, 1, axis)])
    payload, out = torch.zeros(1, layout.nbytes, dtype=torch.uint8), torch.empty(2 * length)
    _, long, short = layout.fields(payload)
    (index,) = (short if length == 10 else long)[:, :1]
    for wrong in (length, -1):
        index.fill_(wrong)
        with pytest.raises(ValueError, match="is no payload"):
            backend_for(payload).sum_slices(payload, out, layout)
    index.fill_(length - 1)
    backend_for(payload).sum_slices(payload, out, layout)


@pytest.mark.parametrize(
    ("shape", "ratio", "achieved"),
    [
        ((64, 3, 7, 7), 0.01, 1 / 147), ((64, 256, 1, 1), 0.01, 3 / 256), ((96, 1, 3, 3), 0.01, 1 / 96),
        ((1024, 1024), 0.01, 10 / 1024), ((1024, 1024), 0.0001, 1 / 1024),
    ],
)  # fmt: skip
def test_density_is_reported_as_achieved(shape: tuple[int, ...], ratio: float, achieved: float):
    codec = gw.AllDimensionTopK(ratio)
    context = context_of(slots_of({"w": torch.empty(shape)}), codec)
    x = torch.randn(context.layout.numel, generator=torch.Generator().manual_seed(3))
    assert codec.density(context.layout) == pytest.approx(achieved)
    assert int(sent(codec, x, context).ne(0).sum()) == round(achieved * len(x))


@pytest.mark.parametrize("codec", ESTIMATED, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 1000, 300_000])
def test_estimates_stay_within_their_band(codec: EstimatedThreshold, shape, n: int):
    """0.7 k to k, unless fewer are other than zero, and no element of the 0.7 k largest is left out."""
    x = torch.from_numpy(shape(n, np.random.default_rng(n)).astype(np.float32))
    k = codec.count(n)
    indices = codec.select(x, k, alone(n, codec))
    possible = min(k, int(x.abs().ge(TINY).sum()))
    assert min(possible, 0.7 * k) <= len(indices) <= k
    assert bool((indices.diff() > 0).all())
    if len(indices):
        left = x.abs().index_fill(0, indices, 0).max()
        assert x[indices].abs().min() >= left


def laplace(n: int, generator: np.random.Generator) -> np.ndarray:
    return generator.laplace(size=n)


USED = [(codec, normal) for codec in ESTIMATED[:-1]] + [
    (codec, laplace) for codec in ESTIMATED if isinstance(codec, gw.SIDCo | gw.DGC)
]


@pytest.mark.parametrize(("codec", "shape"), USED, ids=lambda part: getattr(part, "__name__", str(part)))
def test_estimates_are_used(codec: EstimatedThreshold, shape, monkeypatch: pytest.MonkeyPatch):
    """Where the gradient is of the kind that the estimate is made for, no exact selection is needed."""

    def refuse(x: Tensor, k: int) -> Tensor:
        raise AssertionError(f"no threshold let about {k} of {len(x)} pass: they were selected exactly")

    monkeypatch.setattr("gradwire.ops.threshold.backend_for", lambda x: replace(backend_for(x), top_k=refuse))
    n = 300_000
    x = torch.from_numpy(shape(n, np.random.default_rng(0)).astype(np.float32))
    codec.select(x, codec.count(n), alone(n, codec))


@pytest.mark.parametrize("shape", [normal, heavy_tailed, log_normal])
def test_a_hard_threshold_sends_what_reaches_it_up_to_its_room(shape):
    n, room = 300_000, 3000
    x = torch.from_numpy(shape(n, np.random.default_rng(5)).astype(np.float32))
    ordered = x.abs().sort(descending=True).values
    for place in (10, room - 1, room, 2 * room + 5, n // 2):
        codec = gw.HardThreshold(float(ordered[place - 1]), RATIO)
        out = sent(codec, x, context_of(slots_of({"x": x}), codec))
        assert int(out.ne(0).sum()) == min(place, room)
        assert out[out.ne(0)].abs().min() == ordered[min(place, room) - 1]


def test_a_hard_threshold_is_of_the_ranks_own_gradient():
    """x is its share of the mean."""
    codec = gw.HardThreshold(1.0, 0.5)
    slots = slots_of({"w": torch.empty(4)})
    with job(plan_of(slots, codec, gw.Residual(), gw.AllGather()), slots, 2) as running:
        assert running.step([[torch.tensor([1.0, 0.9, 0, 0])]] * 2)[0][0].tolist() == [1, 0, 0, 0]


class Exact:
    """Counts the exact selections of ReusedThreshold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        monkeypatch.setattr("gradwire.compressors.reused.backend_for", self._counting)

    def _counting(self, x: Tensor) -> Backend:
        return replace(backend_for(x), top_k=self._count)

    def _count(self, x: Tensor, k: int) -> Tensor:
        self.steps += 1
        return backend_for(x).top_k(x, k)


def test_a_threshold_is_reused_for_tau_steps_and_tau_adapts(monkeypatch: pytest.MonkeyPatch):
    exact = Exact(monkeypatch)
    codec = gw.ReusedThreshold(RATIO, reuse=5, warmup=2)
    context = context_of(slots_of({"x": torch.empty(100_000)}), codec)
    generator = torch.Generator().manual_seed(6)
    exact_steps, taus = [], []
    for step in range(40):
        context.step = step
        before = exact.steps
        scale = 1.0 if step < 30 else 1.2
        x = scale * torch.randn(100_000, generator=generator)
        indices = codec.select(x, 1000, context)
        assert 700 <= len(indices) <= 1000
        assert x[indices].gt(0).any()
        assert x[indices].lt(0).any(), "both signs"
        if exact.steps > before:
            exact_steps.append(step)
        context.group.commit()
        taus.append(float(context.group["reused"][1]))
    assert exact_steps[:3] == [0, 1, 8], "two steps of warm-up, then τ = 5 + 2"
    assert exact_steps[3] == 8 + 9
    assert max(taus) == 13
    assert exact_steps[-1] >= 30, "a gradient that has changed is noticed"


@pytest.mark.parametrize(("change", "longer"), [(1.02, 2), (1.07, 1), (1.15, -1), (1.3, -2), (0.7, -2)])
def test_tau_follows_how_much_a_threshold_has_changed(change: float, longer: int):
    codec = gw.ReusedThreshold(RATIO, reuse=9, warmup=2)
    context = context_of(slots_of({"x": torch.empty(10_000)}), codec)
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(8))
    for step, scale in enumerate((1.0, change)):
        context.step = step
        codec.select(scale * x, 100, context)
        context.group.commit()
    assert float(context.group["reused"][1]) == 9 + longer


@pytest.mark.parametrize("change", [0.2, 5.0])
def test_a_threshold_that_no_longer_fits_is_renewed_at_once(change: float):
    codec = gw.ReusedThreshold(RATIO, warmup=0)
    context = context_of(slots_of({"x": torch.empty(100_000)}), codec)
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(7))
    first = codec.select(x, 1000, context)
    context.group.commit()
    context.step = 1
    assert torch.equal(codec.select(change * x, 1000, context), first)
    context.group.commit()
    threshold, tau, age = context.group["reused"].tolist()
    assert threshold == pytest.approx(change * float(x[first].abs().min()))
    assert (tau, age) == (5, 1)


def test_interleaved_takes_turns_and_sends_the_bytes_of_the_turn():
    first, second = gw.AllDimensionTopK(0.1), gw.QSGD(block=64)
    codec = gw.Interleaved(first, second, period=3)
    slots = slots_of({"w": torch.empty(30, 40)})
    layout = Layout(tuple(slots))
    assert [codec.turn(step) for step in range(6)] == [first, first, second] * 2
    with job(plan_of(slots, codec, gw.Residual(), gw.AllGather()), slots, 2) as running:
        payloads = []
        for step in range(4):
            running.step(draw(slots, 2, step))
            payloads.append(running.transports[0].started[-1].send.whole.nbytes)
    expected = [framed(first.group_bytes(layout, 0)), framed(second.payload_bytes(1200))]
    assert payloads == [expected[0], expected[0], expected[1], expected[0]]


def test_interleaved_of_one_compressor_is_that_compressor():
    slots = slots_of(SMALL)
    top = gw.TopK(0.1)
    with (
        job(plan_of(slots, top, gw.Residual(), gw.AllGather()), slots, 2) as plain,
        job(plan_of(slots, gw.Interleaved(top, top), gw.Residual(), gw.AllGather()), slots, 2) as both,
    ):
        for step in range(4):
            grads = draw(slots, 2, step)
            pairs = zip(plain.step(grads)[0], both.step(grads)[0], strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


def test_what_cannot_share_a_memory_is_not_interleaved():
    for codec in (gw.SignSGD(), gw.RandomK(rescale=True)):
        with pytest.raises(ValueError, match="TopK"):
            gw.Interleaved(codec, gw.TopK())
    with pytest.raises(ValueError, match="period=2"):
        gw.Interleaved(period=1)


def test_what_keeps_state_of_one_name_is_not_interleaved():
    """Either would read what the other has written."""
    for first in (gw.ReusedThreshold(0.01), gw.ReusedThreshold(0.1)):
        with pytest.raises(ValueError, match=r"would both keep reused.*AllDimensionTopK\(\), TopK\(\)") as refusal:
            gw.Interleaved(first, gw.ReusedThreshold(0.01))
        assert "\n" not in str(refusal.value)


def test_what_takes_turns_is_not_interleaved():
    for codecs in ((gw.Interleaved(), gw.TopK()), (gw.TopK(), gw.Interleaved())):
        with pytest.raises(ValueError, match=re.escape("e.g. Interleaved(AllDimensionTopK(), TopK(), period=3)")):
            gw.Interleaved(*codecs)


@pytest.mark.parametrize("codec", [gw.AllDimensionTopK(), gw.Interleaved(), gw.ReusedThreshold()], ids=str)
def test_scatter_reduce_refuses_what_encodes_whole_groups(codec: Codec):
    with pytest.raises(ValueError, match="AllGather"):
        gw.Group(("w",), codec, gw.Residual(), gw.ScatterReduce())


@pytest.mark.parametrize("make", [
    lambda: gw.AllDimensionTopK(0), lambda: gw.AllDimensionTopK(axis=2), lambda: gw.HardThreshold(0),  # pyright: ignore
    lambda: gw.SIDCo(distribution="normal"), lambda: gw.SIDCo(stages=0), lambda: gw.ReusedThreshold(reuse=0),  # pyright: ignore
    lambda: gw.GaussianK(2), lambda: gw.RedSync(-1),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(make):
    with pytest.raises(ValueError, match="=") as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_a_ratio_can_be_replaced():
    codec = replace(gw.Interleaved(), first=replace(gw.AllDimensionTopK(), ratio=0.1))
    assert codec.first == gw.AllDimensionTopK(0.1)
