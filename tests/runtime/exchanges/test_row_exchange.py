"""Sparse gradients: the mean of rows is that of the dense gradients, whatever rows the ranks have."""

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.plans import uniform
from gradwire.runtime.exchanges.row_exchange import _sum
from gradwire.slots import Slot
from gradwire.torch_private.foreach import add_to_each
from tests.support.harness import job, slots_of

SHAPES = {"table": (9, 4), "column": (7,), "cube": (5, 2, 3)}
DENSE = {"weight": torch.empty(6, 6), "bias": torch.empty(6)}


def slots(dtype: torch.dtype) -> list[Slot]:
    return slots_of(DENSE | {name: torch.empty(shape, dtype=dtype) for name, shape in SHAPES.items()})


def sparse(slot: Slot, rows: int, generator: torch.Generator) -> Tensor:
    """So many rows, some of them of the same index."""
    indices = torch.randint(slot.shape[0], (1, rows), generator=generator)
    values = torch.randn(rows, *slot.shape[1:], generator=generator).to(slot.dtype)
    return torch.sparse_coo_tensor(indices, values, slot.shape, check_invariants=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("world", [2, 3])
def test_the_mean_is_that_of_the_dense_gradients(world: int, dtype: torch.dtype):
    generator, every = torch.Generator().manual_seed(world), slots(dtype)
    plan = uniform(every[: len(DENSE)], gw.FP32())
    with job(plan, every, world, sparse=SHAPES.keys()) as running:
        # rows of all ranks, of one rank alone, and of none
        for rows_of in ([3] * world, [0] * (world - 1) + [4], [0] * world):
            given = [
                [torch.randn(slot.shape, generator=generator) for slot in every[: len(DENSE)]]
                + [sparse(slot, rows, generator) for slot in every[len(DENSE) :]]
                for rows in rows_of
            ]
            means = running.step(given)
            for at, _ in enumerate(every):
                dense = [own[at].to_dense().double() if own[at].is_sparse else own[at].double() for own in given]
                expected = torch.stack(dense).mean(0)
                for own in means:
                    mean = own[at].to_dense() if own[at].is_sparse else own[at]
                    close = (2e-2, 2e-2) if dtype == torch.bfloat16 else (1e-5, 1e-6)
                    torch.testing.assert_close(mean.double(), expected, rtol=close[0], atol=close[1])
                    assert own[at].is_sparse == (at >= len(DENSE))
                first = means[0][at].to_dense()
                assert all(torch.equal(own[at].to_dense(), first) for own in means)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_in_few_bits_are_half_precision_once_they_are_summed_and_scaled(dtype: torch.dtype):
    """Codes stand for numbers that a row's type may not hold; a mean is rounded to it once."""
    every, scale = slots_of({"table": torch.empty(4, 8, dtype=dtype), "weight": torch.empty(2, 2)}), 2.0**16
    plan, dense = uniform(every[1:], gw.FP32()), torch.zeros(2, 2)
    options = {"scale": lambda: scale, "sparse": ["table"], "rows": (gw.Quantized(8), gw.Residual())}
    for number in (5e-8, 1e-6):
        with job(plan, every, 3, **options) as running:
            rows, nothing = torch.full((1, 8), scale * number, dtype=dtype), sparse(every[0], 0, torch.Generator())
            filled = torch.sparse_coo_tensor([[1]], rows, (4, 8), check_invariants=False)
            means = running.step([[filled, dense], [filled, dense], [nothing, dense]])
            expected = (filled.to_dense().float() * 2 / 3).to(dtype)
            # but for a last bit of codes' scales
            torch.testing.assert_close(means[0][0].to_dense(), expected, rtol=1e-2, atol=0)


def test_rows_are_summed_in_the_order_of_ranks():
    """On every processor: torch sorts equal indices in an order of its own."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(4):
        indices = torch.randperm(1000, generator=generator)[:500]
        parts.append((indices, torch.randn(500, 3, generator=generator)))
    expected = torch.zeros(1000, 3)
    for indices, values in parts:
        expected[indices] += values
    indices, rows = _sum(parts)
    assert torch.equal(rows, expected[indices])


def test_a_dense_gradient_takes_part_and_stays_dense():
    every, generator = slots(torch.float32), torch.Generator().manual_seed(0)
    with job(uniform(every[: len(DENSE)], gw.FP32()), every, 2, sparse=SHAPES.keys()) as running:
        rows = [sparse(slot, 3, generator) for slot in every[len(DENSE) :]]
        given = [[torch.ones(slot.shape) for slot in every], [torch.ones(s.shape) for s in every[: len(DENSE)]] + rows]
        exchange = running.runtimes[0]._steps.exchanges[-1]
        exchange.drop_gradients = lambda: None
        means = running.step(given)
        for own, row in zip(means[0][len(DENSE) :], rows, strict=True):
            assert not own.is_sparse
            torch.testing.assert_close(own, (1 + row.to_dense()) / 2)
        # as a GPU spoils a step, without reading its verdict; then all of it
        for nonfinite in (0.0, torch.nan):
            add_to_each(exchange.firsts(), torch.tensor([nonfinite]))
            assert [int(own.isnan().sum()) for own in means[0][len(DENSE) :]] == [nonfinite != 0] * len(rows)
        exchange.poison()
        assert all(own.isnan().all() for own in means[0][len(DENSE) :])


@pytest.mark.parametrize("number", [torch.nan, 3e38], ids=["not finite", "finite, and their sum is not"])
def test_rows_that_are_not_finite_spoil_the_whole_step(number: float):
    every = slots(torch.float32)
    with job(uniform(every[: len(DENSE)], gw.TopK(0.5)), every, 2, sparse=SHAPES.keys()) as running:
        rows = [
            torch.sparse_coo_tensor(
                [[0, 1]], torch.full((2, *slot.shape[1:]), number), slot.shape, check_invariants=False
            )
            for slot in every[len(DENSE) :]
        ]
        given = [[torch.ones(slot.shape) for slot in every[: len(DENSE)]] + rows for _ in range(2)]
        for own in running.step(given):
            assert all(mean.isnan().all() for mean in own[: len(DENSE)])
        assert [runtime.stats().skipped for runtime in running.runtimes] == [1, 1]


def test_no_plan_and_no_checkpoint_has_them():
    every = slots(torch.float32)
    plan = uniform(every, gw.TopK(0.5))
    with job(plan, every, 2, sparse=SHAPES.keys()) as running:
        assert not SHAPES.keys() & {name for group in running.runtimes[0].plan.groups for name in group.slots}
        generator = torch.Generator().manual_seed(1)
        for _ in range(2):
            running.step([
                [torch.ones(slot.shape) for slot in every[: len(DENSE)]]
                + [sparse(slot, 2, generator) for slot in every[len(DENSE) :]]
                for _ in range(2)
            ])  # fmt: skip
        buffers = running.runtimes[0]._states._steps.store._buffers
        assert sum(every[slot].numel for slot in buffers._places.order) == 42
        running.skip()
        running.load(running.states())
