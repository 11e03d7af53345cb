"""Rows of sparse gradients in few bits: a memory loses nothing, and a skipped step leaves no trace."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire import checkpoint
from gradwire.ops.workspace import scratch_on
from gradwire.runtime.state.row_formats import Coded
from tests.support.harness import Job, draw, job, plan_of, raising, slots_of, together
from tests.support.pretend_cuda import GPU, on_gpu, pretended_cuda, real

WORLD = 3
TABLES = {"embedding": torch.empty(12, 24), "bag": torch.empty(7, 10)}
"""Rows of whole blocks, and of part of one."""
SLOTS = slots_of({**TABLES, "dense": torch.empty(6, 5)})
SPARSE = SLOTS[:2]
WAYS = [(gw.Quantized(bits), memory) for bits in (8, 4) for memory in (gw.NoMemory(), gw.Residual())]


def rows(step: int, rank: int) -> list[Tensor]:
    """Some rows of each table, none of the second one on rank 0; and a dense gradient."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    gradients = []
    for slot in SPARSE:
        count = 0 if slot.name == "bag" and rank == 0 else 4
        indices = torch.randint(slot.shape[0], (1, count), generator=generator)
        values = torch.randn(count, *slot.shape[1:], generator=generator)
        gradients.append(torch.sparse_coo_tensor(indices, values, slot.shape, check_invariants=True).coalesce())
    return [*gradients, torch.randn(6, 5, generator=generator)]


def start(way: tuple[gw.Compressor, gw.Memory], world: int = WORLD, **options):
    names = tuple(slot.name for slot in SPARSE)
    plan = gw.Plan((gw.Group(("dense",), gw.TopK(0.2), gw.Residual(), gw.AllGather()),))
    return job(plan, SLOTS, world, sparse=names, rows=way, **options)


def dense(gradients: Sequence[Tensor]) -> list[Tensor]:
    return [gradient.to_dense() for gradient in gradients[:2]]


def kept(running: Job) -> list[Tensor]:
    """What all ranks' rows lack."""
    return [torch.stack(own).sum(0) for own in zip(*running.state("residual"), strict=True)][:2]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_means_are_near_and_nothing_is_lost_with_a_memory(way: tuple[gw.Compressor, gw.Memory]) -> None:
    bits, remembers = way[0].bits, way[1] == gw.Residual()
    with start(way) as running:
        given, sent = [torch.zeros(slot.shape) for slot in SPARSE], [torch.zeros(slot.shape) for slot in SPARSE]
        for step in range(4):
            gradients = [rows(step, rank) for rank in range(WORLD)]
            means = running.step(gradients)
            assert all(torch.equal(a, b) for own in means for a, b in zip(dense(own), dense(means[0]), strict=True))
            assert means[0][0].is_sparse
            for i in range(2):
                mean = sum(dense(own)[i] for own in gradients) / WORLD
                given[i] += mean
                sent[i] += dense(means[0])[i]
                # half a level of the largest number, by rank; and what was lacking before
                error = (dense(means[0])[i] - mean).abs().max()
                assert error <= (2 if remembers else 0.51) * 4 / (2 ** (bits - 1) - 1)
        assert any(residual.any() for residual in kept(running)) == remembers
        if remembers:
            for i, residual in enumerate(kept(running)):
                torch.testing.assert_close(sent[i] + residual, given[i], rtol=1e-5, atol=1e-5)


def test_rows_that_do_not_come_keep_what_they_lack() -> None:
    with start(WAYS[-1]) as running:
        running.step([rows(0, rank) for rank in range(WORLD)])
        before = running.state("residual")
        again = [rows(1, rank) for rank in range(WORLD)]
        running.step(again)
        for rank, own in enumerate(again):
            touched = own[0].indices()[0].unique()
            stays = torch.ones(12, dtype=torch.bool).index_fill_(0, touched, False)
            assert torch.equal(running.state("residual")[rank][0][stays], before[rank][0][stays])


