"""L-GreCo: the programme against brute force, the error curves against encoding, and both at work."""

import itertools
import re
from collections.abc import Collection
from dataclasses import replace
from math import isnan
from statistics import fmean
from unittest.mock import patch

import numpy as np
import pytest
import torch

import gradwire as gw
from gradwire import group_checks
from gradwire.compressors import Codec, context_for
from gradwire.controllers import StepView
from gradwire.controllers.allocate import allocate
from gradwire.controllers.errors import square_errors
from gradwire.controllers.lgreco import MOST_GROUPS
from gradwire.runtime.worker.executor import Executor
from gradwire.slots import Layout
from tests.support.cases import CASES
from tests.support.going_on import check_goes_on
from tests.support.harness import Job, draw, job, plan_of, round_trip, slots_of

SLOTS = slots_of(
    {"first.weight": torch.empty(60, 50), "second.weight": torch.empty(40, 30), "third.weight": torch.empty(20, 90)}
)


@pytest.mark.parametrize("seed", range(40))
def test_the_programme_equals_brute_force(seed: int):
    rng = np.random.default_rng(seed)
    layers, choices = rng.integers(1, 7), rng.integers(1, 5)
    values, costs = rng.random((2, layers, choices)) ** 3
    budget = rng.uniform(costs.min(1).sum(), costs.max(1).sum())
    rows = range(layers)
    best = min(
        values[rows, list(each)].sum()
        for each in itertools.product(range(choices), repeat=int(layers))
        if costs[rows, list(each)].sum() <= budget
    )
    chosen = allocate(values, costs, budget)
    assert costs[rows, chosen].sum() <= budget * (1 + 1e-9)
    assert values[rows, chosen].sum() == pytest.approx(best)


def test_a_budget_that_only_the_cheapest_fit_is_kept_in_spite_of_rounding():
    costs = np.array([[0.0, 1.0], [0.1, 1.0], [0.2, 1.0], [0.3, 1.0]])
    assert allocate(np.array([[1.0, 0.0]] * 4), costs, 0.1 + 0.2 + 0.3) == [0] * 4
    assert allocate(np.array([[1.0, 0.0]] * 4), costs[::-1], 0.1 + 0.2 + 0.3) == [0] * 4


def test_layers_may_have_fewer_choices_than_others():
    values, costs = np.array([[1e6, 1.0], [1e6, np.inf]]), np.array([[0.0, 1e-8], [0.0, np.inf]])
    assert allocate(values, costs, 1e-8) == [1, 0]
    assert allocate(values, costs, 1e-9) == [0, 0]


def test_many_layers_come_close_to_the_bound_and_fit():
    rng = np.random.default_rng(1)
    sizes = rng.lognormal(5, 2, (300, 1)) * 2.0 ** np.arange(8)
    errors = np.sqrt(sizes[:, :1]) * np.exp(-rng.uniform(0.01, 0.5, (300, 1)) * 2.0 ** np.arange(8))
    rows, budget = range(300), errors[:, 3].sum()
    chosen = allocate(sizes, errors, budget)
    assert errors[rows, chosen].sum() <= budget
    relaxed = max(
        (sizes + price * errors).min(1).sum() - price * budget for price in np.geomspace(1e-3, 1e9, 2000)
    )  # Lagrange's bound: nothing that fits is less
    assert sizes[rows, chosen].sum() <= 1.01 * relaxed


def test_nothing_fits_so_the_cheapest_is_taken():
    assert allocate(np.array([[1.0, 2.0]]), np.array([[5.0, 4.0]]), 1.0) == [1]


@pytest.mark.parametrize(
    "choices",
    [
        [gw.TopK(0.01), gw.TopK(0.1), gw.TopK(1.0)],
        [gw.EFSignSGD(), gw.TopK(0.1)],
        [gw.TernGrad(), gw.QSGD(), gw.FP16()],
        [gw.TopK(0.1, value_bits=4), gw.TopK(0.1), gw.TopK(1.0, value_bits=4)],
    ],
    ids=str,
)
def test_an_error_is_what_encoding_leaves(choices: list[Codec]):
    slot = SLOTS[0]
    x = torch.randn(slot.numel, generator=torch.Generator().manual_seed(0))
    for choice, error in zip(choices, square_errors(x, slot, choices), strict=True):
        assert error == pytest.approx(float((x - round_trip(choice, x)).square().sum()), rel=0.02, abs=1e-2)


