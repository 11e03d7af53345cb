"""Compressors against plain formulas in float64, a published implementation, or a count."""

import math

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.compressors import Codec
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from tests.support.harness import alone, draw, job, plan_of, round_trip, slots_of

SIZES = [1, 7, 64, 1000, 5001]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def blocks_of(x: Tensor, block: int) -> list[Tensor]:
    return list(x.double().split(block))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("block", [8, 64, 4096])
def test_ef_sign_is_the_sign_times_the_mean_magnitude(n: int, block: int):
    x = normal(n)
    expected = [torch.where(b >= 0, 1, -1) * b.abs().mean() for b in blocks_of(x, block)]
    torch.testing.assert_close(round_trip(gw.EFSignSGD(block), x).double(), torch.cat(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("block", [8, 64, 4096])
@pytest.mark.parametrize("shift", [-9.0, 0.0, 9.0])
def test_one_bit_sends_the_means_of_both_signs(n: int, block: int, shift: float):
    x = normal(n) + shift
    expected = []
    for b in blocks_of(x, block):
        positive = b >= 0
        means = [b[mask].mean() if mask.any() else torch.zeros(()).double() for mask in (~positive, positive)]
        expected.append(torch.where(positive, means[1], means[0]))
    torch.testing.assert_close(round_trip(gw.OneBit(block), x).double(), torch.cat(expected), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("codec", [gw.QSGD(), gw.QSGD(levels=1, block=8), gw.QSGD(levels=100), gw.TernGrad()], ids=str)
def test_quantisers_send_one_of_the_two_nearest_levels(n: int, codec: gw.QSGD | gw.TernGrad):
    x = normal(n)
    sent = round_trip(codec, x).double()
    for b, q in zip(blocks_of(x, codec.block), blocks_of(sent, codec.block), strict=True):
        unit = b.abs().max() / codec.code.top
        level = q / unit
        torch.testing.assert_close(level, level.round(), rtol=0, atol=1e-4)
        assert ((level - b / unit).abs() <= 1 + 1e-4).all()
        assert level.abs().max() <= codec.code.top + 1e-4


def test_qsgd_never_wraps_the_largest_element_round():
    """127 / x times x may be above 127 by two roundings; with almost 1/2 of noise it must not become 128."""
    x = torch.arange(1 << 16, 1 << 17).float() / (1 << 16)
    blocks = torch.zeros(1 << 18, 8)
    blocks[:, 0] = x[torch.argmax(x * (127 / x))]
    for seed in range(4):
        codec, x = gw.QSGD(block=8), blocks.view(-1)
        sent = round_trip(codec, x, alone(len(x), codec, seed=seed))
        torch.testing.assert_close(sent, x, rtol=1.01 / 127, atol=0)


@pytest.mark.parametrize(("codec", "dtype"), [(gw.FP16(), torch.float16), (gw.BF16(), torch.bfloat16)], ids=str)
def test_casts_are_casts(codec: Codec, dtype: torch.dtype):
    x = normal(1001)
    state = alone(len(x), codec, error_feedback=False)
    payload, out = torch.zeros(codec.payload_bytes(len(x)), dtype=torch.uint8), torch.empty(len(x))
    codec.encode(LazySum.of(x.clone()), payload[None], state.whole)
    codec.decode(payload[None, None], Mean.of(out), state.whole)
    assert torch.equal(out, x.to(dtype).float())
    assert torch.equal(payload.view(dtype), x.to(dtype))


def test_half_precision_with_memory_keeps_what_does_not_fit():
    """The sum in flight must not overflow either: an infinite mean with an empty memory would lose it all."""
    slots = slots_of({"w": torch.empty(3)})
    for communicator in (gw.AllReduce(), gw.ScatterReduce()):
        with job(plan_of(slots, gw.FP16(), gw.Residual(), communicator), slots, 3) as running:
            grads = [[torch.tensor([120_000.0, -1e6, 1.0])] for _ in range(3)]
            mean = running.step(grads)[0][0]
            left = torch.stack([residual[0] for residual in running.state("residual")]).sum(0)
            torch.testing.assert_close(mean + left, grads[0][0], rtol=1e-3, atol=0)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_sign_sgd_is_a_count_of_votes(world: int):
    slots = slots_of({"w": torch.empty(13, 5)})
    with job(plan_of(slots, gw.SignSGD(), gw.NoMemory(), gw.AllGather()), slots, world) as running:
        grads = draw(slots, world, 3)
        votes = torch.stack([torch.where(own[0] >= 0, 1, -1) for own in grads])
        expected = votes.sum(0).sign().float()
        assert torch.equal(running.step(grads)[0][0], expected)
        assert world % 2 or expected.eq(0).any(), "a tie is nobody's"


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_has_no_gradient_stays_where_it_is_under_a_vote(world: int):
    slots = slots_of({"w": torch.empty(13, 5)})
    nothing = [[torch.zeros(13, 5)] for _ in range(world)]
    with job(plan_of(slots, gw.SignSGD(), gw.NoMemory(), gw.AllGather()), slots, world) as running:
        assert not sum(running.step(nothing)[0][0] for _ in range(2)).any()


def test_signum_votes_with_the_running_mean():
    world, momentum = 3, 0.7
    slots = slots_of({"w": torch.empty(13, 5)})
    means = [torch.zeros(13, 5).double() for _ in range(world)]
    with job(plan_of(slots, gw.Signum(momentum), gw.NoMemory(), gw.AllGather()), slots, world) as running:
        for step in range(5):
            grads = draw(slots, world, step)
            means = [momentum * m + (1 - momentum) * own[0].double() for m, own in zip(means, grads, strict=True)]
            votes = torch.stack([torch.where(m >= 0, 1, -1) for m in means])
            assert torch.equal(running.step(grads)[0][0], votes.sum(0).sign().float())


def test_random_k_sends_one_element_of_each_cell_to_all():
    n, k = 1001, 100
    codec = gw.RandomK(0.1, rescale=True)
    state = alone(n, codec)
    indices, sizes = codec.indices(n, state)
    edges = torch.arange(k + 1) * n // k
    assert torch.equal(sizes, edges.diff())
    assert ((indices >= edges[:-1]) & (indices < edges[1:])).all()
    x = normal(n)
    expected = torch.zeros(n)
    expected[indices] = x[indices] * sizes
    assert torch.equal(round_trip(codec, x), expected)


def test_dgc_memory_is_the_papers():
    """u = m u + g; v = v + u; what was sent is cleared in both (Lin et al., algorithm 1 with masking)."""
    slots, world, m = slots_of({"w": torch.empty(40, 5)}), 2, 0.9
    u = torch.zeros(world, 40, 5).double()
    v = torch.zeros(world, 40, 5).double()
    with job(plan_of(slots, gw.TopK(0.1), gw.DGCMemory(m), gw.AllGather()), slots, world) as running:
        for step in range(5):
            grads = draw(slots, world, step)
            u = m * u + torch.stack([own[0] for own in grads]) / world
            v = v + u
            kth = v.abs().flatten(1).topk(20).values[:, -1]
            sent = v.abs() >= kth[:, None, None]
            mean = (v * sent).sum(0)
            u, v = u * ~sent, v * ~sent
            torch.testing.assert_close(running.step(grads)[0][0].double(), mean, rtol=1e-5, atol=1e-6)
        for rank in range(world):
            torch.testing.assert_close(running.state("velocity")[rank][0].double(), u[rank], rtol=1e-5, atol=1e-6)


def test_one_rank_is_no_communication():
    slots = slots_of({"w": torch.empty(8, 12)})
    grads = draw(slots, 1, 0)
    with job(plan_of(slots, gw.FP32(), gw.NoMemory(), gw.AllReduce()), slots, 1) as running:
        assert torch.equal(running.step(grads)[0][0], grads[0][0])
        assert running.runtimes[0].stats().wire_bytes == 0
        assert math.isinf(running.runtimes[0].stats().ratio)
