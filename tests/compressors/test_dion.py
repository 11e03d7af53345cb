"""Dion's updates for zeros, for vectors, and for gradients of any size; the paper's steps are in tests/published."""

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.slots import Layout
from tests.support.harness import Job, draw, job, plan_of, slots_of

SLOTS = slots_of({
    "w": torch.empty(12, 27), "row": torch.empty(1, 12), "column": torch.empty(9, 1), "small": torch.empty(3, 2),
    "bias": torch.empty(12),
})  # fmt: skip
MATRICES, VECTORS = (0, 3), (1, 2, 4)


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
    with job(dense, SLOTS, 2, can_be_native=True) as other:
        other.step(draw(SLOTS, 2, 0))
        without = other.states()
        with pytest.raises(ValueError, match=says):
            other.load(states)
        # nor where it has waited meanwhile
        other.install(gw.NATIVE)
        other.load(states)
        with pytest.raises(ValueError, match=says):
            other.install(dense)
    # a residual was not sent yet, as gradients that come
    with start(gw.Dion(2)) as running:
        running.load(without)
        with pytest.raises(ValueError, match=says):
            running.install(dense)
