"""Dion's updates for zeros, for vectors, and for gradients of any size; the paper's steps are in tests/published."""

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire import checkpoint
from gradwire.frontends.null_job import NullRuntime
from gradwire.slots import Layout
from tests.support.harness import Job, draw, job, plan_of, slots_of, total

SLOTS = slots_of({
    "w": torch.empty(12, 27), "row": torch.empty(1, 12), "column": torch.empty(9, 1), "small": torch.empty(3, 2),
    "bias": torch.empty(12),
})  # fmt: skip
MATRICES, VECTORS = (0, 3), (1, 2, 4)
SAYS = r"the memory of 'w' is the momentum of Dion\(.* would send as a gradient; keep Dion"


def start(compressor: gw.Dion) -> Job:
    return job(plan_of(SLOTS, compressor, gw.Residual(), gw.AllReduce()), SLOTS, 2)


def zeros() -> list[list[Tensor]]:
    return [[torch.zeros(slot.shape) for slot in SLOTS]] * 2


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e20])
def test_updates_of_matrices_have_one_size_whatever_that_of_gradients(scale: float):
    """Pᵀ Q of r orthonormal rows and r rows of length √(rows / columns)."""
    with start(gw.Dion(2)) as running:
        for step in range(3):
            means = running.step(draw(SLOTS, 2, step, scale))[0]
            for i in MATRICES:
                rows, columns = SLOTS[i].matrix
                torch.testing.assert_close(means[i].square().sum(), torch.tensor(2 * rows / columns), rtol=1e-3, atol=0)


def test_vectors_and_matrices_of_one_row_or_column_are_means_of_gradients():
    with start(gw.Dion(2)) as running:
        grads = draw(SLOTS, 2, 0)
        means = running.step(grads)[0]
        for i in VECTORS:
            torch.testing.assert_close(means[i], (grads[0][i] + grads[1][i]) / 2)
            assert not any(own[i].any() for own in running.state("residual"))


def test_nothing_moves_until_there_is_a_gradient_and_momentum_goes_on_without():
    with start(gw.Dion(2)) as running:
        assert not any(mean.any() for mean in running.step(zeros())[0])
        first = running.step(draw(SLOTS, 2, 0))[0]
        later = running.step(zeros())[0]
        assert all(first[i].any() and later[i].any() for i in MATRICES)
        assert not any(later[i].any() for i in VECTORS)


@pytest.mark.parametrize(("rank", "factors"), [(2, [2, 2]), (1 / 4, [3, 1]), (5, [5, 2])])
def test_every_matrix_is_sent_as_factors(rank: float, factors: list[int]):
    elements = sum(SLOTS[i].numel for i in VECTORS)
    elements += sum(r * sum(SLOTS[i].matrix) for i, r in zip(MATRICES, factors, strict=True))
    assert gw.Dion(rank).group_bytes(Layout(tuple(SLOTS)), 0) == 4 * elements


def test_momentum_is_not_sent_as_a_residual_by_another_compressor():
    dense = plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce())
    says = r"the memory of 'w' is the momentum of Dion\(.* which FP32\(\) would send as a gradient; keep Dion"
    with start(gw.Dion(2)) as running:
        running.step(draw(SLOTS, 2, 0))
        states = running.states()
        with pytest.raises(ValueError, match=says):
            running.install(dense)
        running.install(plan_of(SLOTS, gw.Dion(1), gw.Residual(), gw.AllReduce()))
        running.step(draw(SLOTS, 2, 1))
    with job(dense, SLOTS, 2, no_native="") as other:
        other.step(draw(SLOTS, 2, 0))
        without = other.states()
        with pytest.raises(ValueError, match=says):
            other.load(states)
        # nor where it has waited meanwhile
        other.install(gw.NATIVE)
        other.load(states)
        with pytest.raises(ValueError, match=says):
            other.install(dense)
        # a state without momenta leaves none
        other.load(without)
        other.install(dense)
    # a residual was not sent yet, as gradients that come
    with start(gw.Dion(2)) as running:
        running.load(without)
        with pytest.raises(ValueError, match=says):
            running.install(dense)


def test_before_the_first_step_there_is_no_momentum_and_the_plan_may_still_change():
    dense = plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce())
    with start(gw.Dion(2)) as running:
        running.install(dense)
        grads = draw(SLOTS, 2, 0)
        for mean, expected in zip(running.step(grads)[0], total(grads), strict=True):
            torch.testing.assert_close(mean, expected / 2, check_dtype=False)


def test_momentum_stays_known_while_native_or_frozen_and_through_states():
    """What knows of it is part of the state: another compressor never gets it, whatever plans were between."""
    dion = plan_of(SLOTS, gw.Dion(2), gw.Residual(), gw.AllReduce())
    sparse = plan_of(SLOTS, gw.TopK(0.5), gw.Residual(), gw.AllGather())
    others = [slot.name for slot in SLOTS if slot.name != "w"]
    with job(dion, SLOTS, 2, trained=[slot.name for slot in SLOTS], no_native="") as running:
        running.step(draw(SLOTS, 2, 0))
        running.install(gw.NATIVE)
        native = running.states()
        running.install(dion)
        running.follow(others)
        frozen = running.states()
    with job(sparse, SLOTS, 2, no_native="") as other:
        for states in (native, frozen, gw.reshard(native, 2), [checkpoint.gather(native)] * 2):
            with pytest.raises(ValueError, match=SAYS):
                other.load(states)
        # nor from a state that it has only kept
        other.install(gw.NATIVE)
        other.load(native)
        alone = NullRuntime()
        alone.load_state_dict(checkpoint.gather(other.states()))
        other.load(gw.reshard([alone.state_dict()], 2))
        with pytest.raises(ValueError, match=SAYS):
            other.install(sparse)


def test_what_becomes_a_mean_has_no_momentum():
    """Vectors lie in the groups of matrices, and may go on with any compressor."""
    dion = plan_of(SLOTS, gw.Dion(2), gw.Residual(), gw.AllReduce(), groups=1)
    matrices = gw.Group(("w", "small"), gw.Dion(2), gw.Residual(), gw.AllReduce())
    vectors = gw.Group(("row", "column", "bias"), gw.FP32(), gw.NoMemory(), gw.AllReduce())
    with job(dion, SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        states = running.states()
        running.install(gw.Plan((matrices, vectors)))
    with job(gw.Plan((matrices, vectors)), SLOTS, 2) as other:
        other.load(states)
