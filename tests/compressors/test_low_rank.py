"""Low rank against the papers' formulas in float64, epfml's algorithm and torch's hook."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.compressors import LowRank, Parts, context_for
from gradwire.compressors.factor_codec import FactorCodec
from gradwire.ops import native
from gradwire.ops.backend import backend_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.matrices import batches
from gradwire.ops.mean import Mean
from gradwire.ops.reference import products as in_torch
from gradwire.slots import Layout, Slot
from tests.support.harness import Job, draw, job, plan_of, slots_of, total

PARAMETERS = {
    "linear": torch.empty(11, 23),
    "conv": torch.empty(6, 5, 3, 3),
    "bias": torch.empty(11),
    "last": torch.empty(6, 5, 3, 3).to(memory_format=torch.channels_last),
}
SLOTS = slots_of(PARAMETERS)
both = pytest.mark.parametrize("kind", [gw.PowerSGD, gw.ACPSGD], ids=lambda kind: kind.__name__)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def start(compressor: LowRank, slots: list[Slot], world: int, memory: gw.memories.Memory | None = None):
    return job(plan_of(slots, compressor, memory or gw.Residual(), gw.AllReduce()), slots, world)


def matrix(grad: Tensor, slot: Slot) -> Tensor:
    """In float64, the slowest axis first."""
    return (grad.permute(0, 2, 3, 1) if slot.name == "last" else grad).reshape(len(grad), -1).double()


def kept(running: Job, slot: int, name: str) -> Tensor:
    """The factor that all ranks keep, (length, r)."""
    return running.runtimes[0].state_dict()[f"{running.slots[slot].name}//shared/{name}"].double().T.clone()


def basis(a: Tensor) -> Tensor:
    return torch.linalg.qr(a).Q


def subspace_iteration(memories: list[Tensor], q: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """Algorithm 1 of Vogels et al. for one matrix: the mean, what each rank sent, and the next Q (columns, r)."""
    p = basis(torch.stack([m @ q for m in memories]).sum(0))
    own = [m.T @ p for m in memories]
    q = torch.stack(own).sum(0)
    return p @ q.T, [p @ mine.T for mine in own], q


def half_iteration(memories: list[Tensor], factor: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """ACP-SGD's step for one matrix whose last sum was `factor`; for odd steps the matrices are transposed."""
    q = basis(factor)
    own = [m @ q for m in memories]
    p = torch.stack(own).sum(0)
    return p @ q.T, [mine @ q.T for mine in own], p


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("world", [1, 2, 3])
@both
def test_each_step_is_the_papers(kind: type[LowRank], rank: int, world: int):
    low = [0, 1, 3]
    with start(kind(rank, min_compression_rate=1), SLOTS, world) as running:
        factor = {slot: kept(running, slot, "q") for slot in low}
        memories = {slot: [torch.zeros(SLOTS[slot].matrix).double()] * world for slot in low}
        for step in range(5):
            grads = draw(SLOTS, world, step)
            means, residuals = running.step(grads)[0], running.state("residual")
            torch.testing.assert_close(means[2], torch.stack([own[2] for own in grads]).mean(0))
            for slot in low:
                gained = [m + matrix(g[slot], SLOTS[slot]) / world for m, g in zip(memories[slot], grads, strict=True)]
                if kind is gw.PowerSGD:
                    mean, sent, factor[slot] = subspace_iteration(gained, factor[slot])
                elif step % 2 == 0:
                    mean, sent, factor[slot] = half_iteration(gained, factor[slot])
                else:
                    mean, sent, factor[slot] = half_iteration([m.T for m in gained], factor[slot])
                    mean, sent = mean.T, [own.T for own in sent]
                memories[slot] = [m - own for m, own in zip(gained, sent, strict=True)]
                torch.testing.assert_close(matrix(means[slot], SLOTS[slot]), mean, rtol=1e-4, atol=1e-4)
                for memory, residual in zip(memories[slot], residuals, strict=True):
                    torch.testing.assert_close(matrix(residual[slot], SLOTS[slot]), memory, rtol=1e-4, atol=1e-4)


