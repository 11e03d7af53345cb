"""State dicts: a resumed job goes on bit for bit, and no residual is lost on the way to another plan or size."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gradwire as gw
from gradwire import checkpoint
from gradwire.collective import SHARD
from gradwire.compressors.multi_level import MultiLevel
from gradwire.controllers.recompress import recompress
from gradwire.controllers.requests import NativeRequest, ProfileRequest, Request, change_from_json, change_to_json
from gradwire.frontends.checkpoints.distributed_checkpoint import DistributedState
from gradwire.frontends.checkpoints.elastic_resume import go_on, without_memories
from gradwire.frontends.null_job import NullFrontEnd, NullRuntime
from gradwire.plans import Plan, uniform
from gradwire.resharding import predecessors
from gradwire.runtime import agreement, meeting
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.state import state_buffers
from gradwire.runtime.state.state_buffers import StateBuffers
from gradwire.runtime.state.states import gather
from gradwire.runtime.worker.executor import Executor
from gradwire.slots import Slot
from gradwire.text_tensors import letters, text_of
from tests.support.cases import CASES, KINDS_OF_STATE, Case, rows
from tests.support.harness import (
    CPU,
    SMALL,
    Job,
    draw,
    hand_over,
    hosts,
    impatient,
    job,
    plan_of,
    raising,
    slots_of,
    together,
    total,
)  # fmt: skip
from tests.support.pretend_cuda import GPU, on_gpu, pretended_cuda
from tests.support.schedule import Schedule
from tests.support.states import earlier, through_a_file

SLOTS = slots_of(SMALL)
REMEMBERING = [case for case in KINDS_OF_STATE if case.memory.error_feedback]
remembering = pytest.mark.parametrize("case", REMEMBERING, ids=str)


def plan_for(case: Case, groups: int = 2) -> gw.Plan:
    return plan_of(SLOTS, case.compressor, case.memory, case.communicator, groups=groups)


def residuals(states: list[dict[str, Tensor]]) -> list[Tensor]:
    zeros = [torch.zeros(slot.shape) for slot in SLOTS]
    keys = [f"{slot.name}//residual" for slot in SLOTS]
    return total([[state.get(key, zero) for key, zero in zip(keys, zeros, strict=True)] for state in states])


def as_kept(case: Case, states: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The states, with residuals in the type in which a job of this case keeps them."""
    buffers, places = StateBuffers(SLOTS, CPU), {f"{slot.name}//residual": i for i, slot in enumerate(SLOTS)}
    buffers.hold(range(len(SLOTS)))
    buffers.need("residual", case.memory.residual_dtype)

    def kept(key: str, tensor: Tensor) -> Tensor:
        if key not in places:
            return tensor
        buffers.write("residual", places[key], tensor)
        return buffers.read("residual", places[key]).float().clone()

    return [{key: kept(key, tensor) for key, tensor in state.items()} for state in states]


def tensors_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """But for what it says of its plan."""
    return {key: tensor for key, tensor in state.items() if key != checkpoint.ABOUT}


@rows(CASES)
def test_a_resumed_job_goes_on_bit_for_bit(case: Case):
    world = 2
    with job(plan_for(case), SLOTS, world) as running:
        for step in range(2):
            running.step(draw(SLOTS, world, step))
        saved = [through_a_file(state) for state in running.states()]
        expected = [running.step(draw(SLOTS, world, step))[0] for step in (2, 3)]
        after = running.states()
    with job(plan_for(case), SLOTS, world) as resumed:
        resumed.load(saved)
        for step, means in zip((2, 3), expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(resumed.step(draw(SLOTS, world, step))[0], means, strict=True))
        for old, new in zip(after, resumed.states(), strict=True):
            assert old.keys() == new.keys()
            assert all(torch.equal(old[key], new[key]) for key in old)


@pytest.mark.parametrize("loads", [False, True], ids=["a new plan", "a load"])
def test_what_a_gpu_has_only_queued_to_move_is_saved_where_it_goes(loads: bool, monkeypatch: pytest.MonkeyPatch):
    """Another thread saves before the worker's stream has come that far."""
    plan, other = (plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather(), groups=count) for count in (2, 3))
    queue: list[Callable[[], None]] = []
    comes = SimpleNamespace(synchronize=lambda: [queue.pop(0)() for _ in queue.copy()])
    with job(plan, SLOTS, 2) as running:
        for step in range(2):
            running.step(draw(SLOTS, 2, step))
        before = running.states()
        running.install(other)
        monkeypatch.setattr(Executor, "record_event", lambda self: comes)
        for owner, name in ((state_buffers, "copy_each"), (StateBuffers, "write")):
            call = getattr(owner, name)
            monkeypatch.setattr(owner, name, lambda *given, call=call: queue.append(partial(call, *given)))
        if loads:
            running.load(before)
        else:
            running.runtimes[0]._call(running.runtimes[0]._steps.close)
        assert queue
        for key, tensor in tensors_of(running.runtimes[0].state_dict()).items():
            assert torch.equal(tensor, before[0][key]), key


@rows(CASES)
def test_a_job_that_goes_back_to_its_beginning_goes_on_as_at_first(case: Case):
    with job(plan_for(case), SLOTS, 2) as running:
        goes_on_as_at_first(running, running.states())


def test_bases_of_a_later_plan_go_back_too():
    with job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        fresh = running.states()
        running.install(plan_of(SLOTS, gw.PowerSGD(2), gw.Residual(), gw.AllReduce()))
        goes_on_as_at_first(running, fresh)


def goes_on_as_at_first(running: Job, fresh: list[dict[str, Tensor]]) -> None:
    """From the state with which the job began, its next steps are those that it made then."""
    first = [running.step(draw(SLOTS, 2, step))[0] for step in range(3)]
    running.load(fresh)
    for saved, now in zip(fresh, running.states(), strict=True):
        assert all(torch.equal(saved[key], now[key]) for key in tensors_of(saved))
    for step, means in enumerate(first):
        assert all(torch.equal(a, b) for a, b in zip(running.step(draw(SLOTS, 2, step))[0], means, strict=True))


