"""The defects of the systems that Gradwire replaces, one test each: what went wrong there must not here."""

import pytest
import torch

import gradwire as gw
from gradwire.compressors import Compressor
from tests.support.harness import alone, draw, job, plan_of, round_trip, slots_of

PAIRS = [
    (gw.FP32(), gw.NoMemory(), gw.AllReduce()),
    (gw.FP16(), gw.NoMemory(), gw.AllReduce()),
    (gw.TopK(0.1), gw.Residual(), gw.AllGather()),
    (gw.DGC(0.1), gw.DGCMemory(0.5), gw.AllGather()),
    (gw.RandomK(0.5), gw.Residual(), gw.AllReduce()),
    (gw.QSGD(), gw.NoMemory(), gw.AllGather()),
    (gw.TernGrad(block=8), gw.NoMemory(), gw.AllGather()),
    (gw.EFSignSGD(), gw.Residual(), gw.AllGather()),
    (gw.OneBit(), gw.Residual(), gw.AllGather()),
    (gw.SignSGD(), gw.NoMemory(), gw.AllGather()),
    (gw.Signum(), gw.NoMemory(), gw.AllGather()),
    (gw.PowerSGD(1), gw.Residual(), gw.AllReduce()),
    (gw.ACPSGD(1), gw.Residual(), gw.AllReduce()),
]
VOTES = (gw.SignSGD, gw.Signum)


def reduce(compressor: Compressor, memory: gw.memories.Memory, communicator, *grads: list[float]) -> list[float]:
    slots = slots_of({"w": torch.empty(len(grads[0]))})
    with job(plan_of(slots, compressor, memory, communicator), slots, len(grads)) as running:
        return running.step([[torch.tensor(grad)] for grad in grads])[0][0].tolist()


@pytest.mark.parametrize(("compressor", "memory", "communicator"), PAIRS, ids=str)
@pytest.mark.parametrize("groups", [1, 3])
def test_cupcake_1_and_2_fused_groups_train(compressor, memory, communicator, groups: int):
    """With two or more groups Cupcake never stepped, and with one its pool handed out zeros."""
    slots = slots_of({"a": torch.empty(6, 3), "b": torch.empty(6), "c": torch.empty(3, 6)})
    target = [torch.randn(slot.shape, generator=torch.Generator().manual_seed(9)) for slot in slots]
    weights = [torch.zeros(slot.shape) for slot in slots]
    rate = 0.05 if isinstance(compressor, VOTES) else 0.1
    with job(plan_of(slots, compressor, memory, communicator, groups=groups), slots, 2) as running:
        for step in range(80):
            noise = draw(slots, 2, step, scale=0.1)
            grads = [[w - t + e for w, t, e in zip(weights, target, own, strict=True)] for own in noise]
            for weight, mean in zip(weights, running.step(grads)[0], strict=True):
                weight.sub_(mean, alpha=rate)
    distance = sum(float((w - t).square().sum()) for w, t in zip(weights, target, strict=True))
    assert distance < 0.3 * sum(float(t.square().sum()) for t in target)


def test_cupcake_3_dgc_masks_instead_of_multiplying_by_the_number_of_elements():
    slots = slots_of({"w": torch.empty(40, 50)})
    with job(plan_of(slots, gw.DGC(0.05), gw.DGCMemory(), gw.AllGather()), slots, 2) as running:
        for step in range(30):
            running.step(draw(slots, 2, step))
        for velocity in running.state("velocity"):
            assert velocity[0].abs().max() < 10
            assert velocity[0].eq(0).sum() >= 90, "what was sent last is masked"


def test_cupcake_4_one_bit_decodes_to_what_it_encoded():
    """~uint8 gave 254 and 255 there: 203 times the gradient's norm."""
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    assert round_trip(gw.OneBit(), x).norm() < x.norm()
    assert round_trip(gw.OneBit(), torch.tensor([-1.0, -3.0, 2.0, 4.0])).tolist() == [-2, -2, 3, 3]


def test_cupcake_5_overlapping_coordinates_add_up():
    """scatter_ kept the last rank's: [3, 0, 2, 0]."""
    sent = reduce(gw.TopK(0.5), gw.Residual(), gw.AllGather(), [5.0, 0, 4, 0], [3.0, 0, 2, 0])
    assert sent == [4, 0, 3, 0]
    assert reduce(gw.TopK(0.5), gw.Residual(), gw.AllGather(), [4.0, 3, 0, 0], [10.0, 0, 5, 0]) == [7, 1.5, 2.5, 0]


@pytest.mark.parametrize("n", [200_000, 1_000_000, 1_050_000])
def test_cupcake_6_dgc_never_sends_random_coordinates(n: int):
    """Where its sampled threshold let fewer than k pass, it sent k at random."""
    codec = gw.DGC(0.01)
    for seed in range(3):
        x = torch.randn(n, generator=torch.Generator().manual_seed(seed))
        sent = round_trip(codec, x)
        bound = x.abs().topk(int(1.5 * codec.count(n))).values[-1]
        assert sent[sent.ne(0)].abs().min() >= bound


