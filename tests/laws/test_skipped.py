"""Steps that a user skips; that nothing of them is left, whatever the compressor, is among the laws."""

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.communicators import Communicator
from gradwire.memories import Memory
from gradwire.runtime.worker.executor import Executor
from tests.support.harness import SMALL, Job, draw, hosts, impatient, job, plan_of, slots_of, together
from tests.support.states import same_states

SLOTS = slots_of(SMALL)
SPIKE = 1e4


def same_means(one: list[list[Tensor]], other: list[list[Tensor]]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))


def leaves_no_trace(running: Job, steps: int) -> None:
    """Each step is made, taken back, and made again after one of large gradients that was taken back as well."""
    running.step(draw(SLOTS, running.world, 0))
    before = running.states()
    for step in range(1, steps + 1):
        means, after = running.step(draw(SLOTS, running.world, step)), running.states()
        running.skip()
        same_states(running.states(), before)
        running.step(draw(SLOTS, running.world, 100 + step, scale=SPIKE))
        running.skip()
        same_means(running.step(draw(SLOTS, running.world, step)), means)
        same_states(before := running.states(), after)


@pytest.mark.parametrize(
    ("compressor", "communicator"), [(gw.TopK(0.1), gw.AllGather()), (gw.ACPSGD(2), gw.AllReduce())]
)
def test_hosts_take_back_as_well(compressor: gw.Compressor, communicator: gw.Communicator):
    plan = plan_of(SLOTS, compressor, gw.Residual(), communicator)
    with job(plan, SLOTS, 4, transports=hosts(2, 2)) as running:
        leaves_no_trace(running, 2)


def test_what_was_pending_from_another_plan_is_pending_again():
    with job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        running.install(plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce()))
        before = running.states()
        means = running.step(draw(SLOTS, 2, 1))
        running.skip()
        same_states(running.states(), before)
        same_means(running.step(draw(SLOTS, 2, 1)), means)


def each_alone(order: str, compressor: gw.Compressor, memory: Memory, communicator: Communicator) -> gw.Plan:
    return gw.Plan(tuple(gw.Group((name,), compressor, memory, communicator) for name in order))


@pytest.mark.parametrize(
    ("after", "local"),
    [
        (each_alone("ab", gw.FP32(), gw.NoMemory(), gw.AllReduce()), 1),  # sends it without a memory
        (each_alone("ba", gw.TopK(1.0), gw.Residual(), gw.AllGather()), 2),  # other ranks lead the groups
    ],
)
def test_a_residual_that_was_sent_comes_back_by_no_later_skip(after: gw.Plan, local: int):
    slots = slots_of({"a": torch.empty(4, 5), "b": torch.empty(3, 5)})
    before, world = each_alone("ab", gw.TopK(0.1), gw.Residual(), gw.AllGather()), 2 * local
    with job(before, slots, world, transports=hosts(2, 2) if local == 2 else ()) as running:
        zeros = [[slot.view(torch.zeros(slot.numel)) for slot in slots] for _ in range(world)]
        running.step(draw(slots, world, 0))
        running.install(after)
        assert any(mean.any() for mean in running.step(zeros)[0])
        for _ in range(2):
            assert not any(mean.any() for mean in running.step(zeros)[0])
            running.skip()
            assert not any(mean.any() for mean in running.step(zeros)[0])


def test_a_step_can_be_taken_back_after_its_plan_was_replaced():
    with job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        before = running.states()
        running.step(draw(SLOTS, 2, 1, scale=SPIKE))
        running.install(plan_of(SLOTS[::-1], gw.PowerSGD(2), gw.Residual(), gw.AllReduce(), groups=3))
        running.skip()
        for own, old in zip(running.state("residual"), before, strict=True):
            assert all(torch.equal(a, old[f"{slot.name}//residual"]) for a, slot in zip(own, SLOTS, strict=True))
        means = running.step(draw(SLOTS, 2, 2))
        assert running.runtimes[0].plan.groups[0].compressor == gw.PowerSGD(2)
        running.skip()
        same_means(running.step(draw(SLOTS, 2, 2)), means)


def test_the_first_step_can_be_taken_back_though_the_plan_follows_it():
    def planned(slots):
        return plan_of(slots, gw.PowerSGD(1), gw.Residual(), gw.AllReduce())

    with job(planned(SLOTS), SLOTS, 2, plan_for=planned, follow_order=True) as running:
        before = running.states()
        running.step(draw(SLOTS, 2, 0, scale=SPIKE))
        running.skip()
        same_states(running.states(), before)
        assert not any(residual.any() for own in running.state("residual") for residual in own)


def test_to_skip_twice_is_to_skip_once_and_a_step_that_was_not_finite_is_skipped_already():
    with job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        before = running.states()
        for scale in (SPIKE, torch.inf):
            running.step(draw(SLOTS, 2, 1, scale=scale))
            running.skip()
            running.runtimes[0].skip()  # asks no other rank
            same_states(running.states(), before)
        assert [runtime.stats().skipped for runtime in running.runtimes] == [2, 2]
        running.step(draw(SLOTS, 2, 1))
        running.skip()
        assert "3 skipped, the last step 3 by skip()" in running.runtimes[0].status()