def test_a_verdict_that_was_not_read_is_none_on_the_loaded_state(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Executor, "is_immediate", False)
    with job(plan_of(SLOTS, gw.ACPSGD(2), gw.Residual(), gw.AllReduce()), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
        for scale in (1.0, torch.inf):  # a good step, a bad one
            running.step(draw(SLOTS, 2, 1, scale=scale))
            running.load(saved)
            for old, new in zip(saved, running.states(), strict=True):
                assert all(torch.equal(old[key], new[key]) for key in old)


def test_saved_tensors_are_contiguous():
    """As safetensors wants them."""
    kept = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    state = checkpoint.pack({"weight": {"residual": kept}}, {}, 1, about(0, 1))
    assert state["weight//residual"].is_contiguous()
    assert torch.equal(state["weight//residual"], kept)


def test_a_saved_state_is_a_copy():
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
        before = [{key: tensor.clone() for key, tensor in state.items()} for state in saved]
        # a step writes the half that was not saved, the next one the other
        for step in (1, 2):
            running.step(draw(SLOTS, 2, step))
        assert all(torch.equal(old[key], new[key]) for old, new in zip(before, saved, strict=True) for key in old)


@remembering
@pytest.mark.parametrize("groups", [1, 3])
def test_a_state_fits_another_plan(case: Case, groups: int):
    with job(plan_for(case), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
    with job(plan_for(case, groups), SLOTS, 2) as other:
        other.load(saved)
        for old, new in zip(saved, other.states(), strict=True):
            assert all(torch.equal(old[key], new[key]) for key in tensors_of(old))


@pytest.mark.parametrize("case", [case for case in REMEMBERING if not case.compressor.is_update], ids=str)
def test_a_job_without_memory_sends_what_it_is_given(case: Case):
    with job(plan_for(case), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
    dense = plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce())
    with job(dense, SLOTS, 2) as other:
        other.load(saved)
        again = other.states()
        for a, b in zip(residuals(again), residuals(saved), strict=True):
            assert torch.equal(a, b)
        grads = draw(SLOTS, 2, 1)
        means = other.step(grads)[0]
        for mean, given, kept in zip(means, total(grads), residuals(saved), strict=True):
            torch.testing.assert_close(mean.double(), given / 2 + kept, rtol=1e-5, atol=1e-5)


def test_one_rule_says_which_old_ranks_a_new_one_goes_on_from():
    """Memories as torch.distributed.checkpoint deals rows, `torch.chunk`; each once."""
    for old, ranks in product(range(1, 8), repeat=2):
        before = [predecessors(rank, ranks, old) for rank in range(ranks)]
        rows = [list(range(old))[each.memories] for each in before]
        dealt = [chunk.tolist() for chunk in torch.arange(old).chunk(ranks)]
        assert rows == dealt + [[]] * (ranks - len(dealt))
        assert [each.own for each in before] == [rank % old for rank in range(ranks)]


@remembering
def test_another_number_of_ranks_keeps_the_sum(case: Case):
    with job(plan_for(case), SLOTS, 3) as running:
        running.step(draw(SLOTS, 3, 0))
        saved = running.states()
    for world in (1, 2, 3, 5):
        fits_so_many_ranks(case, saved, world)


def fits_so_many_ranks(case: Case, saved: list[dict[str, Tensor]], world: int) -> None:
    shards = gw.reshard(saved, world)
    assert len(shards) == world
    for a, b in zip(residuals(shards), residuals(saved), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert all(int(shard["step"]) == 1 for shard in shards)
    with job(plan_for(case), SLOTS, world) as other:
        other.load(shards)
        for old, new in zip(as_kept(case, shards), other.states(), strict=True):
            assert old.keys() == new.keys()
            assert all(torch.equal(old[key], new[key]) for key in tensors_of(old))
        assert all(mean.isfinite().all() for mean in other.step(draw(SLOTS, world, 1))[0])


@pytest.mark.parametrize("case", KINDS_OF_STATE, ids=str)
def test_the_state_of_all_ranks_is_what_each_of_them_had(case: Case):
    with job(plan_for(case), SLOTS, 3) as running:
        running.step(draw(SLOTS, 3, 0))
        saved = running.states()
        whole, *others = raising(together(3, lambda rank: running.runtimes[rank].state_dict(all_ranks=True)))
        expected = running.step(draw(SLOTS, 3, 1))[0]
    assert not any(key.endswith("//residual") for other in others for key in other)
    whole = through_a_file(whole)
    with job(plan_for(case), SLOTS, 3) as resumed:
        resumed.load([whole] * 3)
        for old, new in zip(saved, resumed.states(), strict=True):
            assert all(torch.equal(old[key], new[key]) for key in tensors_of(old))
        means = resumed.step(draw(SLOTS, 3, 1))[0]
        assert all(torch.equal(a, b) for a, b in zip(means, expected, strict=True))


@pytest.mark.parametrize("compressor", [gw.PowerSGD(2), gw.ACPSGD(2), gw.Dion(1 / 2)], ids=str)
def test_hosts_go_on_bit_for_bit_from_each_ranks_state_and_from_that_of_all(compressor: gw.Compressor):
    plan = plan_of(SLOTS, compressor, gw.Residual(), gw.AllReduce())
    with job(plan, SLOTS, 4, transports=hosts(2, 2)) as running:
        for step in range(2):
            running.step(draw(SLOTS, 4, step))
        own = running.states()
        whole = raising(together(4, lambda rank: running.runtimes[rank].state_dict(all_ranks=True)))[0]
        expected = [running.step(draw(SLOTS, 4, step))[0] for step in (2, 3)]
    assert all(
        torch.equal(whole[key], tensor) for key, tensor in tensors_of(gw.reshard(own, 4)[0]).items() if "shared" in key
    )
    for saved in (own, [whole] * 4, gw.reshard(own, 4)):
        with job(plan, SLOTS, 4, transports=hosts(2, 2)) as resumed:
            resumed.load(saved)
            for step, means in zip((2, 3), expected, strict=True):
                for own_means in resumed.step(draw(SLOTS, 4, step)):
                    assert all(torch.equal(a, b) for a, b in zip(own_means, means, strict=True))


def test_what_is_loaded_in_mid_training_goes_to_the_rank_of_its_host_that_leads():
    groups = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()).groups
    with (
        job(gw.Plan(groups), SLOTS, 4, transports=hosts(2, 2)) as saved,
        job(gw.Plan(groups[::-1]), SLOTS, 4, transports=hosts(2, 2)) as running,
    ):
        for each in (saved, running):
            each.step(draw(SLOTS, 4, 0))
        running.load(saved.states())
        running.step(draw(SLOTS, 4, 1))
        for host in (slice(0, 2), slice(2, 4)):
            for one, other in zip(*running.state("residual")[host], strict=True):
                assert not (one.any() and other.any())


def test_a_new_leader_of_a_host_has_the_bases_and_one_step_less_has_those_before():
    groups = plan_of(SLOTS, gw.PowerSGD(2), gw.Residual(), gw.AllReduce()).groups
    with job(gw.Plan(groups), SLOTS, 4, transports=hosts(2, 2)) as running:
        for step in range(2):
            before = running.state("shared/q")
            running.step(draw(SLOTS, 4, step))
        after = running.state("shared/q")
        assert not torch.equal(after[0][0], before[0][0])
        assert all(torch.equal(a, b) for own in after[1:] for a, b in zip(own, after[0], strict=True))
        # a step that is taken back, or is not good, on all ranks of the host
        running.skip()
        running.step(draw(SLOTS, 4, 2, scale=torch.inf))
        for own in running.state("shared/q"):
            assert all(torch.equal(a, b) for a, b in zip(own, before[0], strict=True))
        # other ranks lead the groups: they go on from these bases
        running.install(gw.Plan(groups[::-1]))
        running.step(draw(SLOTS, 4, 2, scale=torch.inf))
        assert all(torch.equal(a, b) for own in running.state("shared/q") for a, b in zip(own, before[0], strict=True))
        running.step(draw(SLOTS, 4, 2))
        after = running.state("shared/q")
        assert not torch.equal(after[0][0], before[0][0])
        assert all(torch.equal(a, b) for own in after[1:] for a, b in zip(own, after[0], strict=True))


LEVELS = MultiLevel(gw.TopK(0.1), further=4, min_share=0.0), gw.Residual(), gw.AllReduce()
OWNERS = gw.TopK(0.1), gw.Residual(), gw.OkTopk(rebalance=1000, reuse=1000)


def in_common(state: dict[str, Tensor]) -> dict[str, list[float]]:
    """What the ranks that reduce a group together have in common of a state."""
    return {key: tensor.tolist() for key, tensor in state.items() if "group/common/" in key}


@pytest.mark.parametrize("parts", [LEVELS, OWNERS], ids=["levels", "owners"])
def test_ranks_that_reduce_together_go_on_from_groups_tensors_that_they_all_have(parts: tuple[Any, Any, Any]):
    plan = plan_of(SLOTS, *parts)
    with job(plan, SLOTS, 4, transports=hosts(2, 2)) as running:
        for step in range(3):
            running.step(draw(SLOTS, 4, step))
        # other ranks lead the groups; those before keep what is out of date
        running.install(gw.Plan(plan.groups[::-1]))
        running.step(draw(SLOTS, 4, 3, scale=9.0))
        own = running.states()
        whole = raising(together(4, lambda rank: running.runtimes[rank].state_dict(all_ranks=True)))[0]
        expected = running.step(draw(SLOTS, 4, 4))[0]
    # the same hosts: all go on bit for bit
    with job(plan, SLOTS, 4, transports=hosts(2, 2)) as resumed:
        resumed.load(own)
        assert [*map(in_common, resumed.states())] == [*map(in_common, own)] != [{}] * 4
        resumed.install(gw.Plan(plan.groups[::-1]))
        for means in resumed.step(draw(SLOTS, 4, 4)):
            assert all(torch.equal(a, b) for a, b in zip(means, expected, strict=True))
    # ranks that now reduce together differ in some: all begin these anew
    for saved in (own, [whole] * 4, gw.reshard(own, 4)):
        with job(plan, SLOTS, 4) as other:
            other.load(saved)
            now = [*map(in_common, other.states())]
            assert now == now[:1] * 4
            assert saved is not own or not now[0]
            by_rank = other.step(draw(SLOTS, 4, 4))
            assert all(torch.equal(a, b) for means in by_rank[1:] for a, b in zip(means, by_rank[0], strict=True))


def test_in_the_state_of_all_a_rank_without_a_groups_tensors_has_those_of_the_first_with_them():
    with job(plan_of(SLOTS, *OWNERS), SLOTS, 4, transports=hosts(2, 2)) as running:
        running.step(draw(SLOTS, 4, 0))
        own = running.states()
        whole = raising(together(4, lambda rank: running.runtimes[rank].state_dict(all_ranks=True)))[0]
    # the rank that leads a group alone has them
    kept = {key: [state.get(key) for state in own] for key in whole if "//group/" in key}
    assert any(tensor is None for tensors in kept.values() for tensor in tensors)
    for saved in (whole, checkpoint.gather(own)):
        for key, tensors in kept.items():
            first = next(tensor for tensor in tensors if tensor is not None)
            for row, tensor in zip(saved[key], tensors, strict=True):
                assert torch.equal(row, first if tensor is None else tensor)


def test_the_numbers_of_small_tensors_do_not_go_through_the_store(monkeypatch: pytest.MonkeyPatch):
    """Which takes 8 MB at a time: of many ranks and parameters that was too little."""
    said, gathered = list[str](), agreement.Agreement.gather

    def gather_facts(self: agreement.Agreement, call: str, facts: meeting.Facts) -> list[meeting.Facts]:
        said.append(facts["small"])
        return gathered(self, call, facts)

    monkeypatch.setattr(agreement.Agreement, "gather", gather_facts)
    with job(plan_of(SLOTS, gw.ReusedThreshold(0.1, warmup=1), gw.Residual(), gw.AllGather()), SLOTS, 3) as running:
        running.step(draw(SLOTS, 3, 0))
        whole, *_ = raising(together(3, lambda rank: running.runtimes[rank].state_dict(all_ranks=True)))
        own = running.states()
    keys = [key for key in whole if "//group/" in key]
    assert any(not torch.equal(own[0][key], own[1][key]) for key in keys)
    assert all(torch.equal(whole[key], torch.stack([state[key] for state in own])) for key in keys)
    assert len(set(said)) == 1


def test_the_state_of_all_ranks_lies_on_the_cpu():
    mesh = gw.Mesh.of(gw.Threads.group(1)[0])
    agreed = agreement.Agreement(mesh, SLOTS, CPU, JobOptions())
    with pretended_cuda():
        controllers = {"sum scale": on_gpu(torch.ones(3))}
        slots = {"scale": {"shared/q": on_gpu(torch.ones(2)), "residual": on_gpu(torch.ones(1))}}
        own = checkpoint.Unpacked(slots, controllers, 1, checkpoint.About(0, 1, ""))
        whole = gather(own, SLOTS, mesh, agreed, GPU)
    assert {"//sum scale", "scale//shared/q", "scale//residual"} < whole.keys()
    assert all(type(tensor) is Tensor for tensor in whole.values())


@remembering
def test_the_state_of_all_ranks_fits_another_number_of_them(case: Case):
    with job(plan_for(case), SLOTS, 3) as running:
        running.step(draw(SLOTS, 3, 0))
        saved = running.states()
        whole = raising(together(3, lambda rank: running.runtimes[rank].state_dict(all_ranks=True)))[0]
    for world in (2, 4):
        with job(plan_for(case), SLOTS, world) as other:
            other.load([whole] * world)
            shards = as_kept(case, gw.reshard(saved, world))
            for a, b in zip(residuals(other.states()), residuals(shards), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


SMALL_CASE = Case(gw.PowerSGD(2), gw.Residual(), gw.AllReduce(), bits=0)


def saved_states(world: int = 2, steps: int = 1) -> list[dict[str, Tensor]]:
    with job(plan_for(SMALL_CASE), SLOTS, world) as running:
        for step in range(steps):
            running.step(draw(SLOTS, world, step))
        return running.states()


def refusals(states: list[dict[str, Tensor]]) -> list[str]:
    """What two ranks say that load these, after which nothing has changed."""
    with job(plan_for(SMALL_CASE), SLOTS, len(states)) as running:
        before = running.states()
        errors = together(2, lambda rank: running.runtimes[rank].load_state_dict(states[rank]))
        for old, new in zip(before, running.states(), strict=True):
            assert all(torch.equal(old[key], new[key]) for key in old)
        running.step(draw(SLOTS, 2, 1))
    for error in errors:
        assert isinstance(error, ValueError), error
        assert "\n" not in str(error)
    return [str(error) for error in errors]


def test_another_ranks_state_is_refused_by_all_with_the_call_that_works():
    states = saved_states()
    for said in (*refusals([states[0]] * 2), *refusals(states[::-1])):
        assert "this is the state of rank" in said
        assert "state_dict(all_ranks=True)" in said


def test_a_state_of_another_number_of_ranks_is_refused_with_the_call_that_works():
    said, _ = refusals(saved_states(3)[:2])
    assert (
        "this is the state of rank 0 of 3 ranks, and here is rank 0 of 2; load gw.reshard([every rank's], 2)[0]" in said
    )


def test_states_of_different_trainings_are_refused():
    with job(plan_for(SMALL_CASE), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 77))
        other = running.states()
    mixed = [saved_states()[0], other[1]]
    assert "differ in the state's training" in refusals(mixed)[0]
    # of an earlier version, whose states do not say of which training they are
    assert "differ in what the states have in common" in refusals([earlier(state) for state in mixed])[0]


def saved_by(training: int) -> list[dict[str, Tensor]]:
    """States that have nothing in common, as those of TopK."""
    with job(plan_for(Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, training))
        return running.states()


def test_trainings_that_have_nothing_in_common_are_told_apart():
    mixed = [saved_by(0)[0], saved_by(1)[1]]
    with pytest.raises(ValueError, match="rank 1 and rank 0 differ in the state's training; pass states that were"):
        gw.reshard(mixed, 3)
    assert "differ in the state's training" in refusals(mixed)[0]


def trainings(states: list[dict[str, Tensor]]) -> set[str]:
    return {checkpoint.unpack(state).about.training for state in states}


def test_what_resumes_a_training_is_the_same_training():
    states = saved_by(0)
    (name,) = trainings(states)
    assert name
    assert trainings([*gw.reshard(states, 3), checkpoint.gather(states)]) == {name}
    with job(plan_for(SMALL_CASE), SLOTS, 2) as running:
        (own,) = trainings(running.states())
        assert own != name
        running.load([earlier(state) for state in states])  # which have no name
        assert trainings(running.states()) == {own}
        running.load(states)
        assert trainings(running.states()) == {name}


def test_states_that_were_not_saved_together_are_not_resharded():
    early, late = saved_states(), saved_states(steps=2)
    with pytest.raises(ValueError, match="rank 1 and rank 0 differ in the state's step"):
        gw.reshard([early[0], late[1]], 3)
    with pytest.raises(ValueError, match="state 0 of these 2 is the state of rank 1 of 2 ranks; pass every rank's"):
        gw.reshard(early[::-1], 3)
    with pytest.raises(ValueError, match="state 0 of these 1 is the state of rank 0 of 2 ranks"):
        gw.reshard(early[:1], 3)


@pytest.mark.parametrize(
    ("change", "what"), [({"skipped": 1}, "the steps that the state skip"), ({"momenta": {"w": "Dion"}}, "the momenta")]
)
def test_states_that_say_other_things_of_themselves_are_not_resharded(change: dict[str, Any], what: str):
    states = [checkpoint.pack({}, {}, 3, about(rank, **change if rank else {})) for rank in range(2)]
    with pytest.raises(ValueError, match=f"rank 1 and rank 0 differ in {what}"):
        gw.reshard(states, 2)


def test_states_of_different_shards_are_not_added_up():
    plan = plan_for(Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0))
    with job(plan, SLOTS, 4, transports=hosts(2, 2, SHARD)) as running:
        running.step(draw(SLOTS, 4, 0))
        states = running.states()
    for join in (checkpoint.gather, partial(gw.reshard, world=2)):
        with pytest.raises(ValueError, match=r"ranks have different shards; give dcp.save\(\) handle.stateful"):
            join(states)
    assert "ranks have different shards; give dcp.save() handle.stateful()" in refusals(states[:2])[0]
    # each rank goes on from its own, also from one that does not say how many shards there are
    assert checkpoint.unpack(states[0]).about.shards == 2
    with job(plan, SLOTS, 4, transports=hosts(2, 2, SHARD)) as resumed:
        resumed.load([earlier(states[0], "shards"), *map(earlier, states[1:])])
        for own, saved in zip(resumed.states(), states, strict=True):
            assert all(torch.equal(own[key], tensor) for key, tensor in saved.items() if key != checkpoint.ABOUT)


def test_states_that_lie_on_several_devices_are_gathered_on_the_cpu():
    states = saved_states()
    expected = gw.reshard(states, 3)
    with pretended_cuda():
        mixed = [
            states[0],
            {key: tensor if key == checkpoint.ABOUT else on_gpu(tensor) for key, tensor in states[1].items()},
        ]
        for parts in ([checkpoint.gather(mixed)], gw.reshard(mixed, 3)):
            assert all(type(tensor) is Tensor for part in parts for tensor in part.values())
        for part, other in zip(gw.reshard(mixed, 3), expected, strict=True):
            assert all(torch.equal(part[key], other[key]) for key in other)


def test_ranks_that_do_not_load_are_named_and_told():
    for loading in (0, 1):
        with job(plan_for(SMALL_CASE), SLOTS, 2) as running:
            impatient(running)
            states = running.states()
            with pytest.raises(RuntimeError, match=f"rank {1 - loading} did not come"):
                running.runtimes[loading].load_state_dict(states[loading])
            other = running.runtimes[1 - loading]
            error = together(1, lambda _: step_alone(other))[0]  # noqa: B023
            assert "did not come" in str(error)  # instead of waiting for ever


def step_alone(runtime) -> None:
    runtime.open_step()
    hand_over(runtime, draw(SLOTS, 2, 0)[0])
    runtime.finish()


def test_different_calls_are_named():
    with job(plan_for(SMALL_CASE), SLOTS, 2) as running:
        first, second = running.runtimes
        calls = [lambda: first.load_state_dict(first.state_dict()), lambda: second.install(plan_for(SMALL_CASE))]
        for error in together(2, lambda rank: calls[rank]()):
            assert "differ in call: load_state_dict() on rank 0, replan() on rank 1" in str(error)


@pytest.mark.parametrize("world", [1, 2])
def test_one_process_keeps_what_it_loads(world: int):
    whole = checkpoint.gather(saved_states(3))
    idle = NullRuntime()
    idle.load_state_dict(whole)
    with job(plan_for(SMALL_CASE), SLOTS, world) as other:
        other.load(gw.reshard([idle.state_dict()], world))
        for a, b in zip(residuals(other.states()), residuals(saved_states(3)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_distributed_checkpoint_says_whose_momentum_a_memory_is():
    alone, saved = NullRuntime(), about(0, momenta={"scale": "Dion(rank=2)"})
    alone.load_state_dict(checkpoint.gather([checkpoint.pack({}, {}, 3, about(rank, momenta=saved.momenta))
                                             for rank in range(2)]))  # fmt: skip
    mesh: Any = SimpleNamespace(get_local_rank=lambda dim: 0, size=lambda dim: 1)
    placed: Any = {"scale": SimpleNamespace(mesh=mesh, shard="shard 0 of 1", job="")}
    state = DistributedState(alone, placed, {})
    assert checkpoint.unpack(state.part(state.state_dict())).about.momenta == saved.momenta


SAVED = saved_states(1)[0]
KEYS = sorted(SAVED)
MISTAKES = {
    "a scalar": lambda tensor: torch.tensor(1.0) if tensor.dim() else None,
    "a single row": lambda tensor: tensor[:1] if tensor.dim() and len(tensor) > 1 else None,
    "NaN": lambda tensor: torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else None,
    "infinite": lambda tensor: torch.full_like(tensor, torch.inf) if tensor.is_floating_point() else None,
    "complex": lambda tensor: tensor.to(torch.complex64),
    "bool": lambda tensor: tensor.bool(),
    "half": lambda tensor: tensor.half(),
    "negative": lambda tensor: -1 - tensor if not tensor.is_floating_point() else None,
    "a list": lambda tensor: tensor.tolist(),
    "nothing": lambda tensor: "lacking",
}


@given(st.sampled_from(KEYS), st.sampled_from(sorted(MISTAKES)))
@settings(max_examples=300, deadline=None)
def test_a_malformed_state_is_refused_in_one_line(key: str, mistake: str):
    wrong = MISTAKES[mistake](SAVED[key])
    if wrong is None:
        return
    state = SAVED | {key: wrong}
    if wrong == "lacking":
        del state[key]
    with pytest.raises(ValueError, match=rf"^[^\n]*{refusal_of(key, mistake)}[^\n]*$"):
        checkpoint.unpack(state)


def refusal_of(key: str, mistake: str) -> str:
    """What names this mistake, in a tensor that was changed after it was saved."""
    if mistake == "a list":
        return "is no tensor of a Gradwire state"
    if key in (checkpoint.STEP, checkpoint.ABOUT):
        return r"this is no Gradwire state \("
    if mistake == "nothing":
        return f"the state lacks '{key}'"
    return "has other numbers" if mistake in ("NaN", "infinite") else "and was .* when it was saved"


def saved_as(state: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state, saved with other tensors: their checksums, types and shapes are right."""
    read = checkpoint.unpack(state)
    exported = {name: dict(own) for name, own in read.exported.items()}
    for key, tensor in tensors.items():
        name, kind = checkpoint.split(key)
        exported[name][kind] = tensor
    return checkpoint.pack(exported, read.job, read.step, read.about)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("key", [key for key in KEYS if checkpoint.SEPARATOR in key])
def test_what_was_saved_and_is_not_finite_is_refused(key: str, number: float):
    tensor = SAVED[key].clone()
    tensor[(-1,) * tensor.dim()] = number
    with pytest.raises(ValueError, match=f"^the state's '{key}' is not finite; go on from an earlier checkpoint$"):
        checkpoint.unpack(saved_as(SAVED, {key: tensor}))


@pytest.mark.parametrize("wrong", [lambda rows: rows[:1], lambda rows: torch.tensor(1.0)], ids=["one", "none"])
def test_a_state_of_all_ranks_that_lacks_rows_is_refused(wrong):
    whole = checkpoint.gather(saved_states())
    key = "body.weight//residual"
    said = "^the state's residual of 'body.weight' has not a row for each of 2 ranks$"
    with pytest.raises(ValueError, match=said):
        checkpoint.unpack(saved_as(whole, {key: wrong(whole[key])}))


def test_the_same_numbers_of_another_type_or_shape_are_refused():
    key = "stem.bias//residual"
    for wrong, kind in (
        (SAVED[key].view(1, 7), r"\['float32', 1, 7\]"),
        (SAVED[key].view(torch.int32), r"\['int32', 7\]"),
    ):
        said = rf"^the state's '{key}' is {kind}, and was \['float32', 7\] when it was saved; pass it as it was$"
        with pytest.raises(ValueError, match=said):
            checkpoint.unpack(SAVED | {key: wrong})


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"format": 2}, "it is of another format"),
        ({"rank": 1}, "what it says of itself cannot be"),
        ({"rank": -1}, "what it says of itself cannot be"),
        ({"skipped": 2}, "it has skipped 2 of 1 steps"),
        ({"skipped": -1}, "it has skipped -1 of 1 steps"),
    ],
)
def test_what_a_state_cannot_say_of_itself_is_named(about: dict, said: str):
    text = json.dumps(json.loads(text_of(earlier(SAVED)[checkpoint.ABOUT])) | about)
    with pytest.raises(ValueError, match=rf"^this is no Gradwire state \({said}\); pass what handle.state_dict"):
        checkpoint.unpack(SAVED | {checkpoint.ABOUT: letters(text)})


@pytest.mark.parametrize(
    ("key", "wrong", "said"),
    [
        (checkpoint.ABOUT, SAVED[checkpoint.ABOUT].long(), "what it says of itself is no text"),
        (checkpoint.STEP, torch.tensor(1.0), r"its step is 1.0 of torch.float32"),
        (checkpoint.STEP, torch.tensor([1]), r"its step is \[1\] of torch.int64"),
        (checkpoint.STEP, torch.tensor(-1), r"its step is -1 of torch.int64"),
    ],
)
def test_a_step_or_a_description_of_another_kind_is_named(key: str, wrong: Tensor, said: str):
    with pytest.raises(ValueError, match=rf"^this is no Gradwire state \({said}\); pass what handle.state_dict"):
        checkpoint.unpack(SAVED | {key: wrong})


def test_a_description_that_has_changed_is_refused():
    saved = bytes(SAVED[checkpoint.ABOUT].tolist())
    said = json.loads(saved)
    # each bit of it, but for those that only write the same in another way
    for at in range(8 * len(saved)):
        changed = bytearray(saved)
        changed[at // 8] ^= 1 << at % 8
        with suppress(ValueError):
            checkpoint.unpack(SAVED | {checkpoint.ABOUT: torch.tensor(changed, dtype=torch.uint8)})
            assert json.loads(changed) == said, changed


def read_or_refused(said: bytes) -> None:
    letters = torch.tensor(list(said), dtype=torch.uint8)
    with suppress(ValueError):
        checkpoint.unpack(SAVED | {"about": letters})


@given(st.binary(max_size=40), st.integers(0), st.integers(0, 40))
@settings(max_examples=300, deadline=None)
def test_whatever_a_state_says_of_itself_it_is_read_or_refused(noise: bytes, at: int, cut: int):
    said = bytes(earlier(SAVED)["about"].tolist())
    at %= len(said)
    read_or_refused(said[:at] + noise + said[at + cut :])


@given(st.dictionaries(st.text(max_size=9), st.one_of(st.none(), st.booleans(), st.text(max_size=3), st.integers())))
def test_whatever_json_a_state_says_it_is_read_or_refused(words: dict):
    said = json.loads(text_of(earlier(SAVED)["about"]))
    for key, value in (*words.items(), *zip(said, words.values(), strict=False)):
        read_or_refused(json.dumps(said | {key: value}).encode())
        read_or_refused(json.dumps(said | {"tensors": said["tensors"] | {KEYS[-1]: value}}).encode())


def test_what_is_no_state_is_refused():
    for wrong in ({"weight": torch.zeros(1)}, {}, None, [1], torch.zeros(3), {1: torch.zeros(1)}, {"step": 3}):
        with pytest.raises(ValueError, match="state_dict"):
            checkpoint.unpack(wrong)


def with_controller() -> gw.Plan:
    return plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())


@pytest.mark.parametrize(
    "make", [lambda: gw.WarmUp(0.5, steps=4), lambda: gw.GraVAC(2, 64, window=4), gw.CAT, gw.LGreCo]
)
@pytest.mark.parametrize("spoil", ["plan", "origin", "own", "noise"])
def test_a_controllers_state_that_cannot_be_is_refused_and_changes_nothing(make, spoil: str):
    def spoilt(state: dict[str, Tensor]) -> dict[str, Tensor]:
        read = checkpoint.unpack(state)
        own = next(name for name in read.job if name not in ("plan", "origin"))
        name = own if spoil in ("own", "noise") else spoil
        wrong = {} if spoil != "noise" else {name: torch.zeros(3, 3)}
        rest = {key: tensor for key, tensor in read.job.items() if key != name}
        return checkpoint.pack(read.exported, rest | wrong, read.step, read.about)

    with job(with_controller(), SLOTS, 2, controllers=[make(), make()]) as running:
        for step in range(3):
            running.step(draw(SLOTS, 2, step))
        before = running.states()
        errors = together(2, lambda rank: running.runtimes[rank].load_state_dict(spoilt(before[rank])))
        for error in errors:
            assert isinstance(error, ValueError), error
            assert "cannot go on from this state" in str(error)
        for old, new in zip(before, running.states(), strict=True):
            torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)


def test_a_job_without_a_controller_keeps_what_one_had():
    with job(with_controller(), SLOTS, 2, controllers=[gw.WarmUp(0.5, steps=9), gw.WarmUp(0.5, steps=9)]) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
        running.step(draw(SLOTS, 2, 1))
        after = running.states()
    had = {key: tensor for key, tensor in saved[0].items() if key.startswith("//")}
    with job(plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce()), SLOTS, 2) as without:
        without.load(saved)
        # a state that is refused changes nothing of it
        assert all(
            isinstance(error, ValueError) for error in together(2, lambda r: without.runtimes[r].load_state_dict({}))
        )
        kept = without.states()
        without.load(kept)
    assert had
    assert all(torch.equal(own[key], had[key]) for own in kept for key in had)
    with job(with_controller(), SLOTS, 2, controllers=[gw.WarmUp(0.5, steps=9), gw.WarmUp(0.5, steps=9)]) as resumed:
        resumed.load(kept)
        resumed.step(draw(SLOTS, 2, 1))
        for old, new in zip(after, resumed.states(), strict=True):
            assert all(torch.equal(old[key], new[key]) for key in old)


def test_all_ranks_keep_room_for_what_some_of_them_have_loaded():
    """Else torch.distributed.checkpoint would find other tensors on each. Rank 1 has no gradient for one parameter,
    so it alone still keeps what an earlier job left for it."""
    plain = plan_of(SLOTS, gw.BF16(), gw.NoMemory(), gw.AllReduce())
    with job(topk(0.1), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
    for number in range(1, 3):
        with job(plain, SLOTS, 2) as running:
            running.load(saved)
            grads = draw(SLOTS, 2, number)
            grads[1][0] = None
            running.step(grads)
            saved = running.states()
            first, second = (runtime.state_dict(padded=True).keys() for runtime in running.runtimes)
            assert first == second
    names = [{name for name in own if name.endswith("residual")} for own in saved]
    assert names[0] < names[1], "only what may be other than zero is in a rank's own file"


CONTROLLERS = [
    lambda: gw.WarmUp(0.5, steps=4),
    lambda: gw.GraVAC(2, 64, window=4),
    gw.CAT,
    lambda: gw.LGreCo(interval=10),
    lambda: gw.Accordion(0.1, 0.05, Schedule(), interval=3),
    lambda: gw.ScaDLES(window=4),
]
every_controller = pytest.mark.parametrize("make", CONTROLLERS, ids=["warm", "gravac", "cat", "lgreco", "acc", "sca"])


def topk(ratio: float, **options: Any) -> gw.Plan:
    return plan_of(SLOTS, gw.TopK(ratio), gw.Residual(), gw.AllGather(), **options)


def test_a_controller_goes_on_with_the_compressor_that_a_job_resumes_with(caplog: pytest.LogCaptureFixture):
    """Its schedule is where it was, and so are the memories."""
    with job(topk(0.1), SLOTS, 2, controllers=[gw.WarmUp(0.5, steps=4) for _ in range(2)]) as running:
        for number in range(7):
            running.step(draw(SLOTS, 2, number))
        assert running.runtimes[0].plan == topk(0.1)
        saved, kept = running.states(), running.state("residual")
    caplog.clear()
    with job(topk(0.01), SLOTS, 2, controllers=[gw.WarmUp(0.5, steps=4) for _ in range(2)]) as resumed:
        resumed.load(saved)
        assert resumed.runtimes[0].plan == topk(0.01)
        torch.testing.assert_close(resumed.state("residual"), kept, rtol=0, atol=0)
        for number in range(7, 11):
            resumed.step(draw(SLOTS, 2, number))
            assert [runtime.plan for runtime in resumed.runtimes] == [topk(0.01)] * 2
        # what it saves then is its own
        again = resumed.states()
        resumed.load(again)
    assert len(caplog.messages) == 1
    assert "WarmUp goes on from this job's TopK(ratio=0.01" in caplog.messages[0]


@every_controller
def test_any_controller_follows_another_compressor_or_memory(make):
    with job(topk(0.1), SLOTS, 2, controllers=[make(), make()]) as running:
        for number in range(7):
            running.step(draw(SLOTS, 2, number))
        saved = running.states()
    users = plan_of(SLOTS, gw.DGC(0.1), gw.Residual(decay=0.9), gw.AllGather())
    with job(users, SLOTS, 2, controllers=[make(), make()]) as resumed:
        resumed.load(saved)
        for number in range(7, 12):
            resumed.step(draw(SLOTS, 2, number))
        assert [runtime._active.origin for runtime in resumed.runtimes] == [users] * 2
        assert {group.memory for group in resumed.runtimes[0].plan.groups} == {gw.Residual(decay=0.9)}


def test_a_controller_follows_a_collective_that_the_user_names(caplog: pytest.LogCaptureFixture):
    """One that is the default is another one for other ranks, and no wish of the user's."""
    named = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.SplitGather())
    for first, then in ((topk(0.1), named), (named, topk(0.1))):
        with job(first, SLOTS, 2, controllers=[gw.WarmUp(0.5, steps=4) for _ in range(2)]) as running:
            running.step(draw(SLOTS, 2, 0))
            saved = running.states()
        caplog.clear()
        with job(then, SLOTS, 2, controllers=[gw.WarmUp(0.5, steps=4) for _ in range(2)]) as resumed:
            resumed.load(saved)
            origins = [runtime._active.origin for runtime in resumed.runtimes]
        assert [{group.communicator for group in origin.groups} for origin in origins] == [{gw.SplitGather()}] * 2
        assert len(caplog.messages) == (first != named)


@every_controller
def test_a_default_collective_of_other_ranks_is_no_other_way_to_send(make):
    few, many = (uniform(SLOTS, gw.TopK(0.1), gw.Residual(), ranks=ranks) for ranks in (2, 64))
    assert few.groups[0].communicator != many.groups[0].communicator
    controller = make()
    controller.meet(SLOTS, 64)
    assert controller.changed(few, many) == {}


MOVED = [
    lambda: gw.WarmUp(0.5, steps=20),
    lambda: gw.WarmUp(bits=8, steps=20),
    lambda: gw.GraVAC(2, 64, window=4),
    gw.CAT,
    lambda: gw.LGreCo(interval=10),
    lambda: gw.Accordion(0.4, 0.05, Schedule(), interval=3),
    lambda: gw.ScaDLES(window=4),
]
moved = pytest.mark.parametrize("make", MOVED, ids=["warm", "bits", "gravac", "cat", "lgreco", "acc", "sca"])


def default_of(ranks: int) -> gw.Plan:
    """By all-gather among two, by scatter-reduce among eight."""
    return uniform(SLOTS, gw.TopK(0.3), gw.Residual(), ranks=ranks)


def saved_among(ranks: int, plan: gw.Plan, make: Any, until: Any = lambda running: False) -> list[dict[str, Tensor]]:
    with job(plan, SLOTS, ranks, controllers=[make() for _ in range(ranks)]) as running:
        for number in range(5):
            running.step(draw(SLOTS, ranks, number))
            if until(running):
                break
        return running.states()


@moved
@pytest.mark.parametrize(("before", "now"), [(2, 8), (8, 2)])
def test_default_collectives_are_those_of_the_ranks_that_a_controller_resumes_on(make, before: int, now: int):
    """As a job of so many ranks would have them, with what the controller has seen and chosen."""
    saved = saved_among(before, default_of(before), make)
    with job(default_of(now), SLOTS, now, controllers=[make() for _ in range(now)]) as resumed:
        resumed.load(gw.reshard(saved, now))
        plans = [runtime.plan for runtime in resumed.runtimes]
        assert [runtime._active.origin for runtime in resumed.runtimes] == [default_of(now)] * now
        assert plans == plans[:1] * now
        chosen = {name: group.compressor for group in plans[0].groups for name in group.slots}
        defaults, before_it = resumed.controllers[0]._defaults, plan_when(saved)
        assert [(g.slots, g.compressor) for g in plans[0].groups] == [(g.slots, g.compressor) for g in before_it.groups]
        recompressed = recompress(default_of(now), lambda group, name: chosen[name], defaults)
        assert communicators(plans[0]) == communicators(recompressed)
        resumed.step(draw(SLOTS, now, 5))
        assert [runtime.plan for runtime in resumed.runtimes] == [resumed.runtimes[0].plan] * now


def test_a_decision_that_waits_is_for_the_ranks_that_a_job_resumes_with():
    def make() -> gw.WarmUp:
        return gw.WarmUp(bits=8, steps=4)

    def waits(running: Job) -> bool:
        return running.runtimes[1]._active._control.decided == default_of(2)

    saved = saved_among(2, default_of(2), make, waits)
    with job(default_of(8), SLOTS, 8, controllers=[make() for _ in range(8)]) as resumed:
        resumed.load(gw.reshard(saved, 8))
        assert {group.compressor for group in resumed.runtimes[0].plan.groups} >= {gw.Quantized(8)}
        assert [runtime._active._control.decided for runtime in resumed.runtimes] == [default_of(8)] * 8
        resumed.step(draw(SLOTS, 8, 5))
        assert [runtime.plan for runtime in resumed.runtimes] == [default_of(8)] * 8
        resumed.step(draw(SLOTS, 8, 6))
        assert all(not controller.decisions for controller in resumed.controllers)


@pytest.mark.parametrize("communicator", [gw.ScatterReduce(), gw.SplitGather()], ids=str)
def test_a_collective_that_a_user_named_stays_for_other_ranks(communicator: gw.Communicator):
    """Whether it is named again or not."""
    named = uniform(SLOTS, gw.TopK(0.3), gw.Residual(), communicator)
    saved = saved_among(2, named, lambda: gw.WarmUp(0.5, steps=20))
    for then in (named, uniform(SLOTS, gw.TopK(0.3), gw.Residual(), ranks=4)):
        with job(then, SLOTS, 4, controllers=[gw.WarmUp(0.5, steps=20) for _ in range(4)]) as resumed:
            resumed.load(gw.reshard(saved, 4))
            active = resumed.runtimes[0]._active
            assert {communicator} == {group.communicator for group in (active.origin.groups[0], active.plan.groups[0])}


def test_a_state_of_as_many_ranks_keeps_its_collectives():
    """Bit for bit, also where they were those of a plan that the user asked for and does not ask for now."""
    asked = uniform(SLOTS, gw.TopK(0.3), gw.Residual(), gw.ScatterReduce())
    saved = saved_among(2, asked, lambda: gw.WarmUp(0.5, steps=20))
    with job(default_of(2), SLOTS, 2, controllers=[gw.WarmUp(0.5, steps=20) for _ in range(2)]) as resumed:
        resumed.load(saved)
        assert [runtime._active.origin for runtime in resumed.runtimes] == [asked] * 2
        assert resumed.runtimes[0].plan == plan_when(saved)


def test_a_collective_that_a_controller_chose_by_itself_stays_for_other_ranks():
    controller = gw.WarmUp(0.5)
    controller.meet(SLOTS, 8)
    fit = controller.for_these_ranks(2, default_of(2), default_of(8))
    first, *others = default_of(2).groups
    chosen = replace(first, communicator=gw.SplitGather())
    assert fit(gw.Plan((chosen, *others))).groups[0] == chosen
    assert fit(default_of(2)) == default_of(8)


REQUESTS = [
    (ProfileRequest(default_of(2), (), 3), ProfileRequest(default_of(8), (), 3)),
    (NativeRequest(3), NativeRequest(3)),
]


@pytest.mark.parametrize(("asked", "now"), REQUESTS, ids=["profile", "native"])
def test_a_request_that_waits_is_for_the_ranks_that_a_job_resumes_with(asked: Request, now: Request):
    texts = {"plan": default_of(2).to_json(), "origin": default_of(2).to_json(), "decided": change_to_json(asked)}
    state = {name: letters(text) for name, text in (texts | {"replicas": "2"}).items()}
    with job(default_of(8), SLOTS, 8, controllers=[gw.WarmUp(0.5) for _ in range(8)]) as resumed:
        loaded = resumed.runtimes[0]._active._control.for_these_ranks(state, default_of(8))
    assert change_from_json(text_of(loaded["decided"])) == now
    assert gw.Plan.from_json(text_of(loaded["plan"])) == default_of(8)


def test_a_state_that_does_not_say_among_how_many_ranks_is_loaded_with_its_collectives():
    """As earlier versions saved it."""

    def as_before(state: dict[str, Tensor]) -> dict[str, Tensor]:
        read = checkpoint.unpack(state)
        del read.job["replicas"]
        return checkpoint.pack(read.exported, read.job, read.step, read.about)

    saved = [*map(as_before, saved_among(2, default_of(2), lambda: gw.WarmUp(0.5, steps=20)))]
    with job(default_of(8), SLOTS, 8, controllers=[gw.WarmUp(0.5, steps=20) for _ in range(8)]) as resumed:
        resumed.load(gw.reshard(saved, 8))
        assert resumed.runtimes[0].plan == plan_when(saved)


@pytest.mark.parametrize("ratio", [0.3, 0.1], ids=["of the plan", "of the warm-up alone"])
@pytest.mark.parametrize("make", [lambda: None, lambda: gw.WarmUp(bits=8, steps=7)], ids=["alone", "controlled"])
def test_an_elastic_job_goes_on_with_the_default_collectives_of_its_ranks(make, ratio: float):
    """And the controller from the plan that it had."""
    few, many = (uniform(SLOTS, gw.TopK(ratio), gw.Residual(), ranks=ranks) for ranks in (2, 8))
    with job(few, SLOTS, 2, controllers=[make() for _ in range(2)], elastic=True) as running:
        for number in range(5):
            running.step(draw(SLOTS, 2, number))
        saved = running.states()
    with job(many, SLOTS, 8, controllers=[make() for _ in range(8)], elastic=True) as grown:
        first = grown.runtimes[0].plan
        all_go_on(grown, saved)
        assert [runtime.plan for runtime in grown.runtimes] == [first] * 8
        assert [runtime._active.origin for runtime in grown.runtimes] == [many] * 8
        for number in range(4):
            grown.step(draw(SLOTS, 8, number))
        assert [runtime.plan for runtime in grown.runtimes] == [many] * 8
        later = grown.states()
    # ranks leave again
    with job(few, SLOTS, 2, controllers=[make() for _ in range(2)], elastic=True) as fewer:
        all_go_on(fewer, later[:2])
        assert [runtime.plan for runtime in fewer.runtimes] == [few] * 2


def test_an_elastic_job_of_as_many_ranks_goes_on_with_the_plan_that_a_user_asked_for():
    """Among others too, where more than its collectives is another."""
    own, asked = default_of(2), uniform(SLOTS, gw.TopK(0.3), gw.Residual(), gw.ScatterReduce())
    other = uniform(SLOTS, gw.TopK(0.2), gw.Residual(), gw.AllGather())
    for then, ranks in ((asked, 2), (other, 2), (other, 8)):
        with job(own, SLOTS, 2, elastic=True) as running:
            running.install(then)
            saved = running.states()
        with job(default_of(ranks), SLOTS, ranks, elastic=True) as resumed:
            all_go_on(resumed, saved)
            assert [runtime.plan for runtime in resumed.runtimes] == [then] * ranks


def all_go_on(running: Job, saved: list[dict[str, Tensor]]) -> None:
    """All ranks from the first one's state, as many as there are with their own memories."""
    handles = [gw.Handle(runtime, NullFrontEnd()) for runtime in running.runtimes]
    kept, common = [*saved, *[None] * (len(handles) - len(saved))], without_memories(saved[0])
    raising(together(len(handles), lambda rank: go_on(handles[rank], common, kept[rank], rank, len(handles))))


def plan_when(saved: list[dict[str, Tensor]]) -> gw.Plan:
    """In force when these states were saved."""
    return Plan.from_json(checkpoint.unpack(saved[0]).about.plan)


def communicators(plan: gw.Plan) -> dict[str, gw.Communicator]:
    return {name: group.communicator for group in plan.groups for name in group.slots}


def test_a_controller_goes_on_with_the_groups_of_the_state(caplog: pytest.LogCaptureFixture):
    with job(topk(0.1, groups=3), SLOTS, 2, controllers=[gw.WarmUp(0.5, steps=4) for _ in range(2)]) as running:
        running.step(draw(SLOTS, 2, 0))
        saved, plan = running.states(), running.runtimes[0].plan
    caplog.clear()
    with job(topk(0.1), SLOTS, 2, controllers=[gw.WarmUp(0.5, steps=4) for _ in range(2)]) as resumed:
        resumed.load(saved)
        assert resumed.runtimes[0].plan == plan
        assert not caplog.messages


@every_controller
@pytest.mark.parametrize("first", [True, False], ids=["frozen when saved", "frozen when loaded"])
def test_a_controllers_state_fits_where_other_parameters_are_frozen(make, first: bool):
    """Frozen and thawed in one job, between which its state is saved."""
    names = [slot.name for slot in SLOTS]
    steps = iter(range(20))

    def step(running: Job, trained: list[str]) -> None:
        order, grads = [names.index(name) for name in trained], draw(SLOTS, 2, next(steps))
        for runtime, own in zip(running.runtimes, grads, strict=True):
            runtime.open_step()
            hand_over(runtime, own, order)
        running.finish()

    before, after = (names[2:], names) if first else (names, names[2:])
    with job(topk(0.1), SLOTS, 2, controllers=[make(), make()], trained=names) as running:
        for _ in range(3):
            step(running, names)
        if first:
            running.follow(before)
        for _ in range(4):
            step(running, before)
        saved = running.states()
        running.follow(after)
        step(running, after)
        running.load(saved)
        for _ in range(5):
            step(running, after)
        assert sorted(name for group in running.runtimes[0].plan.groups for name in group.slots) == sorted(after)
        if make is CONTROLLERS[0]:
            assert running.runtimes[0].plan == topk(0.1).only(after)


@every_controller
@pytest.mark.parametrize("later", [True, False], ids=["frozen later", "frozen at first"])
def test_a_controller_waits_while_all_that_it_is_for_is_frozen(make, later: bool):
    """Its user has named a compressor for it, and is not told to."""
    names, dense = [slot.name for slot in SLOTS], [slot.name for slot in SLOTS if len(slot.shape) < 2]
    steps = iter(range(40))

    def mixed(slots: Sequence[Slot], ratio: float = 0.1) -> gw.Plan:
        return uniform(slots, gw.TopK(ratio), gw.Residual(), dense=lambda slot: slot.name in dense)

    def step(running: Job, trained: list[str], count: int) -> None:
        order = [names.index(name) for name in trained]
        for _ in range(count):
            for runtime, own in zip(running.runtimes, draw(SLOTS, 2, next(steps)), strict=True):
                runtime.open_step()
                hand_over(runtime, own, order)
            running.finish()

    first = names if later else dense
    with job(mixed(SLOTS), SLOTS, 2, controllers=[make(), make()], trained=first, plan_for=mixed) as running:
        if later:
            step(running, names, 3)
            running.follow(dense)
        # through a window, a checkpoint and a plan that the user asks for
        step(running, dense, 9)
        assert {str(group.compressor) for group in running.runtimes[0].plan.groups} == {"FP32()"}
        running.load(running.states())
        running.install(mixed(SLOTS, 0.2))
        step(running, dense, 3)
        running.follow(names)
        step(running, names, 6)
        assert {"FP32()"} < {str(group.compressor) for group in running.runtimes[0].plan.groups}
        # without anything for it no plan is taken
        plain = uniform(SLOTS, gw.FP32())
        assert all(isinstance(error, ValueError) for error in together(2, lambda r: running.runtimes[r].install(plain)))


class OtherController(gw.WarmUp):
    """A controller whose state no other one can load."""


@every_controller
@pytest.mark.parametrize("had", [None, lambda: OtherController(0.5, steps=4)], ids=["none", "another"])
def test_a_controller_begins_anew_where_a_state_has_none_or_anothers(make, had, caplog: pytest.LogCaptureFixture):
    with job(topk(0.1), SLOTS, 2, controllers=[had(), had()] if had else ()) as before:
        before.step(draw(SLOTS, 2, 0))
        saved, kept = before.states(), before.state("residual")
    controllers = [make(), make()]
    with job(topk(0.1), SLOTS, 2, controllers=controllers) as running:
        fresh, plan = controllers[0].state_dict(), running.runtimes[0].plan
        for number in range(10):
            running.step(draw(SLOTS, 2, number))
        caplog.clear()
        running.load(saved)
        for controller in controllers:
            torch.testing.assert_close(controller.state_dict(), fresh, rtol=0, atol=0, equal_nan=True)
        assert [runtime.plan for runtime in running.runtimes] == [plan] * 2
        assert [runtime._active._control.decided for runtime in running.runtimes] == [None] * 2
        torch.testing.assert_close(running.state("residual"), kept, rtol=0, atol=0)
        said = f"the state has what OtherController knew; {type(controllers[0]).__name__} begins anew"
        assert caplog.messages == ([said] if had else [])
        for number in range(1, 8):
            running.step(draw(SLOTS, 2, number))


def test_a_state_from_before_the_first_step_leaves_the_order_to_it():
    """Of a job with a controller; also where that goes back to its beginning."""
    order = [3, 1, 0, 2, 6, 5, 4]
    options = {"plan_for": lambda slots: plan_in(uniform(slots, gw.TopK(0.1))), "follow_order": True}

    def step(running: Job, number: int) -> None:
        for runtime, own in zip(running.runtimes, draw(SLOTS, 2, number), strict=True):
            runtime.open_step()
            hand_over(runtime, own, order)
        running.finish()

    def made() -> Any:
        controllers = [gw.WarmUp(0.5, steps=2) for _ in range(2)]
        return job(options["plan_for"](SLOTS), SLOTS, 2, controllers=controllers, **options)

    with made() as running, made() as loaded:
        begun = loaded.states()
        loaded.load(begun)
        for number in range(6):
            step(running, number)
            step(loaded, number)
            assert loaded.runtimes[0].plan == running.runtimes[0].plan
        assert loaded.runtimes[0]._active.origin == options["plan_for"]([SLOTS[slot] for slot in order])
        loaded.load(begun)
        for number in range(6):
            step(loaded, number)
        assert loaded.runtimes[0].plan == running.runtimes[0].plan


def test_a_job_goes_on_in_the_order_of_the_state():
    """A plan made from slots in the order in which they became ready is that of the state, from the first step on."""
    make = partial(uniform, compressor=gw.PowerSGD(2))
    options = {"plan_for": lambda slots: plan_in(make(slots)), "follow_order": True}
    order = [3, 1, 0, 2, 6, 5, 4]

    def step(running, number: int) -> list[Tensor]:
        for runtime in running.runtimes:
            runtime.open_step()
        grads = draw(SLOTS, 2, number)
        means = [hand_over(runtime, own, order) for runtime, own in zip(running.runtimes, grads, strict=True)]
        running.finish()
        return means[0]

    with job(plan_in(make(SLOTS)), SLOTS, 2, **options) as running:
        for number in range(2):
            step(running, number)
        saved, plan = running.states(), running.runtimes[0].plan
        expected = step(running, 2)
    with job(plan_in(make(SLOTS)), SLOTS, 2, **options) as resumed:
        assert resumed.runtimes[0].plan != plan
        resumed.load(saved)
        assert resumed.runtimes[0].plan == plan
        assert all(torch.equal(a, b) for a, b in zip(step(resumed, 2), expected, strict=True))
        assert resumed.runtimes[0].plan == plan


def plan_in(plan: gw.Plan) -> gw.Plan:
    """In two groups, which slots are in the order in which they come."""
    names = [name for group in plan.groups for name in group.slots]
    group = plan.groups[0]
    return gw.Plan(
        tuple(
            gw.Group(tuple(own), group.compressor, group.memory, group.communicator) for own in (names[:4], names[4:])
        )
    )


def test_a_later_state_replaces_what_was_pending():
    """A job without memory is given one state and then, before it sends that, another."""
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2) as running:
        fresh = running.states()
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
    with job(plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce()), SLOTS, 2) as other:
        other.load(saved)
        other.load(fresh)
        assert not any(residual.any() for residual in residuals(other.states()))


def any_of(running: Job, kind: str) -> bool:
    """Whether some rank's state of this kind is other than zero."""
    return any(bool(tensor.any()) for own in running.state(kind) for tensor in own)


@pytest.mark.parametrize(
    ("saved", "loading", "kind"),
    [
        ((gw.TopK(0.1), gw.Residual(), gw.AllGather()), (gw.TopK(0.1), gw.DGCMemory(), gw.AllGather()), "velocity"),
        ((gw.FP32(), gw.NoMemory(), gw.AllReduce()), (gw.TopK(0.1), gw.Residual(), gw.AllGather()), "residual"),
    ],
)
def test_memory_that_the_state_lacks_starts_at_zero(saved: tuple, loading: tuple, kind: str):
    with job(plan_of(SLOTS, *saved), SLOTS, 2) as running:
        states = running.states()
    with job(plan_of(SLOTS, *loading), SLOTS, 2) as other:
        other.step(draw(SLOTS, 2, 0))
        assert any_of(other, kind)
        other.load(states)
        assert not any_of(other, kind)


def about(rank: int, ranks: int = 2, **more) -> checkpoint.About:
    return checkpoint.About(rank, ranks, gw.NATIVE.to_json(), **more)


def foreign(rank: int, **tensors: Tensor) -> dict[str, Tensor]:
    """Another model's state, with a residual of these parameters."""
    return checkpoint.pack({name: {"residual": tensor} for name, tensor in tensors.items()}, {}, 7, about(rank))


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (partial(foreign, other=torch.ones(3)), "parameter 'other', which the model lacks"),
        (partial(foreign, scale=torch.ones(3)), r"residual of 'scale' is \(3,\), and the parameter \(1,\)"),
        (lambda rank: foreign(rank) | {"scale": torch.ones(1)}, "what is 'scale'"),
    ],
)
@pytest.mark.parametrize("ranks", [[0], [0, 1]])
def test_another_models_state_is_refused_by_all_and_changes_nothing(state, why: str, ranks: list[int]):
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        before = running.states()
        loaded = [state(rank) if rank in ranks else before[rank] for rank in range(2)]
        errors = together(2, lambda rank: running.runtimes[rank].load_state_dict(loaded[rank]))
        for error in errors:
            assert isinstance(error, ValueError)
            assert re.search(why, str(error))
        for old, new in zip(before, running.states(), strict=True):
            assert all(torch.equal(old[key], new[key]) for key in old)