def epfml(means: list[Tensor], p: Tensor, start_after: int) -> list[Tensor]:
    """What epfml's `PowerSGD(Config(num_iters_per_step=1))` returns for one matrix, in float64: dense at first, then
    one multiplication a step, by P first, with the error of the *averaged* approximation fed back."""
    error, factor, updates = torch.zeros_like(means[0]), p, []
    for step, mean in enumerate(means):
        if step < start_after:
            updates.append(mean)
            continue
        error = error + mean
        even = (step - start_after) % 2 == 0
        factor_of = error if even else error.T
        kept_basis = basis(factor)
        factor = factor_of.T @ kept_basis
        approximation = kept_basis @ factor.T if even else factor @ kept_basis.T
        error = error - approximation
        updates.append(approximation)
    return updates


def test_acp_sgd_is_epfmls_power_sgd():
    """epfml feeds back the error of the averaged approximation, ACP-SGD each rank its own: the same update."""
    slots, world, first = slots_of({"w": torch.empty(9, 14), "b": torch.empty(9)}), 3, 3
    with start(gw.ACPSGD(2, start_step=first), slots, world) as running:
        p = kept(running, 0, "p")
        given = [draw(slots, world, step) for step in range(12)]
        sums = [[s / world for s in total(grads)] for grads in given]
        for step, update in enumerate(epfml([mean[0] for mean in sums], p, first)):
            mean = running.step(given[step])[0]
            torch.testing.assert_close(mean[0].double(), update, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(mean[1].double(), sums[step][1])


class Watched:
    """torch's hook, and the order in which its one bucket holds the parameters."""

    def __init__(self, **options) -> None:
        self.state = powerSGD_hook.PowerSGDState(None, **options)
        self.order: list[Tensor] = []

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        self.order = bucket.parameters()
        return powerSGD_hook.powerSGD_hook(self.state, bucket)

    def error_of(self, parameter: Tensor) -> Tensor:
        sizes = [p.numel() for p in self.order]
        parts = self.state.error_dict[0].split(sizes)
        return next(e for e, p in zip(parts, self.order, strict=True) if p is parameter).view_as(parameter)


@pytest.mark.usefixtures("one_rank")
def test_power_sgd_is_torchs():
    """torch's own hook on one rank and bucket: the same steps are dense, the same tensors are, and from the same Q
    the same approximation comes."""
    model = nn.Sequential(nn.Linear(19, 12), nn.Linear(12, 3, bias=False))
    weight, first = model[0].weight, 3
    slots = slots_of(dict(model.named_parameters()))
    ddp = DistributedDataParallel(model)
    watched = Watched(matrix_approximation_rank=2, start_powerSGD_iter=first, min_compression_rate=2)
    ddp.register_comm_hook(None, watched.hook)
    with start(gw.PowerSGD(2, min_compression_rate=2, start_step=first), slots, 1) as running:
        for step in range(7):
            q = [q.clone() for q in watched.state.q_memory_dict.values()]
            error = watched.error_of(weight).clone() if watched.state.error_dict else torch.zeros(12, 19)
            model.zero_grad()
            ddp(normal(5, 19, seed=step)).square().sum().backward()
            local = torch.autograd.grad(model(normal(5, 19, seed=step)).square().sum(), list(model.parameters()))
            if q:
                state = running.runtimes[0]._steps.store.export()["0.weight"]
                state["shared/q"].copy_(q[0].view(19, 2).T)
                state["residual"].copy_(error)
            means = running.step([list(local)])[0]
            for mean, parameter in zip(means, model.parameters(), strict=True):
                if step != first or parameter is not weight:  # torch draws its first Q otherwise
                    torch.testing.assert_close(mean, parameter.grad, rtol=1e-3, atol=1e-3)
                dense = step < first or parameter is not weight
                assert torch.equal(mean, local[[p is parameter for p in model.parameters()].index(True)]) == dense


@both
def test_what_has_the_rank_is_sent_exactly(kind: type[LowRank]):
    """Gradients of lower rank than asked: the basis is completed, and what is there is found."""
    slots = slots_of({"w": torch.empty(20, 30)})
    with start(kind(4), slots, 2, gw.NoMemory()) as running:
        for step in range(5):
            grads = [[normal(20, 1, seed=s) @ normal(1, 30, seed=7)] for s in (2 * step, 2 * step + 1)]
            mean = running.step(grads)[0][0]
            if kind is gw.PowerSGD or step in (2, 4):  # then ACP-SGD projects on what all rows have in common
                torch.testing.assert_close(mean, (grads[0][0] + grads[1][0]) / 2, rtol=1e-4, atol=1e-5)


@both
def test_the_same_gradient_converges_to_the_best_of_its_rank(kind: type[LowRank]):
    slots = slots_of({"w": torch.empty(8, 12)})
    grads = draw(slots, 2, 0)
    u, s, v = torch.linalg.svd((grads[0][0] + grads[1][0]) / 2)
    best = (u[:, :2] * s[:2]) @ v[:2]
    with start(kind(2), slots, 2, gw.NoMemory()) as running:
        for _ in range(300):
            approximation = running.step(grads)[0][0]
        torch.testing.assert_close(approximation, best, rtol=1e-2, atol=1e-2)


@both
def test_zero_gradients_send_nothing_and_forget_nothing(kind: type[LowRank]):
    slots = slots_of({"w": torch.empty(8, 12)})
    with start(kind(2), slots, 2, gw.NoMemory()) as running:
        running.step(draw(slots, 2, 0))
        before = running.states()[0]
        for _ in range(3):
            assert not running.step([[torch.zeros(8, 12)]] * 2)[0][0].any()
        after = running.states()[0]
        assert all(torch.equal(before[key], after[key]) for key in before.keys() - {"step", "about"})


@both
def test_it_starts_when_told_and_keeps_nothing_until_then(kind: type[LowRank]):
    with start(kind(1, start_step=2), SLOTS, 2) as running:
        transport = running.transports[0]
        for step in range(4):
            started = len(transport.started)
            grads = draw(SLOTS, 2, step)
            means = running.step(grads)[0]
            assert len(transport.started) - started == 2 * kind.rounds
            for mean, grad, residual in zip(means, total(grads), total(running.state("residual")), strict=True):
                dense = step < 2 or mean.dim() < 2
                assert torch.allclose(mean.double(), grad / 2, atol=1e-6) == dense
                assert residual.any() != dense


def test_what_would_hardly_shrink_travels_dense():
    slots = slots_of({"square": torch.empty(8, 8), "wide": torch.empty(2, 100), "row": torch.empty(1, 50)})
    for compressor, low in [
        (gw.PowerSGD(4), set()),
        (gw.PowerSGD(1), {"square"}),
        (gw.PowerSGD(1, min_compression_rate=1), {"square", "wide"}),
        (gw.PowerSGD(1, min_compression_rate=4), set()),
        (gw.ACPSGD(3), {"square"}),
        (gw.ACPSGD(1), {"square", "wide"}),
    ]:
        ranks = {slot.name: compressor.factor_rank(*slot.matrix) for slot in slots}
        assert {name for name, rank in ranks.items() if rank} == low, compressor
        with start(compressor, slots, 2) as running:
            grads = draw(slots, 2, 0)
            for slot, mean, grad in zip(slots, running.step(grads)[0], total(grads), strict=True):
                assert torch.allclose(mean.double(), grad / 2, atol=1e-6) == (slot.name not in low)


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@both
def test_factors_in_codes_are_nearly_the_papers(kind: type[LowRank], bits: int):
    """The first step from the same basis: what codes lose of the factors is as much as their levels say."""
    slots = slots_of({"w": torch.empty(96, 192)})
    grads = draw(slots, 2, 0)
    means = []
    for compressor, communicator in [(kind(8), gw.AllReduce()), (kind(8, bits=bits), gw.AllGather())]:
        with job(plan_of(slots, compressor, gw.Residual(), communicator), slots, 2) as running:
            means.append(running.step(grads)[0][0])
    off = float((means[1] - means[0]).norm() / means[0].norm())
    assert 0 < off < {8: 0.02, 4: 0.25, 3: 0.5, 2: 1.2}[bits]


@both
def test_what_factors_lose_as_codes_stays_in_the_memory(kind: type[LowRank]):
    """What is subtracted is what was sent: of gradients that end, everything arrives."""
    slots = slots_of({"w": torch.empty(24, 40), "b": torch.empty(24)})
    with job(plan_of(slots, kind(8, bits=4), gw.Residual(), gw.AllGather()), slots, 2) as running:
        grads = draw(slots, 2, 0)
        arrived = [torch.zeros(slot.shape) for slot in slots]
        for step in range(60):
            given = grads if step == 0 else [[torch.zeros(slot.shape) for slot in slots]] * 2
            for sum_, mean in zip(arrived, running.step(given)[0], strict=True):
                sum_ += mean
        for sum_, whole in zip(arrived, total(grads), strict=True):
            torch.testing.assert_close(sum_.double(), whole / 2, rtol=0, atol=1e-3)


def test_which_matrices_are_factored_is_decided_in_bits():
    """8 bits for what is not factored, 4.25 for what is: rank 6 of 12 x 12 pays in codes alone."""
    assert gw.PowerSGD(3, bits=4, min_compression_rate=1).factor_rank(12, 12) == 3
    assert gw.PowerSGD(6, bits=4, min_compression_rate=1).factor_rank(12, 12) == 6
    assert gw.PowerSGD(6, min_compression_rate=1).factor_rank(12, 12) == 0
    assert gw.PowerSGD(12, bits=4, min_compression_rate=1).factor_rank(12, 100) == 0, "of full rank"
    assert gw.ACPSGD(4, bits=4).factor_rank(1, 100) == 0


def test_a_rank_below_one_is_a_share_of_the_shorter_side():
    compressor = gw.PowerSGD(1 / 6, bits=4)
    assert [compressor.factor_rank(*shape) for shape in [(96, 384), (384, 96), (60, 60), (2, 100)]] == [16, 16, 10, 1]


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"rank": 2.5}, {"bits": 5}, {"bits": 16}])
@both
def test_what_is_no_rank_and_no_code_is_refused(kind: type[LowRank], wrong: dict[str, float]):
    with pytest.raises(ValueError, match="use"):
        kind(**wrong)