def test_cupcake_6_dgc_does_not_prefer_the_first_positions():
    x = torch.ones(300_000)
    x[200_000:] = 2 + torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    assert not round_trip(gw.DGC(0.01), x)[:200_000].any()


@pytest.mark.parametrize("communicator", [gw.AllReduce(), gw.AllGather(), gw.ScatterReduce()], ids=str)
@pytest.mark.parametrize("compressor", [gw.FP16(), gw.FP32()], ids=str)
def test_cupcake_7_every_communicator_carries_casts(compressor, communicator):
    assert reduce(compressor, gw.NoMemory(), communicator, [1.0, -2, 4], [3.0, 2, 0]) == [2, 0, 2]


def test_cupcake_9_a_group_of_any_size_divides_among_ranks():
    """The hierarchical path asserted that the elements divide by the ranks."""
    for n in (1, 2, 3, 5, 4097):
        grads = [[float(rank + 1)] * n for rank in range(3)]
        mean = reduce(gw.FP32(), gw.NoMemory(), gw.ScatterReduce(), *grads)
        torch.testing.assert_close(torch.tensor(mean), torch.full((n,), 2.0))


def test_cupcake_11_a_residual_forgets_nothing_by_default():
    """beta = 0.9 lost a tenth of the error at each step."""
    assert gw.Residual() == gw.Residual(decay=1.0)
    slots = slots_of({"w": torch.empty(10)})
    with job(plan_of(slots, gw.TopK(0.1), gw.Residual(), gw.AllGather()), slots, 2) as running:
        sent = sum(running.step([[torch.arange(10.0)]] * 2)[0][0] for _ in range(20))
        left = sum(residual[0] for residual in running.state("residual"))
        torch.testing.assert_close(sent + left, 20 * torch.arange(10.0))


def test_cupcake_random_k_draws_without_replacement_and_at_least_one():
    for n, ratio in ((3, 0.01), (1000, 0.5), (1000, 1.0)):
        codec = gw.RandomK(ratio)
        indices, _ = codec.indices(n, alone(n, codec))
        assert len(indices.unique()) == len(indices) == codec.count(n) >= 1


def test_cupcake_sign_sgd_votes():
    """It averaged scaled signs."""
    assert reduce(gw.SignSGD(), gw.NoMemory(), gw.AllGather(), [9.0, -9], [-1.0, 1], [-1.0, 1]) == [-1, 1]


def test_cupcake_sign_sgd_survives_zeros():
    """TernGrad's bare except turned an all-zero gradient into whatever was left in a buffer."""
    assert reduce(gw.TernGrad(), gw.NoMemory(), gw.AllGather(), [0.0] * 5, [0.0] * 5) == [0] * 5


def test_gravac_padding_does_not_wipe_a_coordinate():
    """It padded with index 0 and value 0, and t[[0, 2, 0, 0]] += [5, 1, 0, 0] leaves 0 at 0."""
    sent = reduce(gw.TopK(1.0), gw.Residual(), gw.AllGather(), [5.0, 0, 1, 0], [1.0, 0, 0, 0])
    assert sent == [3, 0, 0.5, 0]


def test_adtopk_selects_by_magnitude():
    """mask = tensor > threshold lacked abs: negative gradients were never sent."""
    assert round_trip(gw.TopK(0.5), torch.tensor([-5.0, 1, 2, -4])).tolist() == [-5, 0, 0, -4]
    assert round_trip(gw.DGC(0.5), torch.tensor([-5.0, 1, 2, -4])).tolist() == [-5, 0, 0, -4]


def test_grace_power_sgd_keeps_its_q_from_step_to_step():
    """GRACE's memory drew Q anew, so nothing was warm and the approximation never converged."""
    slots = slots_of({"w": torch.empty(20, 30)})
    grads = draw(slots, 2, 0)
    mean = (grads[0][0] + grads[1][0]) / 2
    with job(plan_of(slots, gw.PowerSGD(2), gw.NoMemory(), gw.AllReduce()), slots, 2) as running:
        errors = [float((running.step(grads)[0][0] - mean).norm()) for _ in range(40)]
    best = torch.linalg.svdvals(mean)[2:].square().sum().sqrt()
    assert errors[-1] < 1.01 * best < errors[0]


def test_torch_power_sgd_hook_many_groups_in_flight_do_not_hang():
    """Its callbacks start collectives when futures complete: on gloo, with more than one bucket, it aborts."""
    slots = slots_of({f"w{i}": torch.empty(8, 8 + i) for i in range(20)})
    with job(plan_of(slots, gw.PowerSGD(2), gw.Residual(), gw.AllReduce(), groups=20), slots, 3) as running:
        for step in range(3):
            means = running.step(draw(slots, 3, step))
            assert all(torch.equal(a, b) for a, b in zip(means[0], means[2], strict=True))
