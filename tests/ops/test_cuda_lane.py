"""What is written for GPUs, on one that is pretended: every row of the table, four ranks in step with each other."""

from collections.abc import Iterator, Sequence

import pytest
import torch

import gradwire as gw
from gradwire.compressors import Thresholded, context_for
from gradwire.ops.backend import REFERENCE
from gradwire.ops.formats import Blocks, Code
from gradwire.ops.host import to_device, to_host
from gradwire.ops.noise import Seed
from gradwire.slots import Layout, Slot
from tests.support.cases import CASES, FEW, Case, rows
from tests.support.harness import SMALL, draw, hosts, slots_of
from tests.support.kernel_cases import CODES, numbers
from tests.support.lane import WORLD, Lane
from tests.support.pretend_cuda import GPU, PretendedGPU, on_gpu, pretended_cuda, real

WARM = 3
"""Steps before those that are looked at: the longest period; one for what does the same at every step."""
PARAMETERS = SMALL | {"wide.weight": torch.empty(301, 257), "wide.bias": torch.empty(301)}
SLOTS = slots_of(PARAMETERS)


@pytest.fixture
def gpu() -> Iterator[PretendedGPU]:
    with pretended_cuda() as pretended, torch.no_grad():
        yield pretended


def counted(gpu: PretendedGPU) -> tuple[int, int, int]:
    """Kernels, waits and copies of memory that is not pinned, since this was asked last."""
    found = gpu.kernels.total(), gpu.syncs.total(), gpu.pageable.total()
    gpu.forget()
    return found


def test_the_pretended_gpu_counts_what_is_launched_and_waited_for(gpu: PretendedGPU):
    x, here = on_gpu(torch.arange(3.0)), torch.arange(3.0)
    pinned = here.pin_memory()
    for call, expected in (
        (lambda: x + x, (1, 0, 0)),
        (x[0].item, (0, 1, 0)),
        (lambda: x[on_gpu(torch.ones(3, dtype=torch.bool))], (1, 1, 0)),
        (x.cpu, (0, 1, 0)),
        (lambda: x.to("cpu", non_blocking=True), (0, 1, 0)),
        (lambda: x.copy_(here, non_blocking=True), (1, 0, 1)),
        (lambda: here.copy_(x, non_blocking=True), (1, 1, 0)),
        # pinned memory is copied without a wait, if the call says so
        (lambda: x.copy_(pinned), (1, 1, 0)),
        (lambda: pinned.to(GPU), (1, 1, 0)),
        (lambda: pinned.copy_(x), (1, 1, 0)),
        (lambda: x.copy_(pinned, non_blocking=True), (1, 0, 0)),
        (lambda: pinned.to(GPU, non_blocking=True), (1, 0, 0)),
        (lambda: pinned.copy_(x, True), (1, 0, 0)),
    ):
        gpu.forget()
        call()
        assert counted(gpu) == expected


def test_copies_between_the_host_and_a_gpu_are_not_waited_for(gpu: PretendedGPU):
    there = to_device(torch.arange(3.0), GPU)
    assert torch.equal(real(there), torch.arange(3.0))
    assert torch.equal(to_host(there), torch.arange(3.0))
    assert counted(gpu) == (2, 0, 0)


@pytest.mark.parametrize("code", CODES, ids=str)
def test_codes_stand_for_the_same_bits_on_a_gpu(code: Code, gpu: PretendedGPU):
    """Of two ranks one may compute by Triton, which divides as a CPU does, and the other by torch."""
    layout = Blocks((5000, 77), code)
    rows = torch.zeros(3, layout.nbytes, dtype=torch.uint8)
    for rank, row in enumerate(rows):
        x = numbers(5077, rank)
        REFERENCE.add_quantise(x, x, None, 1.0, 1.0, [layout], row[None], keep=False, seeds=[Seed(rank)])
    here, there = on_gpu(torch.empty(5077)), torch.empty(5077)
    REFERENCE.sum_blocks(on_gpu(rows)[None], here, [layout])
    REFERENCE.sum_blocks(rows[None], there, [layout])
    assert torch.equal(real(here), there)


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
    conserves = case.conserves and case.memory == gw.Residual()
    warm = 1 if case.recordable and case.phases(WORLD) == 1 else WARM
    for number in range(warm + 2):
        grads = draw(SLOTS, WORLD, number)
        before = here.residuals() if conserves else []
        gpu.forget()
        means = here.step(grads)
        if number >= warm:
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
    assert 0 < launched <= case.launches[1], f"{launched} launches: {gpu.lines.most_common(12)}"


@pytest.mark.parametrize("compressor", [gw.RandomK(0.05, rescale=True), gw.QSGD()], ids=str)
def test_hosts_draw_anew_at_every_step(compressor: gw.Compressor, gpu: PretendedGPU):
    case = Case(compressor, gw.NoMemory(), gw.AllGather(), 0)
    lane, grads = Lane(case, SLOTS, GPU, gpu, meshes=hosts(2, 2)), draw(SLOTS, WORLD, 0)
    first, second = (lane.step(grads)[0] for _ in range(2))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True) if a.numel() > 1000)


BY_THRESHOLD = [gw.DGC(0.01), gw.GaussianK(0.01), gw.RedSync(0.01), gw.SIDCo(0.01), gw.ReusedThreshold(0.01, warmup=0)]


@pytest.mark.parametrize("codec", BY_THRESHOLD, ids=str)
def test_thresholds_select_exactly_on_a_gpu(codec: Thresholded, gpu: PretendedGPU):
    generator, context = torch.Generator().manual_seed(7), context_for(Layout.vector(10_000), codec, GPU)
    for step in range(3):
        x = torch.randn(10_000, generator=generator)
        gpu.forget()
        context.step, chosen = step, codec.select(on_gpu(x), 100, context)
        assert not gpu.syncs
        assert torch.equal(real(chosen), x.abs().topk(100).indices.sort().values)


HARD = gw.HardThreshold(4.0, 0.05)
BY_A_HARD_THRESHOLD = [
    (HARD, gw.AllGather()), (HARD, gw.ScatterReduce()), (HARD, gw.SplitGather()), (HARD, gw.GlobalTopK()),
    (HARD, gw.OkTopk(rebalance=1, reuse=1)), (HARD, gw.LeaderIndices()), (HARD, gw.Exclusive()),
    (gw.MultiLevel(HARD, 2, 0.0), gw.AllReduce()), (gw.MultiLevel(HARD, 50, 0.0), gw.AllReduce()),
]  # fmt: skip


@pytest.mark.parametrize(("compressor", "communicator"), BY_A_HARD_THRESHOLD, ids=str)
def test_a_hard_threshold_holds_on_a_gpu(
    compressor: gw.Compressor, communicator: gw.Communicator, gpu: PretendedGPU
):  # fmt: skip
    """What is below it is not sent, though there is room."""
    case = Case(compressor, gw.Residual(), communicator, 32)
    here, there = Lane(case, SLOTS, GPU, gpu), Lane(case, SLOTS, torch.device("cpu"))
    room = HARD.count(sum(slot.numel for slot in SLOTS))
    for number in range(2):
        grads = draw(SLOTS, WORLD, number)
        means, expected = here.step(grads)[0], there.step(grads)[0]
        assert 0 < sum(int(mean.count_nonzero()) for mean in expected) < room
        for ours, theirs in ((means, expected), (here.residuals(), there.residuals())):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)