@pytest.mark.parametrize("cuts", [[200, 400, 600], [0, 288, 288, 300], [295, 310], [5000]], ids=str)
def test_parts_are_encoded_and_decoded_as_each_would_be_alone(cuts: list[int]):
    """Some with factors alone, some with vectors alone, one with both; there are 288 elements of factors."""
    layout = gw.PowerSGD(3, bits=4).vector(layout_of((96, 200), (9,), (300,)), 0, dense=True)
    codec, x = FactorCodec(4), normal(layout.numel)
    bounds = [0, *(min(cut, layout.numel) for cut in cuts), layout.numel]
    context = context_for(layout, codec, x.device)
    found = []
    for alone in (False, True):
        rows, left, out = torch.zeros(len(bounds) - 1, 2000, dtype=torch.uint8), x.clone(), torch.zeros_like(x)
        parts = Parts(context, bounds)
        each = zip(rows.split(1), pairwise(bounds), strict=True)
        cuts = [(row, slice(a, b), context.part(a, b).whole) for row, (a, b) in each if a < b]
        for row, cut, part in cuts if alone else [(rows, slice(None), parts)]:
            codec.encode(LazySum.of(left[cut]), row, part)
            codec.decode(row[:, None], Mean.of(out[cut]), part)
        found.append((rows, left, out))
    assert all(map(torch.equal, *found))
    torch.testing.assert_close(left + out, x)


