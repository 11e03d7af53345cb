"""What `attach` plans for biases and norm scales, against the papers: they are moved as matrices are."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import gradwire as gw
from gradwire.frontends.options.choices import Choices
from tests.support.harness import draw, job, slots_of
from tests.support.outside import Momentum

PARAMETERS = {name: nn.Parameter(torch.empty(shape)) for name, shape in {"w": (40, 5), "small": (2, 3)}.items()}
PARAMETERS |= {"bias": nn.Parameter(torch.empty(7)), "scale": nn.Parameter(torch.empty(()))}
SLOTS = slots_of(dict(PARAMETERS))
WORLD, STEPS = 3, 5


def planned(compressor: gw.Compressor, **options: object) -> gw.Plan:
    return Choices.of(compressor, **options).plan(PARAMETERS, lambda: WORLD)(SLOTS)


def steps(plan: gw.Plan) -> list[tuple[list[list[Tensor]], list[Tensor]]]:
    """The gradients of each step by rank and slot, and rank 0's means."""
    with job(plan, SLOTS, WORLD) as running:
        given = [draw(SLOTS, WORLD, step) for step in range(STEPS)]
        return [(grads, running.step(grads)[0]) for grads in given]


def test_sign_sgd_votes_on_all_parameters():
    for grads, means in steps(planned(gw.SignSGD())):
        for slot, mean in enumerate(means):
            votes = sum(torch.where(own[slot] >= 0, 1.0, -1.0) for own in grads)
            assert torch.equal(mean, votes.sign())


def test_signum_votes_with_the_momentum_of_all_parameters():
    momentum = [[torch.zeros(slot.shape) for slot in SLOTS] for _ in range(WORLD)]
    for grads, means in steps(planned(gw.Signum(0.7))):
        for slot, mean in enumerate(means):
            for own, gradients in zip(momentum, grads, strict=True):
                own[slot] = torch.lerp(own[slot], gradients[slot], 1 - 0.7)
            votes = sum(torch.where(own[slot] >= 0, 1.0, -1.0) for own in momentum)
            assert torch.equal(mean, votes.sign())


@pytest.mark.parametrize("memory", [gw.DGCMemory(0.8), gw.DGCMemory(0.8, masking=False), Momentum(0.8)], ids=str)
@pytest.mark.parametrize("options", [{}, {"groups": gw.groups.partial(6)}, {"dense": lambda name, p: name != "w"}])
def test_what_travels_dense_has_the_momentum_of_the_rest(memory: gw.Memory, options: dict[str, object]):
    """As in the code of Deep Gradient Compression, whose uncompressed tensors have momentum, which nothing masks."""
    plan = planned(gw.TopK(0.1), memory=memory, **options)
    dense = [name for group in plan.groups if group.compressor == gw.FP32() for name in group.slots]
    assert {*dense} == {"bias", "scale", *(["small"] if options else [])}
    velocity = {name: torch.zeros(p.shape) for name, p in PARAMETERS.items()}
    for grads, means in steps(plan):
        for place, slot in enumerate(SLOTS):
            mean = torch.stack([own[place] for own in grads]).mean(0)
            velocity[slot.name] = 0.8 * velocity[slot.name] + mean
            if slot.name in dense:
                torch.testing.assert_close(means[place], velocity[slot.name], rtol=1e-5, atol=1e-6)


def test_rules_have_the_momentum_of_their_own():
    way = gw.Group((), gw.TopK(0.1), gw.DGCMemory(0.8), gw.AllGather())
    plan = planned(gw.TopK(0.1), rules=[("w", way), ("bias", way)])
    memories = {name: group.memory for group in plan.groups for name in group.slots}
    assert memories == {
        "w": gw.DGCMemory(0.8), "bias": gw.DGCMemory(0.8, masking=False),
        "small": gw.Residual(), "scale": gw.NoMemory(),
    }  # fmt: skip


@pytest.mark.parametrize("warm_up", [False, True])
def test_a_state_whose_vectors_had_no_momentum_yet_is_taken_on(warm_up: bool):
    """Gradwire 0.2 sent them as plain means."""
    now = planned(gw.TopK(0.1), memory=gw.DGCMemory(0.8))
    before = gw.Plan((*now.groups[:-1], replace(now.groups[-1], memory=gw.NoMemory())))
    controllers = [[gw.WarmUp(steps=20) for _ in range(WORLD)] if warm_up else [] for _ in range(2)]
    with job(before, SLOTS, WORLD, controllers=controllers[0]) as running:
        for step in range(STEPS):
            running.step(draw(SLOTS, WORLD, step))
        states, velocity = running.states(), running.state("velocity")
    with job(now, SLOTS, WORLD, controllers=controllers[1]) as running:
        running.step(draw(SLOTS, WORLD, 9))
        running.load(states)
        place = {slot.name: i for i, slot in enumerate(SLOTS)}
        loaded = running.state("velocity")
        assert all(torch.equal(a[place["w"]], b[place["w"]]) for a, b in zip(loaded, velocity, strict=True))
        assert not any(own[place["bias"]].any() for own in loaded)
        running.step(draw(SLOTS, WORLD, 5))
        assert all(own[place["bias"]].any() for own in running.state("velocity"))