@pytest.mark.parametrize("compressor", list(dict.fromkeys(case.compressor for case in CASES)), ids=str)
def test_an_error_is_about_what_a_step_loses(compressor: gw.Compressor):
    """Of each codec and its options that L-GreCo takes: in the mean of several draws, within a fifth."""
    if not isinstance(compressor, Codec) or not compressor.decodes_means or hasattr(compressor, "threshold"):
        pytest.skip("not compared")
    slot = slots_of({"x": torch.empty(60, 50)})[0]
    x = torch.randn(slot.numel, generator=torch.Generator().manual_seed(0))
    lost = []
    for step in range(8):
        context = context_for(Layout((slot,)), compressor, x.device)
        context.step = step * compressor.period
        lost.append(float((x - round_trip(compressor, x, context)).square().sum()))
    assert square_errors(x, slot, [compressor])[0] == pytest.approx(fmean(lost), rel=0.2, abs=1e-2)


def test_of_low_rank_it_is_the_tail_of_the_singular_values():
    slot = SLOTS[0]
    values = 0.7 ** torch.arange(50.0)
    generator = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(60, 50, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(50, 50, generator=generator)).Q
    x = (left * values @ right.T).flatten()
    errors = square_errors(x, slot, [gw.PowerSGD(1), gw.PowerSGD(4), gw.PowerSGD(8), gw.PowerSGD(60)])
    squares = values.square().double()
    assert errors[:3] == pytest.approx([float(squares[rank:].sum()) for rank in (1, 4, 8)], rel=0.05)
    assert errors[3] == 0, "travels dense"


@pytest.mark.parametrize("number", [torch.inf, torch.nan])
def test_of_what_is_not_finite_no_error_is_known(number: float):
    """On a GPU such a layer is measured before the step is found to count for no rank."""
    x = torch.randn(SLOTS[0].numel, generator=torch.Generator().manual_seed(0))
    x[7] = number
    assert all(map(isnan, square_errors(x, SLOTS[0], [gw.PowerSGD(1), gw.PowerSGD(4)])))


def test_choices_of_several_kinds_are_each_judged_by_their_own():
    x = torch.randn(SLOTS[0].numel, generator=torch.Generator().manual_seed(0))
    choices = [gw.TopK(0.1), gw.PowerSGD(4), gw.TopK(0.2), gw.FP16(), gw.PowerSGD(2)]
    alone = [square_errors(x, SLOTS[0], [choice])[0] for choice in choices]
    assert square_errors(x, SLOTS[0], choices) == pytest.approx(alone, rel=0.05)


def test_shares_of_the_full_rank_stay_shares():
    """A rank of 1 or more counts rows."""
    ranks = [choice.rank for choice in gw.LGreCo()._choices_for(gw.PowerSGD(1 / 3), gw.Residual())]
    assert ranks == pytest.approx([1 / 12, 1 / 6, 1 / 4, 1 / 3, 5 / 12, 1 / 2, 2 / 3])


def test_large_layers_are_sampled():
    x = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
    slot = slots_of({"x": torch.empty(len(x))})[0]
    error = square_errors(x, slot, [gw.TopK(0.1)])[0]
    assert error == pytest.approx(float(x.square().sort().values[:900_003].sum()), rel=0.02)


def start(compressor, world: int = 2, **options) -> Job:
    plan = plan_of(SLOTS, compressor, gw.plans.default_memory(compressor), gw.plans.default_communicator(compressor))
    options = {"interval": 10} | options
    return Job(plan, SLOTS, world, controllers=[gw.LGreCo(**options) for _ in range(world)])


def run(running: Job, numbers: range, bad: Collection[int] = ()):
    """The second layer's gradient is a hundred times as large as the others'. Before a step whose number is `bad` comes
    one whose gradients are not finite."""
    for number in numbers:
        grads = draw(SLOTS, running.world, number)
        for own in grads:
            own[1].mul_(100)
        if number in bad:
            running.step([[torch.full_like(grad, torch.inf) for grad in grads[0]], *grads[1:]])
        means = running.step(grads)
        assert all(torch.equal(a, b) for other in means for a, b in zip(means[0], other, strict=True))
        yield means[0]


@pytest.mark.parametrize("compressor", [gw.TopK(0.02), gw.PowerSGD(4), gw.QSGD()], ids=str)
@pytest.mark.parametrize("budget", ["error", "bytes"])
def test_layers_that_matter_get_more(compressor, budget):
    running = start(compressor, budget=budget)
    assert len(list(run(running, range(8)))) == 8
    controller = running.controllers[0]
    assert [other.decisions for other in running.controllers] == [controller.decisions] * 2
    size, error = map(float, re.findall(r"[\d.e-]+(?= times)", controller.decisions[0].decision))
    assert size <= 1.001
    assert error <= 1.001
    if not isinstance(compressor, gw.QSGD):
        assert (size if budget == "error" else error) < 0.9
    sent = {name: group.compressor for group in running.runtimes[0].plan.groups for name in group.slots}
    setting = next(s for s in ("ratio", "rank", "levels") if hasattr(compressor, s))
    if setting != "levels":
        assert getattr(sent["second.weight"], setting) > getattr(sent["first.weight"], setting)
    running.close()


