"""What is written for GPUs, on one that is pretended: every row of the table, four ranks in step with each other."""

from collections.abc import Iterator, Sequence

import pytest
import torch

import gradwire as gw
from gradwire.compressors import Estimated, context_for
from gradwire.slots import Layout, Slot
from tests.support.cases import CASES, FEW, Case, rows
from tests.support.harness import SMALL, draw, slots_of
from tests.support.lane import WORLD, Lane
from tests.support.pretend_cuda import GPU, PretendedGPU, on_gpu, pretended_cuda, real

WARM = 3
"""Steps before those that are looked at: the longest period."""
PARAMETERS = SMALL | {"wide.weight": torch.empty(301, 257), "wide.bias": torch.empty(301)}
SLOTS = slots_of(PARAMETERS)


@pytest.fixture
def gpu() -> Iterator[PretendedGPU]:
    with pretended_cuda() as pretended, torch.no_grad():
        yield pretended


@pytest.mark.parametrize("case", [case for case in CASES if case in FEW], ids=str)
def test_nothing_is_launched_per_slot(case: Case, gpu: PretendedGPU):
    few, many = (launched(case, layers(count), gpu) for count in (1, 3))
    assert many < few + len(SMALL), f"{many - few} more for {2 * len(SMALL)} more slots: {gpu.lines.most_common(12)}"


def layers(count: int) -> list[Slot]:
    """As many slots of equal shapes, as a model's layers have."""
    return slots_of({f"{layer}.{name}": tensor for layer in range(count) for name, tensor in SMALL.items()})


def launched(case: Case, slots: Sequence[Slot], gpu: PretendedGPU) -> float:
    """The most of two steps, per rank."""
    lane, totals = Lane(case, slots, GPU, gpu), list[int]()
    for number in range(3):
        gpu.forget()
        lane.step(draw(slots, WORLD, number))
        totals.append(gpu.kernels.total())
    return max(totals[1:]) / WORLD


@rows(CASES)
def test_means_are_lawful_and_those_of_a_cpu_and_the_host_does_not_wait(case: Case, gpu: PretendedGPU):
    here, there = Lane(case, SLOTS, GPU, gpu), Lane(case, SLOTS, torch.device("cpu"))
    conserves = case.memory == gw.Residual() and case.communicator != gw.AllGather(over_senders=True)
    for number in range(WARM + 2):
        grads = draw(SLOTS, WORLD, number)
        before = here.residuals() if conserves else []
        gpu.forget()
        means = here.step(grads)
        if number >= WARM:
            asks_for_nothing_and_launches_little(case, gpu)
        for own in means[1:]:
            assert all(torch.equal(a, b) for a, b in zip(own, means[0], strict=True))
        expected = there.step(grads)
        if not case.gpu_differs:
            for mean, other in zip(means[0], expected[0], strict=True):
                torch.testing.assert_close(mean, other, rtol=0, atol=2e-4 if case.bits == 16 else 2e-5)
        for i, old in enumerate(before):
            given = torch.stack([own[i].double() for own in grads]).sum(0) / WORLD
            limit = 4 * case.rounding * max(1.0, float((old + given).abs().max()))
            assert (old + given - here.residuals()[i] - means[0][i]).abs().max() <= limit


def asks_for_nothing_and_launches_little(case: Case, gpu: PretendedGPU) -> None:
    assert not gpu.syncs, f"the host waits: {dict(gpu.syncs)}"
    assert not gpu.pageable, f"copies of memory that is not pinned: {dict(gpu.pageable)}"
    launched = gpu.kernels.total() / WORLD
    assert launched <= case.launches[1], f"{launched} launches: {gpu.lines.most_common(12)}"


ESTIMATES = [
    gw.DGC(0.01),
    gw.GaussianK(0.01),
    gw.RedSync(0.01),
    gw.SIDCo(0.01),
    gw.SIDCo(0.01, "gamma"),
    gw.SIDCo(0.01, "pareto"),
]
SHAPES = {
    "normal": torch.randn, "few values": lambda n, generator: torch.randn(n, generator=generator).round(),
    "heavy": lambda n, generator: torch.randn(n, generator=generator).pow(5),
    "zero": lambda n, generator: 0 * torch.ones(n), "one": lambda n, generator: torch.eye(1, n)[0],
}  # fmt: skip


@pytest.mark.parametrize("codec", ESTIMATES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, 300_000])
def test_estimates_on_a_gpu_choose_k_among_the_largest(codec: Estimated, shape: str, n: int, gpu: PretendedGPU):
    """k elements, each once; no sync; and but for where an estimate is none, at least 0.7 of them as on a CPU."""
    x = SHAPES[shape](n, generator=torch.Generator().manual_seed(n))
    context = context_for(Layout.vector(n), codec, GPU)
    k = codec.count(n)
    gpu.forget()
    chosen = codec.select(on_gpu(x), k, context)
    assert not gpu.syncs
    indices = real(chosen)
    assert len(indices) == k
    assert bool((indices.diff() > 0).all())
    kth = x.abs().topk(k).values
    assert x[indices].abs().sum() >= 0.7 * kth.sum()


@pytest.mark.parametrize("change", [1.0, 0.1, 10.0])
def test_a_reused_threshold_on_a_gpu_is_given_up_a_step_after_it_no_longer_fits(change: float, gpu: PretendedGPU):
    codec = gw.ReusedThreshold(0.01, warmup=0)
    context = context_for(Layout.vector(100_000), codec, GPU)
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(7))
    thresholds = []
    for step in range(3):
        context.step = step
        codec.select(on_gpu(x if step == 0 else change * x), 1000, context)
        context.group.commit()
        thresholds.append(context.group["reused"].tolist())
    smallest = float(x.abs().topk(1000).values[-1])
    assert thresholds[0] == [pytest.approx(smallest), 5, 1]
    if change == 1:
        assert thresholds[2] == [pytest.approx(smallest), 5, 3]
    else:
        assert thresholds[1:] == [[0, 5, 2], [pytest.approx(change * smallest), 5, 1]]