def test_codes_are_not_added_by_an_all_reduce():
    with pytest.raises(ValueError, match=r"pair it with AllGather\(\)"):
        gw.plans.uniform(SLOTS, gw.PowerSGD(bits=4), communicator=gw.AllReduce())
    assert gw.plans.uniform(SLOTS, gw.PowerSGD(bits=4)).groups[0].communicator == gw.AllGather()


@both
def test_vectors_need_no_group_of_their_own(kind: type[LowRank]):
    (group,) = gw.plans.uniform(SLOTS, kind()).groups
    assert set(group.slots) == set(PARAMETERS)
    low, dense = gw.plans.uniform(SLOTS, kind(), dense=lambda slot: slot.name == "conv").groups
    assert dense.slots == ("conv",)
    assert dense.compressor == gw.FP32()
    assert "bias" in low.slots


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (4, 4), (3, 50), (17, 17), (20, 70)], ids=str)
@pytest.mark.parametrize("fill", ["normal", "zero", "equal rows", "some zero rows", "tiny", "huge", "graded", "near"])
def test_orthogonalize(shape: tuple[int, int], fill: str):
    a = normal(*shape)
    factor = {
        "normal": a,
        "zero": torch.zeros(shape),
        "equal rows": a[:1].repeat(shape[0], 1),
        "some zero rows": torch.cat([a[:1], torch.zeros_like(a[1:])]),
        "tiny": 1e-30 * a,
        "huge": 1e30 * a,
        "graded": a * torch.logspace(0, -20, shape[0])[:, None],
        "near": a[:1] + 1e-5 * a,
    }[fill].clone()
    before = factor.double().clone()
    backend_for(factor).orthogonalize([factor[None]])
    torch.testing.assert_close(factor @ factor.T, torch.eye(shape[0]), rtol=0, atol=1e-5)
    projected = before @ factor.double().T @ factor.double()
    assert (projected - before).norm() <= 1e-5 * before.norm()