@pytest.mark.parametrize("compressor", [gw.Quantized(4), gw.QSGD()], ids=str)
def test_with_a_memory_small_layers_get_no_compressor_whose_error_builds_up(compressor: gw.Compressor):
    """TernGrad loses more than there is: with a residual its means become 17 times as long as the gradients."""
    plan = plan_of(SLOTS, compressor, gw.Residual(), gw.AllGather())
    with job(plan, SLOTS, 2, controllers=[gw.LGreCo(interval=10) for _ in range(2)]) as running:
        for number in range(45):
            grads = draw(SLOTS, 2, number)
            for own in grads:
                own[1].mul_(1000)
            means = running.step(grads)[0]
            lengths = [mean.norm() * 2 / (a + b).norm() for mean, a, b in zip(means, *grads, strict=True)]
            assert max(lengths) < 2
        assert running.controllers[0].decisions


@pytest.mark.parametrize("immediate", [True, False], ids=["at_once", "a_step_late"])
@pytest.mark.parametrize("bad", [{0, 1, 2}, {1}, {2, 4, 5}], ids=str)
def test_errors_are_those_of_their_layers_where_steps_are_skipped(
    bad: set[int], immediate: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Executor, "is_immediate", immediate)
    runs: list[Job] = []
    for skipped in (set(), bad):
        runs.append(start(gw.TopK(0.02)))
        list(run(runs[-1], range(7), skipped))
    (curves, plan), (others, other) = ((job.controllers[0]._curves, job.runtimes[0].plan) for job in runs)
    assert curves == others
    assert plan == other
    for running in runs:
        running.close()


def test_what_was_given_16_bits_is_measured_again():
    slots = slots_of({f"{i}.weight": torch.empty(40, 50) for i in range(6)} | {"large.weight": torch.empty(20, 20)})
    plan = plan_of(slots, gw.QSGD(), gw.NoMemory(), gw.AllGather())
    controllers = [gw.LGreCo(interval=10) for _ in range(2)]
    sent = set()
    with job(plan, slots, 2, controllers=controllers) as running:
        for number in range(20):
            grads = draw(slots, 2, number)
            for own in grads:
                own[-1].mul_(1000)
            running.step(grads)
            if controllers[0].decisions:
                groups = running.runtimes[0].plan.groups
                sent |= {group.compressor for group in groups if "large.weight" in group.slots}
        assert len(controllers[0].decisions) == 2
        assert controllers[0]._curves["large.weight"][0] > 1e6, "in 2 bits it would lose much"
    assert sent - {gw.QSGD()} == {gw.FP16()}


def test_a_layer_without_a_gradient_keeps_the_errors_of_before():
    running = start(gw.TopK(0.02))
    list(run(running, range(8)))
    before = dict(running.controllers[0]._curves)
    for number in range(8, 18):
        running.step([[None, *own[1:]] for own in draw(SLOTS, 2, number)])
    after = running.controllers[0]._curves
    assert after["second.weight"] != before["second.weight"], "all were measured again"
    assert after["first.weight"] == before["first.weight"]
    running.close()


def test_a_time_budget_follows_the_link():
    running = start(gw.TopK(0.02), budget="seconds", limit=1e-9)
    list(run(running, range(8)))
    ratios = {group.compressor.ratio for group in running.runtimes[0].plan.groups}  # pyright: ignore
    assert ratios == {0.02 / 8}, "next to no time: the cheapest of each"
    running.close()


def test_a_time_budget_is_what_the_link_carries_in_it_of_the_layers_that_are_chosen_for():
    """3 MB/s since the last plan, by the bytes and seconds of each step; each rank's payload goes to three others."""
    chosen, dense = sparse().groups
    plan = gw.Plan((chosen, gw.Group(dense.slots, gw.FP32(), gw.NoMemory(), gw.AllReduce())))
    lgreco, numbers = gw.LGreCo("seconds", limit=0.05), torch.zeros(16)
    lgreco.begin(plan)
    for sent_bytes, seconds in ((7e6, 1.0), (10e6, 2.0)):
        lgreco.observe(StepView(0, [], int(sent_bytes), seconds), numbers)
    lgreco._wire = numbers[-2:].tolist()
    seen = gw.Observation(0, 2, plan, SLOTS, 0, 4, 4, torch.zeros(16))
    assert lgreco._byte_budget(1.0, seen) == pytest.approx(0.05 * 3e6 / 3, rel=0.01)
    for step in range(100):
        lgreco.decide(replace(seen, taken=step, sums=torch.ones(16)))
    assert len(lgreco.decisions) == 1
    assert lgreco._wire[0] < 100, "the link is measured anew for the next plan"


