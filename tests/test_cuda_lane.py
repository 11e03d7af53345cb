"""What is written for GPUs, on one that is pretended: every row of the table, four ranks in step with each other."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from cases import CASES, Case
from harness import SMALL, draw, slots_of
from lane import WORLD, Lane
from pretend_cuda import GPU, PretendedGPU, pretended_cuda

import gradwire as gw
from gradwire.compressors import Compressor, Estimated
from gradwire.slots import Slot

WARM = 3
"""Steps before those that are looked at: the longest period."""
PARAMETERS = SMALL | {"wide.weight": torch.empty(301, 257), "wide.bias": torch.empty(301)}
SLOTS = slots_of(PARAMETERS)
LAUNCHES = {
    gw.AllReduce: 70, gw.AllGather: 100, gw.ScatterReduce: 180, gw.LeaderIndices: 40, gw.GlobalTopK: 110,
    gw.Exclusive: 110, gw.SplitGather: 250, gw.OkTopk: 290,
}  # fmt: skip
"""A step's at most, of one rank of four and one group of nine slots."""
MORE = {gw.MultiLevel: 10, gw.ChunkTopK: 320, gw.TernGrad: 120, gw.Quantized: 140}
"""And so many more: codes of few bits take many calls in torch."""
FIRST = {type(part): case for case in CASES[::-1] for part in (case.compressor, case.communicator)}
"""A row for each compressor and each communicator."""


def has_coded_factors(case: Case) -> bool:
    return isinstance(case.compressor, gw.PowerSGD | gw.ACPSGD) and case.compressor.bits < 32


cases = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture
def gpu() -> Iterator[PretendedGPU]:
    with pretended_cuda() as pretended, torch.no_grad():
        yield pretended


def steps(case: Case, slots: Sequence[Slot], gpu: PretendedGPU) -> Iterator[Lane]:
    """The job in front of each of three steps that are looked at."""
    lane = Lane(case, slots, GPU, gpu)
    for number in range(WARM):
        lane.step(draw(slots, WORLD, number))
    for _ in range(3):
        gpu.forget()
        yield lane


@cases
def test_a_step_asks_the_host_for_nothing_and_launches_little(case: Case, gpu: PretendedGPU):
    for lane in steps(case, SLOTS, gpu):
        lane.step(draw(SLOTS, WORLD, lane.number))
        assert not gpu.syncs, f"the host waits: {dict(gpu.syncs)}"
        assert not gpu.pageable, f"copies of memory that is not pinned: {dict(gpu.pageable)}"
        launched = gpu.kernels.total() / WORLD
        assert launched <= launches(case), f"{launched} launches: {gpu.lines.most_common(12)}"


@pytest.mark.parametrize("case", dict.fromkeys(FIRST.values()), ids=str)
def test_nothing_is_launched_per_slot(case: Case, gpu: PretendedGPU):
    few, many = (launched(case, layers(count), gpu) for count in (5, 8))
    assert many < few + len(SMALL), f"{many - few} more for {3 * len(SMALL)} more slots: {gpu.lines.most_common(12)}"


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


def launches(case: Case) -> int:
    """The bound."""
    compressor = case.compressor.first if isinstance(case.compressor, gw.Interleaved) else case.compressor
    if has_coded_factors(case):
        return 250 if isinstance(case.communicator, gw.AllGather) else 800
    more = 50 if case.communicator == gw.AllGather(over_senders=True) else 500 if has_short_values(case) else 0
    return LAUNCHES[type(case.communicator)] + MORE.get(type(compressor), 0) + more


def has_short_values(case: Case) -> bool:
    """Whether entries travel as codes."""
    compressor = case.compressor.codec if isinstance(case.compressor, gw.MultiLevel) else case.compressor
    return getattr(compressor, "value_bits", 32) < 32


def differs(case: Case) -> bool:
    """Whether it does something else on a CPU: other noise, thresholds that a host looks at, or codes that another
    rounding makes another level, and so another selection, or basis, later."""
    coded = has_short_values(case) or (has_coded_factors(case) and case.compressor.rank < 1)
    return is_estimated(case.compressor) or isinstance(case.communicator, gw.OkTopk) or coded


def is_estimated(compressor: Compressor) -> bool:
    if isinstance(compressor, gw.Interleaved):
        return is_estimated(compressor.first) or is_estimated(compressor.second)
    if isinstance(compressor, gw.MultiLevel):
        return is_estimated(compressor.codec)
    return isinstance(compressor, gw.QSGD | gw.TernGrad | Estimated | gw.ReusedThreshold)


@cases
def test_means_are_lawful_and_those_of_a_cpu(case: Case, gpu: PretendedGPU):
    here, there = Lane(case, SLOTS, GPU, gpu), Lane(case, SLOTS, torch.device("cpu"))
    conserves = case.memory == gw.Residual() and case.communicator != gw.AllGather(over_senders=True)
    for number in range(4):
        grads = draw(SLOTS, WORLD, number)
        before = here.residuals() if conserves else []
        means, expected = here.step(grads), there.step(grads)
        for own in means[1:]:
            assert all(torch.equal(a, b) for a, b in zip(own, means[0], strict=True))
        if not differs(case):
            for mean, other in zip(means[0], expected[0], strict=True):
                torch.testing.assert_close(mean, other, rtol=0, atol=2e-4 if case.bits == 16 else 2e-5)
        for i, old in enumerate(before):
            given = torch.stack([own[i].double() for own in grads]).sum(0) / WORLD
            limit = 4 * case.rounding * max(1.0, float((old + given).abs().max()))
            assert (old + given - here.residuals()[i] - means[0][i]).abs().max() <= limit
