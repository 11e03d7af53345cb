"""Means with a weight for each rank: bit for bit those of gradients that were multiplied before."""

from collections.abc import Iterator, Sequence
from itertools import chain, cycle

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.collective import SHARD
from gradwire.frontends.options.weighted import check_weighted
from tests.support.cases import CASES, Case, rows
from tests.support.harness import SMALL, Job, draw, hosts, job, plan_of, slots_of

SLOTS = slots_of(SMALL)
WEIGHTS = [(3, 1, 0, 4), (0, 8, 0, 0), (2, 2, 2, 2)]
"""By step and rank. Sums are powers of two, so that what rounds is the same."""
WEIGHED = [case for case in CASES if not case.compressor.sign_vote and "over_senders=True" not in str(case)]


def asked(weights: Sequence[Sequence[float]] = WEIGHTS) -> Iterator[float]:
    """The weights, as a job asks for them: step by step and rank by rank."""
    return cycle(chain.from_iterable(weights))


def multiplied(grads: list[list[Tensor]], weights: Sequence[float]) -> list[list[Tensor]]:
    factors = [len(weights) * weight / sum(weights) for weight in weights]
    return [[grad * factor for grad in own] for own, factor in zip(grads, factors, strict=True)]


def spoilt(grads: list[list[Tensor]], weights: Sequence[float]) -> list[list[Tensor]]:
    """NaN where the weight is 0, such as the mean loss of no samples has."""
    return [own if w else [torch.full_like(g, torch.nan) for g in own] for own, w in zip(grads, weights, strict=True)]


def same(one: Sequence[Sequence[Tensor]], other: Sequence[Sequence[Tensor]]) -> bool:
    pairs = zip(chain(*one), chain(*other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def check(plain: Job, weighted: Job) -> None:
    for step, weights in enumerate(WEIGHTS):
        grads = draw(SLOTS, plain.world, step)
        assert same(weighted.step(spoilt(grads, weights)), plain.step(multiplied(grads, weights)))
        assert same(weighted.state("residual"), plain.state("residual"))


@rows(WEIGHED)
def test_a_weight_is_a_factor_of_the_gradient(case: Case) -> None:
    plan = plan_of(SLOTS, case.compressor, case.memory, case.communicator)
    with job(plan, SLOTS, 4) as plain, job(plan, SLOTS, 4, weight=asked().__next__) as weighted:
        check(plain, weighted)


@pytest.mark.parametrize("compressor", [gw.FP32(), gw.TopK(0.05)], ids=str)
def test_weights_reach_hosts_and_scaled_losses(compressor: gw.Compressor) -> None:
    plan, scaled = gw.plans.uniform(SLOTS, compressor), {"scale": lambda: 1024.0}
    inside = [hosts(2, 2), hosts(2, 2)]
    with (
        job(plan, SLOTS, 4, transports=inside[0], **scaled) as plain,
        job(plan, SLOTS, 4, transports=inside[1], weight=asked().__next__, **scaled) as weighted,
    ):
        check(plain, weighted)


def test_ranks_that_hold_a_replica_together_have_the_sum_of_their_weights() -> None:
    plan = gw.plans.uniform(SLOTS, gw.TopK(0.05))
    with (
        job(plan, SLOTS, 4, transports=hosts(2, 2, SHARD)) as plain,
        job(plan, SLOTS, 4, transports=hosts(2, 2, SHARD), weight=asked().__next__) as weighted,
    ):
        for step, (a, b, c, d) in enumerate(WEIGHTS):
            grads = draw(SLOTS, 4, step)
            assert same(weighted.step(grads), plain.step(multiplied(grads, (a + b, a + b, c + d, c + d))))


def test_without_any_samples_residuals_alone_are_sent() -> None:
    plan = gw.plans.uniform(SLOTS, gw.TopK(0.05))
    weights = [(1, 1), (0, 0)]
    with job(plan, SLOTS, 2) as plain, job(plan, SLOTS, 2, weight=asked(weights).__next__) as weighted:
        grads = draw(SLOTS, 2, 0)
        assert same(weighted.step(grads), plain.step(grads))
        assert same(weighted.step(spoilt(draw(SLOTS, 2, 1), (0, 0))), plain.step(multiplied(grads, (0, 1))[:1] * 2))


def test_what_has_no_weights_is_refused() -> None:
    for given, why in [(gw.SignSGD(), "has one vote"), (gw.Signum(), "has one vote")]:
        with pytest.raises(ValueError, match=why):
            check_weighted(gw.plans.uniform(SLOTS, given), 1.0)
    counting = gw.Plan((gw.Group(("scale",), gw.TopK(0.1), gw.Residual(), gw.AllGather(over_senders=True)),))
    with pytest.raises(ValueError, match="counts senders"):
        check_weighted(counting, 1.0)
