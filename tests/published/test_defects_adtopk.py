"""What went wrong in ADTopk and must not here, beside what the laws show; numbered as in the notes on it."""

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.compressors import Codec, context_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout, Slot
from tests.support.harness import CPU, job, place_bytes, plan_of, slots_of

RESIDUAL, GATHER = gw.Residual(), gw.AllGather()
ITS_OWN = [
    gw.AllDimensionTopK(0.1), gw.Interleaved(gw.AllDimensionTopK(0.1), gw.TopK(0.1)), gw.ReusedThreshold(0.1, warmup=1),
    gw.Interleaved(gw.AllDimensionTopK(0.1), gw.ReusedThreshold(0.1, warmup=1)),
]  # fmt: skip
BASELINES = [
    gw.TopK(0.1), gw.DGC(0.1), gw.GaussianK(0.1), gw.RedSync(0.1), gw.SIDCo(0.1), gw.SIDCo(0.1, "gamma"),
    gw.SIDCo(0.1, "pareto"), gw.HardThreshold(0.5, 0.1),
]  # fmt: skip


def mean_of(codec: Codec, *grads: Tensor) -> Tensor:
    slots = slots_of({"w": grads[0]})
    with job(plan_of(slots, codec, RESIDUAL, GATHER), slots, len(grads)) as running:
        return running.step([[grad] for grad in grads])[0][0]


def bytes_of(codec: Codec, n: int) -> int:
    return codec.group_bytes(Layout((Slot("w", (n // 100, 100), (100, 1), torch.float32),)), step=0)


def test_2_an_element_that_equals_the_threshold_is_sent():
    """threshold = k-th largest, then |x| > threshold, loses the k-th, and all of a constant gradient."""
    assert mean_of(gw.HardThreshold(0.5, 1.0), torch.tensor([0.5, 0.4]), torch.tensor([0.5, 0])).tolist() == [0.5, 0]
    for codec in (*ITS_OWN, *BASELINES):
        assert mean_of(codec, torch.ones(10, 100), torch.ones(10, 100)).sum() == 100


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


@pytest.mark.parametrize("codec", ITS_OWN[:3:2] + BASELINES, ids=str)
def test_6_the_ratio_that_was_asked_for_is_sent(codec: Codec):
    """Most had one of their own, whatever was asked."""
    kind, n = type(codec), 1_000_000
    for ratio in (0.05, 0.2):
        made = kind(threshold=0.1, ratio=ratio) if kind is gw.HardThreshold else kind(ratio=ratio)
        place = 2 if kind is gw.AllDimensionTopK else place_bytes(1 / ratio)
        assert bytes_of(made, n) == pytest.approx((4 + place) * ratio * n, rel=0.01)


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