def test_of_parameters_that_are_not_reduced_any_more_nothing_is_taken_over():
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2, others={"other"}) as running:
        running.load([foreign(rank, other=torch.ones(3)) for rank in range(2)])  # frozen since
        assert not any("other" in key for key in running.states()[0])


def test_states_of_different_steps_are_refused_by_all():
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2) as running:
        states = running.states()
        read = checkpoint.unpack(states[1])
        states[1] = checkpoint.pack(read.exported, read.job, read.step + 1, read.about)
        for error in together(2, lambda rank: running.runtimes[rank].load_state_dict(states[rank])):
            assert isinstance(error, ValueError)
            assert "differ in the state's step: 0 on rank 0, 1 on rank 1" in str(error)


@pytest.mark.parametrize("holder", [0, 1, 2])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_a_residual_that_one_rank_alone_holds_is_not_lost(holder: int, world: int):
    exported = [{"w": {"residual": torch.ones(2)}} if rank == holder else {} for rank in range(3)]
    states = [checkpoint.pack(exported[rank], {}, 3, about(rank, 3)) for rank in range(3)]
    assert sum(shard["w//residual"] for shard in gw.reshard(states, world)).tolist() == [1, 1]


def test_a_residual_survives_a_step_that_another_group_spoils():
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        kept = running.state("residual")
        running.install(plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce()))
        spoilt = draw(SLOTS, 2, 1)
        spoilt[1][-1].fill_(torch.nan)
        running.step(spoilt)
        for before, after in zip(kept, running.state("residual"), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def swapped(state: dict[str, Tensor], a: str, b: str) -> dict[str, Tensor]:
    return state | {a: state[b], b: state[a]}


@pytest.mark.parametrize("gathered", [False, True])
def test_a_state_whose_keys_were_swapped_by_hand_is_refused(gathered: bool):
    kept = {name: {"residual": torch.randn(3, 4)} for name in ("a", "b")}
    states = [checkpoint.pack(kept, {"x": torch.ones(2), "y": torch.zeros(2)}, 7, about(rank)) for rank in range(2)]
    state = checkpoint.gather(states) if gathered else states[0]
    checkpoint.unpack(through_a_file(state))
    for a, b in (("a//residual", "b//residual"), ("//x", "//y")):
        said = f"the state's '{a}' has other numbers than were saved.* give dcp.save\\(\\) stateful"
        with pytest.raises(ValueError, match=said):
            checkpoint.unpack(swapped(state, a, b))
    with pytest.raises(ValueError, match="the state's 'step' has other numbers"):
        checkpoint.unpack(state | {"step": state["step"] + 1})


def test_how_a_saved_tensor_lies_in_memory_does_not_matter():
    state = checkpoint.pack({"w": {"residual": torch.randn(3, 4).T}}, {}, 7, about(0))
    checkpoint.unpack({key: tensor.contiguous() for key, tensor in state.items()})


@pytest.mark.parametrize("name", ["a//b", "//a", "a/", "a~1b", "/"])
def test_any_name_of_a_parameter_is_saved_and_loaded(name: str):
    slots = slots_of({name: torch.empty(5, 7), "~0": torch.empty(5, 7)})
    plan = plan_of(slots, gw.PowerSGD(1, min_compression_rate=1), gw.Residual(), gw.AllReduce())
    with job(plan, slots, 2) as running:
        running.step(draw(slots, 2, 0))
        states = [through_a_file(state) for state in running.states()]
    with job(plan, slots, 2) as resumed:
        resumed.load(states)
        for old, new in zip(states, resumed.states(), strict=True):
            assert old.keys() == new.keys()
            assert all(torch.equal(old[key], new[key]) for key in old)
    assert set(checkpoint.unpack(gw.reshard(states, 1)[0]).exported) == {name, "~0"}


def test_without_states_or_ranks_there_is_nothing_to_reshard():
    with pytest.raises(ValueError, match="there is no state here; pass every rank's"):
        gw.reshard([], 2)
    for world in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match=r"is no number of ranks; use e\.g\. gw\.reshard\(states, 4\)"):
            gw.reshard(saved_states(1), world)
