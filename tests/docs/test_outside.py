"""What users write themselves works as what Gradwire brings: see `outside`."""

import pytest
import torch

import gradwire as gw
from gradwire.schedule.candidate_names import candidate_names
from gradwire.schedule.costs import Affine
from gradwire.schedule.profiled import Candidate
from tests.support.harness import SMALL, draw, job, plan_of, slots_of, total
from tests.support.outside import Counting, Halving, InTurns, Largest, Momentum, SharedScale, Truncated

SLOTS = slots_of(SMALL)
PAIRINGS = [
    (Truncated(), gw.Residual(), gw.AllGather()),
    (Truncated(), gw.Residual(), InTurns()),
    (gw.TopK(0.1), gw.Residual(), InTurns()),
    (SharedScale(), gw.Residual(), gw.AllReduce()),
    (gw.TopK(0.1), Momentum(), gw.AllGather()),
    (Largest(0.1), gw.Residual(), gw.SplitGather()),
    (Largest(0.1), gw.Residual(), gw.OkTopk()),
    (Largest(0.1, value_bits=4), gw.Residual(), gw.AllGather()),
]


@pytest.mark.parametrize(("compressor", "memory", "communicator"), PAIRINGS, ids=str)
def test_what_is_sent_and_what_is_kept_are_what_was_given(compressor, memory, communicator):
    momentum = getattr(memory, "momentum", 0.0)
    plan = plan_of(SLOTS, compressor, memory, communicator)
    given = [torch.zeros(slot.shape, dtype=torch.float64) for slot in SLOTS]
    sent = [torch.zeros(slot.shape, dtype=torch.float64) for slot in SLOTS]
    velocity = [torch.zeros(slot.shape, dtype=torch.float64) for slot in SLOTS]
    with job(plan, SLOTS, 3) as running:
        for step in range(4):
            grads = draw(SLOTS, 3, step)
            means = running.step(grads)
            for i, mean in enumerate(total(grads)):
                velocity[i] = momentum * velocity[i] + mean / 3
                given[i] += velocity[i]
                sent[i] += means[0][i]
            for other in means[1:]:
                assert all(torch.equal(a, b) for a, b in zip(means[0], other, strict=True))
        kept = total(running.state("residual"))
    for i in range(len(SLOTS)):
        torch.testing.assert_close(sent[i] + kept[i], given[i], rtol=1e-5, atol=1e-5)


def test_a_step_that_is_not_finite_leaves_their_state():
    with job(plan_of(SLOTS, SharedScale(), Momentum(), gw.AllReduce()), SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        before = running.states()
        bad = draw(SLOTS, 2, 1)
        bad[1][3][0, 0] = torch.inf
        running.step(bad)
        for old, new in zip(before, running.states(), strict=True):
            assert all(torch.equal(old[name], new[name]) for name in old if "//" in name)


def test_a_controller_of_their_own_changes_ratios_alike_on_all_ranks():
    controllers = [Halving(), Halving()]
    plan = plan_of(SLOTS, gw.TopK(0.01), gw.Residual(), gw.AllGather())
    with job(plan, SLOTS, 2, controllers=controllers) as running:
        for step in range(6):
            running.step(draw(SLOTS, 2, step))
        plans = [runtime.plan for runtime in running.runtimes]
    assert plans[0] == plans[1] != plan


def test_a_transport_of_their_own_counts_what_is_declared():
    transports = [Counting(inner) for inner in gw.Threads.group(2)]
    plan = plan_of(SLOTS, Truncated(), gw.Residual(), InTurns())
    with job(plan, SLOTS, 2, transports=transports) as running:
        running.step(draw(SLOTS, 2, 0))
        declared = running.runtimes[0].stats().wire_bytes
    assert transports[0].bytes == declared > 0


def test_what_a_compressor_of_rounds_says_is_what_it_sends():
    layout, plan = gw.Layout(tuple(SLOTS)), plan_of(SLOTS, SharedScale(), gw.Residual(), gw.AllReduce(), groups=1)
    with job(plan, SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))
        sent = running.runtimes[0].stats().wire_bytes
    assert sent == gw.AllReduce().wire(SharedScale(), layout, 2).wire_bytes


DRAWN: dict[str, set[float]] = {"own": set(), "shared": set()}


class Drawing(Truncated):
    def compress(self, x: torch.Tensor, payload: torch.Tensor, context: gw.GroupContext) -> None:
        for name, seed in (("own", context.own_seed()), ("shared", context.shared_seed())):
            DRAWN[name].add(torch.rand(1, generator=torch.Generator(x.device).manual_seed(seed.number)).item())
        super().compress(x, payload, context)


def test_seeds_of_a_step_are_a_ranks_own_or_shared():
    with job(plan_of(SLOTS, Drawing(), gw.Residual(), gw.AllGather(), groups=1), SLOTS, 2) as running:
        for step in range(3):
            running.step(draw(SLOTS, 2, step))
    assert {name: len(drawn) for name, drawn in DRAWN.items()} == {"own": 6, "shared": 3}


def test_a_sparsifier_of_their_own_takes_what_gradwires_take():
    gw.GraVAC().check(plan_of(SLOTS, Largest(0.1), gw.Residual(), gw.AllGather()))
    gw.Group(("w",), Largest(0.1), gw.DGCMemory(), gw.AllGather(over_senders=True))


def test_a_communicator_of_their_own_refuses_what_it_cannot_send():
    with pytest.raises(ValueError, match=r"^InTurns\(\) sends one payload"):
        gw.Group(("w",), gw.PowerSGD(4, bits=4), gw.Residual(), InTurns())


def test_a_plan_with_parts_of_their_own_is_described_and_compared():
    plan = plan_of(SLOTS, SharedScale(64), Momentum(0.5), gw.AllReduce())
    assert "SharedScale(levels=64)" in plan.describe()
    assert plan != plan_of(SLOTS, SharedScale(65), Momentum(0.5), gw.AllReduce())


def test_a_pairing_that_cannot_be_names_their_communicator():
    with pytest.raises(ValueError, match=r"PowerSGD sums its own factors; pair it with AllReduce\(\), not InTurns\(\)"):
        gw.Group(("weight",), gw.PowerSGD(4), gw.Residual(), InTurns())


def test_a_communicator_of_their_own_is_a_candidate():
    ways = [gw.Group(("weight",), gw.TopK(0.01), gw.Residual(), each) for each in (gw.AllGather(), InTurns())]
    candidates = [Candidate(way, Affine(), Affine(), 1.0) for way in ways]
    names = candidate_names(candidates)
    assert names == ["TopK(ratio=0.01) by AllGather", "TopK(ratio=0.01) by InTurns"]


def test_the_beginning_of_names_that_docstrings_demand_is_offered():
    assert gw.COMMON == "common/"
