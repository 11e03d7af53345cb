"""Partial sparsification and hybrid collectives: plans, no machinery of their own."""

import pytest
import torch

import gradwire as gw
from gradwire.collective import Gather, Sum
from gradwire.slots import Slot
from tests.support.harness import draw, job, slots_of, total

WORLD = 3
PARAMETERS = {
    "embedding.weight": torch.empty(300, 40), "attention.weight": torch.empty(40, 120),
    "attention.bias": torch.empty(120), "norm.weight": torch.empty(40), "gate.weight": torch.empty(4, 40),
    "head.weight": torch.empty(90, 40),
}  # fmt: skip


def within_budget(slots: list[Slot], ratio: float) -> list[Slot]:
    """ADTopk's budget rule: the smallest gradients stay dense as long as all of them fit into S·ρ elements."""
    budget = ratio * sum(slot.numel for slot in slots)
    dense: list[Slot] = []
    for slot in sorted(slots, key=lambda slot: slot.numel):
        budget -= slot.numel
        if budget < 0:
            break
        dense.append(slot)
    return dense


def retuned(slots: list[Slot], dense: list[Slot], ratio: float) -> float:
    """The ratio of the others that keeps the elements sent at S·ρ; ADTopk's max(ρ, …) made this do nothing."""
    everything, unsparsified = sum(slot.numel for slot in slots), sum(slot.numel for slot in dense)
    return (everything * ratio - unsparsified) / (everything - unsparsified)


def hybrid(slots: list[Slot], ratio: float) -> gw.Plan:
    """Dense groups by all-reduce beside sparse ones by all-gather, within the budget."""
    dense = within_budget(slots, ratio)
    codec = gw.AllDimensionTopK(retuned(slots, dense, ratio))
    groups = [
        gw.Group((slot.name,), codec, gw.Residual(), gw.AllGather()) for slot in slots if slot not in dense
    ]  # one each, so that the collectives alternate
    reduced = gw.Group(tuple(slot.name for slot in dense), gw.FP32(), gw.NoMemory(), gw.AllReduce())
    return gw.Plan((*groups[:1], reduced, *groups[1:]))


@pytest.mark.parametrize("ratio", [0.02, 0.1])
def test_small_gradients_stay_dense_within_the_budget(ratio: float):
    slots = slots_of(PARAMETERS)
    dense = within_budget(slots, ratio)
    everything = sum(slot.numel for slot in slots)
    assert {slot.name for slot in dense} == {"norm.weight", "attention.bias", "gate.weight"}
    assert sum(slot.numel for slot in dense) <= ratio * everything
    assert 0 < retuned(slots, dense, ratio) < ratio


def test_a_hybrid_plan_mixes_collectives_in_one_step():
    slots = slots_of(PARAMETERS)
    plan = hybrid(slots, 0.1)
    assert gw.Plan.from_json(plan.to_json()) == plan
    with job(plan, slots, WORLD) as running:
        handed = len(running.transports[0].started)
        grads = draw(slots, WORLD, 0)
        means = running.step(grads)
        ops = running.transports[0].started[handed:]
        assert [type(op) for op in ops] == [Gather, Sum, Gather, Gather]
        expected = [grad / WORLD for grad in total(grads)]
        kept = total(running.state("residual"))
        for slot, mean, left, true in zip(slots, means[0], kept, expected, strict=True):
            dense = slot.name in plan.groups[1].slots
            assert dense == (not left.any())
            torch.testing.assert_close(mean.double() + left, true, rtol=0, atol=1e-5)
        assert all(torch.equal(a, b) for a, b in zip(means[0], means[2], strict=True))


def test_groups_move_between_the_two_without_loss():
    """A controller or scheduler that finds time on the wire makes a group dense: the residual goes along."""
    slots = slots_of(PARAMETERS)
    with job(hybrid(slots, 0.05), slots, WORLD) as running:
        given = [draw(slots, WORLD, step) for step in range(3)]
        sent = [running.step(given[0])[0]]
        running.install(hybrid(slots, 0.5))
        sent.append(running.step(given[1])[0])
        running.install(hybrid(slots, 0.05))
        sent.append(running.step(given[2])[0])
        true = [grad / WORLD for grad in total([own for grads in given for own in grads])]
        for out, left, expected in zip(total(sent), total(running.state("residual")), true, strict=True):
            torch.testing.assert_close(out + left, expected, rtol=0, atol=1e-5)