def test_a_new_plan_in_the_midst_of_a_look_begins_another():
    running = start(gw.TopK(0.02))
    list(run(running, range(3)))
    assert 0 < len(running.controllers[0]._curves) < len(SLOTS)
    given = running.controllers[0]._origin
    running.install(gw.Plan(given.groups[::-1]))
    assert not running.controllers[0]._curves
    list(run(running, range(3, 8)))
    assert len(running.controllers[0].decisions) == 1
    running.close()


@pytest.mark.parametrize("cut", [3, 5])
def test_a_run_that_was_cut_goes_on_bit_for_bit(cut: int):
    whole, _, _ = check_goes_on(lambda: start(gw.TopK(0.02)), run, cut, 18)
    assert len(whole.controllers[0].decisions) == 2


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("use e.g. LGreCo('seconds', limit=0.05)", lambda: gw.LGreCo("seconds")),
        ("is no budget", lambda: gw.LGreCo("bytes", -1)),
        ("use LGreCo('error'), LGreCo('bytes', 4e6)", lambda: gw.LGreCo(limit=4e6)),
        ("no tuple; pass one, such as choices=(gw.TopK", lambda: gw.LGreCo(choices=gw.TopK(0.1))),
        ("such as choices=(gw.TopK", lambda: gw.LGreCo(choices=(0.1,))),
        ("e.g. interval=500", lambda: gw.LGreCo(interval=0)),
        ("use e.g. attach(ddp, PowerSGD(4), controller=LGreCo())", lambda: gw.LGreCo().check(fp32())),
        ("cannot predict its error", lambda: gw.LGreCo(choices=(gw.MultiLevel(),))),
        ("makes no mean of gradients", lambda: gw.LGreCo().check(plan_of(SLOTS, gw.Dion(4), *SUMMED))),
        ("makes no mean of gradients", lambda: gw.LGreCo(choices=(gw.Dion(4),))),
        ("makes no mean of gradients", lambda: gw.LGreCo().check(fp32(gw.SignSGD()))),
        ("follows from its threshold", lambda: gw.LGreCo().check(sparse(gw.HardThreshold(0.1)))),
        ("DGCMemory masks", lambda: gw.LGreCo(choices=(gw.QSGD(),)).check(masked())),
        ("use up to 14", lambda: gw.LGreCo(choices=tuple(gw.TopK(i / 20) for i in range(1, 19))).check(sparse())),
    ],
)
def test_what_makes_no_sense_is_refused(text, make):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


SUMMED = gw.Residual(), gw.AllReduce()


def fp32(compressor: gw.Compressor = gw.FP32()) -> gw.Plan:  # noqa: B008
    return plan_of(SLOTS, compressor, gw.NoMemory(), gw.plans.default_communicator(compressor))


def sparse(compressor: gw.Compressor = gw.TopK(0.1)) -> gw.Plan:  # noqa: B008
    return plan_of(SLOTS, compressor, gw.Residual(), gw.AllGather())


def masked() -> gw.Plan:
    return plan_of(SLOTS, gw.TopK(0.1), gw.DGCMemory(), gw.AllGather())


def test_choices_are_the_same_on_all_ranks_and_in_a_state():
    choices = (gw.TopK(0.1), gw.TopK(0.3))
    plan = plan_of(SLOTS, gw.TopK(0.02), gw.Residual(), gw.AllGather())
    with pytest.raises(ValueError, match=r"^the ranks differ in controller"):
        Job(plan, SLOTS, 2, controllers=[gw.LGreCo(choices=choices), gw.LGreCo()])
    first = start(gw.TopK(0.02), choices=choices)
    list(run(first, range(8)))
    same, others, none = (start(gw.TopK(0.02), choices=given) for given in (choices, choices[:1], None))
    same.load(first.states())
    assert same.controllers[0]._curves == first.controllers[0]._curves
    for other in (others, none):
        with pytest.raises(ValueError, match=r"saved with choices=.*pass the same choices"):
            other.load(first.states())
    for running in (first, same, others, none):
        running.close()


def test_layers_are_not_joined_to_groups_that_are_too_long_for_their_compressor():
    slots = slots_of({f"{number}.weight": torch.empty(20, 10) for number in range(MOST_GROUPS + 2)})
    lgreco = gw.LGreCo()
    lgreco.begin(plan_of(slots, gw.TopK(0.1), gw.Residual(), gw.AllGather(), groups=len(slots)))
    lgreco._curves = {slot.name: [0.0] * len(lgreco._choices[slot.name]) for slot in slots}
    seen = gw.Observation(0, 2, gw.Plan(()), slots, 0, 2, 2, torch.zeros(16))
    assert len(lgreco._solve(seen).groups) == 1
    with patch.object(group_checks, "LONGEST", 2000):
        plan = lgreco._solve(seen)
        plan.check(slots)
    assert len(plan.groups) == 2
