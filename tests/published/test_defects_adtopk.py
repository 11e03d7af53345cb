"""ADTopk's defects, one test each, numbered as in the notes on it: what went wrong there must not here."""

import importlib
import pkgutil

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire import compressors
from gradwire.collective import framed
from gradwire.communicators import AllGather
from gradwire.compressors import Codec, context_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.plans import uniform
from gradwire.slots import Layout, Slot
from tests.support.harness import CPU, alone, draw, job, place_bytes, plan_of, slots_of, total

RESIDUAL, GATHER = gw.Residual(), gw.AllGather()
ITS_OWN = [
    gw.AllDimensionTopK(0.1), gw.Interleaved(gw.AllDimensionTopK(0.1), gw.TopK(0.1)), gw.ReusedThreshold(0.1, warmup=1),
    gw.Interleaved(gw.AllDimensionTopK(0.1), gw.ReusedThreshold(0.1, warmup=1)),
]  # fmt: skip
BASELINES = [
    gw.TopK(0.1), gw.DGC(0.1), gw.GaussianK(0.1), gw.RedSync(0.1), gw.SIDCo(0.1), gw.SIDCo(0.1, "gamma"),
    gw.SIDCo(0.1, "pareto"), gw.HardThreshold(0.5, 0.1),
]  # fmt: skip
every = pytest.mark.parametrize("codec", ITS_OWN + BASELINES, ids=str)


def mean_of(codec: Codec, *grads: Tensor) -> Tensor:
    slots = slots_of({"w": grads[0]})
    with job(plan_of(slots, codec, RESIDUAL, GATHER), slots, len(grads)) as running:
        return running.step([[grad] for grad in grads])[0][0]