def test_draws_and_turns_go_on_from_a_checkpoint_as_if_no_step_had_been_skipped():
    plan = plan_of(SLOTS, gw.ACPSGD(2), gw.Residual(), gw.AllReduce())
    with job(plan, SLOTS, 2) as running, job(plan, SLOTS, 2) as other:
        for step in range(2):
            running.step(draw(SLOTS, 2, step))
        running.skip()
        other.load(running.states())
        same_means(running.step(draw(SLOTS, 2, 2)), other.step(draw(SLOTS, 2, 2)))
        same_states(running.states(), other.states())


@pytest.mark.parametrize(("scale", "said"), [(1.0, "rank 0 of 2"), (torch.inf, "1 skipped, the last step 1 for")])
def test_no_step_before_the_frameworks_own_is_taken_back(scale: float, said: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Executor, "is_immediate", False)
    plan = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())
    with job(plan, SLOTS, 2, no_native="") as running:
        running.step(draw(SLOTS, 2, 0))
        running.step(draw(SLOTS, 2, 1, scale=scale))
        running.install(gw.NATIVE)
        for runtime in running.runtimes:
            runtime.native_step_ended()
        assert said in running.runtimes[0].status()
        kept = running.state("residual")
        running.install(plan)
        with pytest.raises(ValueError, match="and there is none"):
            running.skip()
        same_means(running.state("residual"), kept)
        # and where the job ends behind them, all of them are whole
        running.runtimes[0].fail(RuntimeError("as it may"))
        assert running.runtimes[0].wait_for_means()


def test_where_there_is_no_step_to_take_back_the_error_says_so():
    with job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        with pytest.raises(ValueError, match=r"there is none; call it after backward\(\)"):
            running.runtimes[0].skip()
        running.step(draw(SLOTS, 2, 0))
        running.load(running.states())
        with pytest.raises(ValueError, match="there is none"):
            running.runtimes[0].skip()


def test_a_rank_that_skips_alone_is_an_error_on_all_of_them():
    with job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        impatient(running)
        running.step(draw(SLOTS, 2, 0))
        with pytest.raises(
            RuntimeError, match=r"rank 1 did not come to skip\(\) within .* make the same calls on all ranks"
        ):
            running.runtimes[0].skip()
        with pytest.raises(RuntimeError, match=r"rank 1 did not come to skip\(\) within"):
            running.step(draw(SLOTS, 2, 1))


def test_where_one_rank_refuses_none_takes_the_step_back():
    with job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        impatient(running)
        running.step(draw(SLOTS, 2, 0))
        kept = running.state("residual")
        refusals = "", "zero their gradients"
        errors = together(2, lambda rank: running.runtimes[rank].skip(refusals[rank]))
        assert all(isinstance(error, ValueError) for error in errors)
        assert [str(error) for error in errors] == ["rank 1 cannot go on: zero their gradients"] * 2
        same_means(running.state("residual"), kept)
        # the job goes on
        running.skip()
        running.step(draw(SLOTS, 2, 1))
        # where a step was taken back already, there is nothing to refuse, and no rank is asked
        running.skip()
        running.runtimes[1].skip("zero their gradients")


def test_where_a_rank_is_lost_the_others_take_the_step_back():
    with job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        impatient(running)
        running.step(draw(SLOTS, 2, 0))
        with pytest.raises(RuntimeError, match="rank 1 did not come"):
            running.runtimes[0].skip()
        first, second = running.state("residual")
        assert not any(own.any() for own in first)
        assert any(own.any() for own in second)


@pytest.mark.parametrize(
    ("compressor", "communicator"),
    [(gw.TopK(0.1), gw.AllGather()), (gw.EFSignSGD(block=8), gw.AllGather()), (gw.PowerSGD(1), gw.AllReduce())],
)
def test_a_limited_residual_keeps_little_of_one_huge_gradient(compressor: gw.Compressor, communicator: gw.Communicator):
    """Without one it is what it would be without the limit, bit for bit."""
    free, limited = (
        plan_of(SLOTS, compressor, memory, communicator, groups=1) for memory in (gw.Residual(), gw.Residual(limit=4))
    )
    with job(free, SLOTS, 2) as first, job(limited, SLOTS, 2) as second:
        for step in range(4):
            for running in (first, second):
                running.step(draw(SLOTS, 2, step))
        before = residuals(second)
        assert all(torch.equal(a, b) for a, b in zip(residuals(first), before, strict=True))
        second.step(draw(SLOTS, 2, 4, scale=SPIKE))
        for own, was in zip(residuals(second), before, strict=True):
            torch.testing.assert_close(own.norm(), 4 * was.norm())


def residuals(running: Job) -> list[Tensor]:
    """Each rank's residual of all slots."""
    return [torch.cat([slot.flatten() for slot in own]) for own in running.state("residual")]
