"""Multi-level compression: the second level is what would have been selected alone, and ranks send the same one."""

import re
from math import inf, nan

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.collective import Collective, Sum, framed
from gradwire.compressors.multi_level import Measure
from gradwire.ops.backend import backend_for
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Slot
from gradwire.transports import SizeRecorder
from tests.support.harness import SMALL, WIDE, Job, alone, draw, job, plan_of, slots_of

SLOTS, WIDE_SLOTS = slots_of(SMALL), slots_of(WIDE)
WIDE_NUMEL = sum(slot.numel for slot in WIDE_SLOTS)


def both_levels(compressor: gw.MultiLevel, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """What the two levels of x stand for, and what was observed of them."""
    context = alone(len(x), compressor)
    decoded = []
    for indices in compressor.select(x, context):
        decoded.append(torch.zeros(len(x)))
        decoded[-1][indices] = x[indices]
    next(gw.AllReduce().reduce(compressor, LazySum.of(x.clone()), torch.empty(len(x)), context))
    return decoded, compressor.observed(context)


@pytest.mark.parametrize("n", [1, 10, 1000, 200_001])
@pytest.mark.parametrize(("ratio", "further"), [(0.1, 10), (0.5, 2), (0.03, 1), (1.0, 1000)])
def test_of_top_k_the_second_level_is_what_it_selects_alone(n: int, ratio: float, further: float):
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    compressor = gw.MultiLevel(gw.TopK(ratio), further)
    (_, second), _ = both_levels(compressor, x)
    direct = torch.zeros(n)
    indices = backend_for(x).top_k(x, max(1, int(n * ratio / further)))
    direct[indices] = x[indices]
    assert torch.equal(second, direct)


@pytest.mark.parametrize(
    "codec", [gw.TopK(0.1), gw.DGC(0.1), gw.GaussianK(0.1), gw.RedSync(0.1), gw.RandomK(0.1)], ids=str
)
@pytest.mark.parametrize(("measure", "power"), [("energy", 2), ("magnitude", 1)])
def test_what_was_achieved_is_what_is_observed(codec: gw.compressors.Codec, measure: Measure, power: int):
    x = torch.randn(270_001, generator=torch.Generator().manual_seed(3))
    compressor = gw.MultiLevel(codec, 10, measure=measure)
    levels, observed = both_levels(compressor, x)
    norms = [v.double().abs().pow(power).sum() for v in (x, *levels)]
    torch.testing.assert_close(observed[0].double(), torch.stack(norms), rtol=1e-4, atol=0.0)
    assert observed[1].tolist() == [len(x), *(v.count_nonzero() for v in levels)]
    assert observed[1, 2] == 2700


def test_norms_are_the_formulas_moving_averages():
    compressor, generator = gw.MultiLevel(gw.TopK(0.1), 10, smoothing=0.32), torch.Generator().manual_seed(1)
    context, averages = alone(1000, compressor), None
    for step in range(6):
        gradient = torch.randn(1000, generator=generator) * (1 + step)
        for op in gw.AllReduce().reduce(compressor, LazySum.of(gradient), Mean.of(torch.empty(1000)), context):
            assert op is not None
            SizeRecorder(1).start(op)
        norms = compressor.observed(context)[0].clone()  # of one rank also their sums
        averages = norms if averages is None else 0.32 * norms + 0.68 * averages
        context.group.commit()
        torch.testing.assert_close(context.group["common/norms"], averages)


def level_of(op: Collective, compressor: gw.MultiLevel, n: int) -> str:
    """Which level's payload this message is, three norms and a flag behind it, as bytes or as numbers."""
    payloads = {
        "second": compressor.second.payload_bytes(n),  # pyright: ignore
        "first": compressor.codec.payload_bytes(n),  # pyright: ignore
        "dense": 4 * n,
    }
    sent = op.send.whole.nbytes
    return next(name for name, nbytes in payloads.items() if sent in (nbytes + 16, framed(nbytes + 12)))


@pytest.mark.parametrize("codec", [gw.TopK(0.1), gw.RandomK(0.1)], ids=str)
@pytest.mark.parametrize(("least", "expected"), [(0.0, "second"), (0.05, "first"), (0.99, "dense")])
def test_the_first_level_that_holds_enough_is_sent(codec: gw.compressors.Codec, least: float, expected: str):
    compressor = gw.MultiLevel(codec, 100, least)
    plan = plan_of(WIDE_SLOTS, compressor, gw.Residual(), gw.AllReduce(), groups=1)
    with job(plan, WIDE_SLOTS, 3) as running:
        transport = running.transports[0]
        for number in range(4):
            handed = len(transport.started)
            running.step(draw(WIDE_SLOTS, 3, number))
            (op,) = transport.started[handed:]
            assert level_of(op, compressor, WIDE_NUMEL) == (expected if number else "first")
        residual = running.state("residual")
        assert (expected == "dense") == all(not left.any() for own in residual for left in own)


def levels(running: Job, steps: list[list[list[Tensor]]]) -> list[str]:
    """What one group sends in each of these steps."""
    compressor, transport = running.runtimes[0].plan.groups[0].compressor, running.transports[0]
    assert isinstance(compressor, gw.MultiLevel)
    sent = []
    for grads in steps:
        handed = len(transport.started)
        running.step(grads)
        (op,) = transport.started[handed:]
        sent.append(level_of(op, compressor, WIDE_NUMEL))
    return sent


def peaked(number: int) -> list[list[Tensor]]:
    """Gradients of which few elements hold nearly everything."""
    return [[g.mul_((g > 3).float()) for g in own] for own in draw(WIDE_SLOTS, 2, number)]


def plan_of_levels(further: float = 10.0, order: list[Slot] = WIDE_SLOTS) -> gw.Plan:
    compressor = gw.MultiLevel(gw.TopK(0.1), further, 0.2)
    return plan_of(order, compressor, gw.Residual(), gw.AllReduce(), groups=1)


def test_the_level_follows_one_step_late():
    flat = draw(WIDE_SLOTS, 2, 0)
    with job(plan_of_levels(), WIDE_SLOTS, 2) as running:
        assert levels(running, [peaked(1), peaked(2), flat, peaked(3)]) == ["first", "second", "second", "first"]


def test_norms_survive_new_plans_and_checkpoints():
    with job(plan_of_levels(), WIDE_SLOTS, 2) as running, job(plan_of_levels(), WIDE_SLOTS, 2) as resumed:
        running.step(peaked(0))
        states = running.states()
        resumed.load(states)
        assert levels(resumed, [peaked(1)]) == ["second"]
        for further, order in ((5.0, WIDE_SLOTS), (5.0, WIDE_SLOTS[::-1])):
            running.install(plan_of_levels(further, order))
            assert levels(running, [peaked(1)]) == ["second"]


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_skipped_step_leaves_the_norms(bad: float):
    with job(plan_of_levels(), WIDE_SLOTS, 2) as running:
        poisoned = draw(WIDE_SLOTS, 2, 1)
        poisoned[1][0][0, 0] = bad
        assert levels(running, [peaked(0), poisoned, peaked(2)]) == ["first", "second", "second"]


def test_with_several_groups_a_decision_costs_one_message_of_at_most_64_bytes():
    plan = plan_of(SLOTS, gw.TopK(0.3), gw.Residual(), gw.AllGather(), groups=4)
    with job(plan, SLOTS, 2, controllers=[gw.GraVAC(4, 16) for _ in range(2)]) as running:
        transport = running.transports[0]
        for number in range(4):
            handed = len(transport.started)
            running.step(draw(SLOTS, 2, number))
            *payloads, decision = transport.started[handed:]
            assert len(payloads) == 4
            assert isinstance(decision, Sum)
            assert decision.send.whole.nbytes == 4 * (gw.GraVAC.numbers + 1) <= 64


def test_ranks_whose_gradients_differ_wildly_choose_alike():
    plan = plan_of(SLOTS, gw.MultiLevel(gw.TopK(0.3), 5, 0.6), gw.Residual(), gw.AllReduce(), groups=3)
    with job(plan, SLOTS, 4) as running:
        for number in range(20):
            scales = [10.0 ** ((rank * 7 + number) % 5 - 2) for rank in range(4)]
            grads = [[g.mul_(s) for g in own] for own, s in zip(draw(SLOTS, 4, number), scales, strict=True)]
            if number % 3 == 0:
                grads[number % 4] = [g.pow(9) for g in grads[number % 4]]
            means = running.step(grads)
            assert all(torch.equal(a, b) for other in means for a, b in zip(means[0], other, strict=True))


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("takes a Sparsifier, e.g. codec=TopK(ratio=0.1", lambda: gw.MultiLevel(gw.QSGD())),
        ("use e.g. MultiLevel(TopK(0.1), further=10)", lambda: gw.MultiLevel(gw.RandomK(0.1, rescale=True))),
        ("use min_share=0, or Residual()", lambda: gw.DGCMemory().check(gw.MultiLevel())),
        ("use 1 or more, e.g. further=10", lambda: gw.MultiLevel(further=0.5)),
        ("it lies in [0, 1]", lambda: gw.MultiLevel(min_share=2)),
        ("takes 'energy' or 'magnitude', e.g. measure='energy'", lambda: gw.MultiLevel(measure="both")),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_makes_no_sense_is_refused(text: str, make):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()