def bytes_of(codec: Codec, n: int) -> int:
    return codec.group_bytes(Layout((Slot("w", (n // 100, 100), (100, 1), torch.float32),)), step=0)


def test_1_every_module_can_be_imported():
    for module in pkgutil.iter_modules(compressors.__path__, "gradwire.compressors."):
        importlib.import_module(module.name)


@every
def test_2_every_compressor_runs_through_all_its_states(codec: Codec):
    """Its own class never ran, SIDCo's, threshold's and RandomK's did not import."""
    slots = slots_of({"w": torch.empty(20, 50)})
    with job(plan_of(slots, codec, RESIDUAL, GATHER), slots, 2) as running:
        for step in range(25):
            means = running.step(draw(slots, 2, step))
            assert means[0][0].any()


@every
def test_2_negative_elements_are_sent(codec: Codec):
    """mask = x > threshold."""
    x = -torch.rand(50, 40, generator=torch.Generator().manual_seed(0)) - 0.6
    mean = mean_of(codec, x, x)
    assert mean.lt(0).any()
    assert not mean.gt(0).any()


def test_2_an_element_that_equals_the_threshold_is_sent():
    """threshold = k-th largest, then |x| > threshold, loses the k-th, and all of a constant gradient."""
    assert mean_of(gw.HardThreshold(0.5, 1.0), torch.tensor([0.5, 0.4]), torch.tensor([0.5, 0])).tolist() == [0.5, 0]
    for codec in (*ITS_OWN, *BASELINES):
        assert mean_of(codec, torch.ones(10, 100), torch.ones(10, 100)).sum() == 100


@pytest.mark.parametrize("codec", [codec for codec in ITS_OWN + BASELINES if codec.sparse], ids=str)
def test_3_every_sparsifier_works_with_dgcs_memory(codec: Codec):
    slots = slots_of({"w": torch.empty(20, 50)})
    with job(plan_of(slots, codec, gw.DGCMemory(0.5), GATHER), slots, 2) as running:
        for step in range(4):
            assert running.step(draw(slots, 2, step))[0][0].isfinite().all()


@pytest.mark.parametrize(("shape", "world"), [((64, 64), 8), ((16, 8, 3, 3), 8), ((8, 16), 8), ((4, 12), 6)])
def test_4_gathered_values_are_not_taken_for_a_gradient(shape: tuple[int, ...], world: int):
    """Where the ranks' entries of a row are as many as the row is long, the values alone were returned."""
    codec = gw.AllDimensionTopK(1 / world, axis=1)
    grads = [torch.randn(shape, generator=torch.Generator().manual_seed(rank)) for rank in range(world)]
    expected = torch.zeros(shape[0], grads[0][0].numel())
    for grad in grads:
        rows = grad.reshape(shape[0], -1)
        top = rows.abs().topk(max(1, round(rows.shape[1] / world)), dim=1).indices
        expected.scatter_add_(1, top, rows.gather(1, top) / world)
    torch.testing.assert_close(mean_of(codec, *grads).reshape(shape[0], -1), expected)


@pytest.mark.parametrize("name", ["h.0.mlp.c_fc.weight", "fc", "classifier.6.weight", "features.0.weight"])
def test_5_no_parameters_name_turns_error_feedback_off(name: str):
    slots = slots_of({name: torch.empty(8, 30)})
    with job(plan_of(slots, ITS_OWN[1], RESIDUAL, GATHER), slots, 2) as running:
        given = [draw(slots, 2, step) for step in range(4)]
        sent = sum(running.step(grads)[0][0].double() for grads in given)
        kept = total(running.state("residual"))[0]
        torch.testing.assert_close(sent + kept, sum(total(grads)[0] for grads in given) / 2, rtol=0, atol=1e-5)


@pytest.mark.parametrize("codec", ITS_OWN[:3:2] + BASELINES, ids=str)
def test_6_the_ratio_that_was_asked_for_is_sent(codec: Codec):
    """Most had one of their own, whatever was asked."""
    kind, n = type(codec), 1_000_000
    for ratio in (0.05, 0.2):
        made = kind(threshold=0.1, ratio=ratio) if kind is gw.HardThreshold else kind(ratio=ratio)
        place = 2 if kind is gw.AllDimensionTopK else place_bytes(1 / ratio)
        assert bytes_of(made, n) == pytest.approx((4 + place) * ratio * n, rel=0.01)


def test_6_a_convolution_is_a_matrix_of_its_outputs():
    """Slices along the input channels alone sent a third of a first layer, and all of a depthwise one."""
    for shape in ((64, 3, 7, 7), (96, 1, 3, 3), (1024, 3, 16, 16)):
        density = gw.AllDimensionTopK(0.01).density(Layout((Slot.of("w", torch.empty(shape)),)))
        assert density <= 0.0105 or density == 1 / 96


def test_6_the_density_does_not_decay_by_itself():
    """k shrank by a tenth at every call."""
    codec = gw.AllDimensionTopK(0.1)
    slots = slots_of({"w": torch.empty(20, 50)})
    with job(plan_of(slots, codec, RESIDUAL, GATHER), slots, 2) as running:
        sizes = set()
        for step in range(30):
            before = running.runtimes[0].stats().wire_bytes
            running.step(draw(slots, 2, step))
            sizes.add(running.runtimes[0].stats().wire_bytes - before)
    assert sizes == {framed(6 * 100)}


def test_7_the_turn_does_not_depend_on_how_often_it_is_asked():
    """A flag per tensor, flipped at every call: gradient accumulation, or a tensor without gradient, shifted it."""
    codec = ITS_OWN[1]
    state = alone(1000, codec)
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    payloads = [torch.zeros(codec.payload_bytes(1000), dtype=torch.uint8) for _ in range(2)]
    for payload in payloads:
        codec.encode(LazySum.of(x.clone()), payload[None], state.whole)
    assert torch.equal(*payloads)


def test_10_what_is_not_sparsified_is_reduced_not_gathered():
    """Vectors went through a dense all-gather: N - 1 times their bytes."""
    *sparse, dense = uniform(slots_of({"w": torch.empty(50, 50), "b": torch.empty(50)}), gw.AllDimensionTopK()).groups
    assert all(isinstance(group.communicator, AllGather) for group in sparse)
    assert dense == gw.Group(("b",), gw.FP32(), gw.NoMemory(), gw.AllReduce())


def test_11_ranks_that_send_different_counts_are_told_apart():
    """Gathered buffers were cut into equal parts, though the counts differed, and coordinates sent twice lost one."""
    first, second = torch.zeros(2, 50), torch.zeros(2, 50)
    first[0, :3], second[0, 2:4] = torch.tensor([4.0, 2, 6]), torch.tensor([8.0, 10])
    for codec in (gw.HardThreshold(1.0, 0.05), gw.GaussianK(0.05), gw.SIDCo(0.05), gw.ReusedThreshold(0.05)):
        assert mean_of(codec, first, second)[0, :5].tolist() == [2, 1, 7, 5, 0]


@pytest.mark.parametrize("codec", [gw.ReusedThreshold(0.1, warmup=1), *ITS_OWN[1:4:2]], ids=str)
def test_12_thresholds_and_turns_are_in_the_state(codec: Codec):
    slots = slots_of({"w": torch.empty(20, 50)})
    plan = plan_of(slots, codec, RESIDUAL, GATHER)
    with job(plan, slots, 2) as running, job(plan, slots, 2) as resumed:
        for step in range(5):
            running.step(draw(slots, 2, step))
        resumed.load(running.states())
        for step in range(5, 9):
            grads = draw(slots, 2, step)
            assert torch.equal(running.step(grads)[0][0], resumed.step(grads)[0][0])


def test_padding_never_touches_coordinate_0():
    """Entries that are not used are zeros, and added to nothing that matters."""
    for codec in (gw.HardThreshold(1.0, 0.1), gw.SIDCo(0.1), gw.AllDimensionTopK(0.1)):
        state = context_for(Layout((Slot.of("w", torch.empty(4, 50)),)), codec, CPU)
        x = torch.zeros(200)
        x[0], x[150] = 0.25, 8.0
        payload, out = torch.zeros(codec.group_bytes(state.layout, 0), dtype=torch.uint8), torch.empty(200)
        codec.encode(LazySum.of(x), payload[None], state.whole)
        codec.decode(payload[None, None], Mean.of(out), state.whole)
        assert (out[0] + x[0], out[150], x[150]) == (0.25, 8, 0)
