"""State dicts: a resumed job goes on bit for bit, and no residual is lost on the way to another plan or size."""

import io
import re

import pytest
import torch
from cases import CASES, Case
from harness import SMALL, draw, job, plan_of, slots_of, together, total
from torch import Tensor

import gradwire as gw
from gradwire import checkpoint

SLOTS = slots_of(SMALL)
REMEMBERING = [case for case in CASES if case.conserves]
all_cases = pytest.mark.parametrize("case", CASES, ids=str)
conserving = pytest.mark.parametrize("case", REMEMBERING, ids=str)


def plan_for(case: Case, groups: int = 2) -> gw.Plan:
    return plan_of(SLOTS, case.compressor, case.memory, case.communicator, groups=groups)


def residuals(states: list[dict[str, Tensor]]) -> list[Tensor]:
    zeros = [torch.zeros(slot.shape) for slot in SLOTS]
    keys = [f"{slot.name}//residual" for slot in SLOTS]
    return total([[state.get(key, zero) for key, zero in zip(keys, zeros, strict=True)] for state in states])


def through_a_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@all_cases
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


def test_a_saved_state_is_a_copy():
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
        before = [{key: tensor.clone() for key, tensor in state.items()} for state in saved]
        running.step(draw(SLOTS, 2, 1))
        assert all(torch.equal(old[key], new[key]) for old, new in zip(before, saved, strict=True) for key in old)


@conserving
@pytest.mark.parametrize("groups", [1, 3])
def test_a_state_fits_another_plan(case: Case, groups: int):
    with job(plan_for(case), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        saved = running.states()
    with job(plan_for(case, groups), SLOTS, 2) as other:
        other.load(saved)
        for old, new in zip(saved, other.states(), strict=True):
            assert all(torch.equal(old[key], new[key]) for key in old)


@conserving
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
        for mean, given, owed in zip(means, total(grads), residuals(saved), strict=True):
            torch.testing.assert_close(mean.double(), given / 2 + owed, rtol=1e-5, atol=1e-5)


@conserving
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_another_number_of_ranks_keeps_the_sum(case: Case, world: int):
    with job(plan_for(case), SLOTS, 3) as running:
        running.step(draw(SLOTS, 3, 0))
        saved = running.states()
    shards = gw.reshard(saved, world)
    assert len(shards) == world
    for a, b in zip(residuals(shards), residuals(saved), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert all(int(shard["step"]) == 1 for shard in shards)
    with job(plan_for(case), SLOTS, world) as other:
        other.load(shards)
        for old, new in zip(shards, other.states(), strict=True):
            assert old.keys() == new.keys()
            assert all(torch.equal(old[key], new[key]) for key in old)
        assert all(mean.isfinite().all() for mean in other.step(draw(SLOTS, world, 1))[0])


def test_what_is_no_state_is_refused():
    with pytest.raises(ValueError, match="state_dict"):
        checkpoint.unpack({"weight": torch.zeros(1)})


def test_a_later_state_replaces_what_was_still_owed():
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


def foreign(**tensors: Tensor) -> dict[str, Tensor]:
    return {"step": torch.tensor(7)} | {key.replace("__", "//"): tensor for key, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (foreign(other__residual=torch.ones(3)), "parameter 'other', which the model lacks"),
        (foreign(scale__residual=torch.ones(3)), r"residual of 'scale' is \(3,\), and the parameter \(1,\)"),
        (foreign(scale=torch.ones(1)), "what is 'scale'"),
    ],
)
@pytest.mark.parametrize("ranks", [[0], [0, 1]])
def test_another_models_state_is_refused_by_all_and_changes_nothing(state, why: str, ranks: list[int]):
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        before = running.states()
        loaded = [state if rank in ranks else before[rank] for rank in range(2)]
        errors = together(2, lambda rank: running.runtimes[rank].load_state_dict(loaded[rank]))
        for error in errors:
            assert isinstance(error, ValueError)
            assert re.search(why, str(error))
        for old, new in zip(before, running.states(), strict=True):
            assert all(torch.equal(old[key], new[key]) for key in old)


def test_of_parameters_that_are_not_reduced_any_more_nothing_is_taken_over():
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2, others={"other"}) as running:
        running.load([foreign(other__residual=torch.ones(3))] * 2)  # frozen since
        assert not any("other" in key for key in running.states()[0])


def test_states_of_different_steps_are_refused_by_all():
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2) as running:
        states = running.states()
        states[1]["step"] += 1
        for error in together(2, lambda rank: running.runtimes[rank].load_state_dict(states[rank])):
            assert isinstance(error, ValueError)
            assert "differ in the state's step: 0 on rank 0, 1 on rank 1" in str(error)


def test_a_residual_that_one_rank_alone_holds_is_not_lost():
    """Whichever rank that is: not rank 0 alone says what there is."""
    step = torch.tensor(3)
    states = [{"step": step}, {"step": step, "w//residual": torch.ones(2)}, {"step": step}]
    for order in (states, states[::-1], [states[1], *states[::2]]):
        for world in (1, 2, 5):
            shards = gw.reshard(order, world)
            assert sum(shard["w//residual"] for shard in shards).tolist() == [1, 1]


def test_what_is_owed_survives_a_step_that_another_group_spoils():
    case = Case(gw.TopK(0.1), gw.Residual(), gw.AllGather(), bits=0)
    with job(plan_for(case), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        owed = running.state("residual")
        running.install(plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce()))
        spoilt = draw(SLOTS, 2, 1)
        spoilt[1][-1].fill_(torch.nan)
        running.step(spoilt)
        for before, after in zip(owed, running.state("residual"), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