@pytest.mark.parametrize("rank", [3, 20])
def test_orthogonalize_gives_equal_shapes_what_each_would_get_alone(rank: int):
    factors = [normal(rank, 40, seed=seed) for seed in range(3)]
    factors[1].zero_()
    together = [torch.stack(factors[:2]), factors[2][None].clone()]
    backend_for(together[0]).orthogonalize(together)
    for factor, own in zip(torch.cat(together), factors, strict=True):
        backend_for(own).orthogonalize([own[None]])
        torch.testing.assert_close(factor.abs(), own.abs(), rtol=1e-3, atol=1e-4)


def layout_of(*shapes: tuple[int, ...]) -> Layout:
    """Slots of these shapes, one after another."""
    return Layout(tuple(slots_of({str(i): torch.empty(shape) for i, shape in enumerate(shapes)})))


def test_equal_shapes_that_are_equally_far_apart_are_one_batch():
    layout = layout_of(*[(4, 3), (4,)] * 3, (4, 3), (2, 6), (4, 3), (4, 3))
    found = batches(layout, [i for i, slot in enumerate(layout.slots) if len(slot.shape) > 1])
    assert [batch.slots for batch in found] == [(0, 2, 4, 6), (8, 9), (7,)]
    flat = torch.arange(float(layout.numel))
    parts = layout.parts(flat)
    for batch in found:
        for i, view in zip(batch.slots, batch.of(flat[batch.start :]), strict=True):
            assert torch.equal(view, parts[i].view(layout.slots[i].matrix))
            assert view.data_ptr() == parts[i].data_ptr()


@both
@pytest.mark.parametrize("bits", [32, 4])
@pytest.mark.parametrize("library", [True, False])
def test_matrices_in_batches_get_what_each_would_get_alone(
    kind: type[LowRank], bits: int, library: bool, monkeypatch: pytest.MonkeyPatch
):
    """The same slots in one group, where they are batches of several tiles, and each in a group of its own."""
    monkeypatch.setattr(in_torch, "TILE", 250)
    if not library:
        monkeypatch.setattr(native, "available", lambda: False)
    layout = layout_of(*[(12, 9), (12,)] * 3, (7, 30), (12, 9), (30, 7), (12, 9))
    slots, means = list(layout.slots), []
    for groups in (1, len(slots)):
        compressor = kind(2, min_compression_rate=1, bits=bits)
        communicator = gw.AllReduce() if bits == 32 else gw.AllGather()
        with job(plan_of(slots, compressor, gw.Residual(), communicator, groups=groups), slots, 2) as running:
            means.append([running.step(draw(slots, 2, step))[0] for step in range(4)])
    torch.testing.assert_close(means[0], means[1], rtol=1e-3, atol=1e-5)


def test_the_first_basis_depends_on_names_alone():
    """Neither on the caller's seed nor on the grouping."""
    states = []
    for seed, groups in ((0, 1), (1, 3)):
        torch.manual_seed(seed)
        np.random.seed(seed)
        with job(plan_of(SLOTS, gw.ACPSGD(), gw.Residual(), gw.AllReduce(), groups=groups), SLOTS, 2) as running:
            states += running.states()
    assert len({key for state in states for key in state}) == len(states[0])
    assert all(torch.equal(state[key], states[0][key]) for state in states for key in state if "//" in key)