def test_steps_that_do_not_count_leave_no_trace() -> None:
    def trained(extra: str) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        with start(WAYS[-1]) as running:
            running.step([rows(0, rank) for rank in range(WORLD)])
            bad = [rows(1, rank) for rank in range(WORLD)]
            if extra == "nan":
                bad[1][0].values()[0, 0] = torch.nan
                for own in running.step(bad):
                    assert dense(own)[0].isnan().any()
            if extra == "skip":
                running.step(bad)
                running.skip()
            means = running.step([rows(2, rank) for rank in range(WORLD)])
            return [dense(own) for own in means], [own[:2] for own in running.state("residual")]

    plain = trained("")
    for extra in ("nan", "skip"):
        for one, other in zip(trained(extra), plain, strict=True):
            assert all(torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def test_where_backward_fails_on_one_rank_the_rows_of_all_are_nan_though_nothing_is_kept() -> None:
    plan = gw.Plan((gw.Group(("dense",), gw.FP32(), gw.NoMemory(), gw.AllReduce()),))
    with job(plan, SLOTS, 2, sparse=[slot.name for slot in SPARSE]) as running:
        whole, part = rows(0, 0), rows(0, 1)[:1]
        for runtime, own in zip(running.runtimes, (whole, part), strict=True):
            runtime.open_step()
            for slot, gradient in enumerate(own):
                runtime.submit(slot, gradient)
        raising(together(2, lambda rank: running.runtimes[rank].give_up()))
        running.finish()
        assert all(own[0].to_dense().isnan().any() for own in (whole, part))
        assert [runtime.stats().skipped for runtime in running.runtimes] == [1, 1]


def test_residuals_survive_checkpoints_and_other_plans() -> None:
    with start(WAYS[-1]) as running, start(WAYS[-1]) as resumed:
        for step in range(2):
            running.step([rows(step, rank) for rank in range(WORLD)])
        resumed.load(running.states())
        running.install(gw.Plan((gw.Group(("dense",), gw.FP32(), gw.NoMemory(), gw.AllReduce()),)))
        last = [rows(2, rank) for rank in range(WORLD)]
        for one, other in zip(running.step(last), resumed.step(last), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(dense(one), dense(other), strict=True))


@pytest.mark.parametrize("way", [(gw.FP32(), gw.NoMemory()), WAYS[-1]], ids=str)
def test_a_scale_of_the_loss_and_weights_are_no_part_of_a_residual(way: tuple[gw.Compressor, gw.Memory]) -> None:
    weights = iter([3.0, 1.0, 4.0, 0.0])
    options = {"scale": lambda: 1024.0, "weight": weights.__next__}
    with start(way, 2, **options) as scaled, start(way, 2) as plain:
        for step, factors in enumerate([(1.5, 0.5), (2.0, 0.0)]):
            gradients = [rows(step, rank) for rank in range(2)]
            expected = plain.step([[g * factor for g in own] for own, factor in zip(gradients, factors, strict=True)])
            # what has no weight may be anything
            numbers = [1024 if factor else torch.nan for factor in factors]
            means = scaled.step([[g * number for g in own] for own, number in zip(gradients, numbers, strict=True)])
            for one, other in zip(dense(means[0]), dense(expected[0]), strict=True):
                assert torch.equal(one / 1024, other)
        assert all(torch.equal(*each) for each in zip(kept(scaled), kept(plain), strict=True))


def test_fewer_bytes_travel() -> None:
    sizes = []
    for way in [(gw.FP32(), gw.NoMemory()), WAYS[0], WAYS[2]]:
        with start(way) as running:
            running.step([rows(0, rank) for rank in range(WORLD)])
            sizes.append(running.runtimes[1].stats().wire_bytes)
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_number_of_rows_that_comes_once_leaves_no_table_on_a_gpu() -> None:
    """Where each step has another number of rows, memory would grow with every step."""
    coded, (slot, _) = Coded(gw.Quantized(4)), SPARSE
    with pretended_cuda():
        before = {*scratch_on(GPU).contents()[1]}
        for count in range(1, 9):
            values = torch.randn(count, slot.shape[1], generator=torch.Generator().manual_seed(count))
            payload = on_gpu(torch.zeros(coded.nbytes(slot, count), dtype=torch.uint8))
            errors = coded.write(slot, on_gpu(values), payload)
            read = coded.read(slot, payload, count)
            torch.testing.assert_close(real(read) + real(errors), values, rtol=1e-6, atol=1e-6)
            kept = scratch_on(GPU).contents()[1]
            assert not [key for key in kept if "grid" in str(key) and key not in before]


def test_a_table_that_was_dense_keeps_its_velocity_where_its_gradients_are_sparse():
    plan = plan_of(SLOTS, gw.TopK(0.2), gw.DGCMemory(), gw.AllGather())
    with job(plan, SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
    # one rank has it of one table alone: all have room for both
    second = checkpoint.unpack(saved[1])
    del second.exported["bag"]["velocity"]
    saved[1] = checkpoint.pack(second.exported, second.job, second.step, second.about)
    with start((gw.Quantized(8), gw.Residual()), 2) as other:
        other.load(saved)
        other.step([rows(0, rank) for rank in range(2)])
        states = [runtime.state_dict(padded=True) for runtime in other.runtimes]
    assert states[0].keys() == states[1].keys()
    for own, before in zip(states, saved, strict=True):
        for key in (f"{name}//velocity" for name in TABLES):
            assert torch.equal(own[key], before.get(key, torch.zeros_like(own[key])))
