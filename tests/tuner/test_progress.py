"""The efficiency of steps, by which plans are judged: rehearsals, the search, trials, the automatic plan."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gradwire as gw
from gradwire.controllers import Observation
from gradwire.controllers.gain import delay_of, efficiency_of
from gradwire.lab.built_in_profiles import profile as published
from gradwire.memories import Residual
from gradwire.ops.sample import ELEMENTS, MATRICES, sampled
from gradwire.plans import NATIVE, Group, Plan, default_communicator, default_memory
from gradwire.report import simulation_report
from gradwire.schedule import (
    Affine,
    Candidate,
    Profile,
    SlotTime,
    Worker,
    best_index,
    over_link,
    plan_efficiency,
    search,
    search_progress,
)
from gradwire.schedule.cluster import Cluster
from gradwire.schedule.simulate import simulate
from gradwire.tuner import Auto, auto, pairs, rehearsal, trials
from gradwire.tuner.candidate_plans import allowed, efficiency_of_plan, shortlist
from gradwire.tuner.profiler import _efficiencies
from tests.support.harness import CPU, SMALL, raising, slots_of, together
from tests.tuner.test_auto import automatic_job, choose

SLOTS = slots_of(SMALL)


def way(compressor: gw.Compressor, memory: gw.Memory | None = None) -> Group:
    return Group((), compressor, memory or default_memory(compressor), default_communicator(compressor))


def stream(rows: int = 64, columns: int = 48) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"w": torch.randn(rows, columns, generator=generator)} for _ in range(8)]


# What a way to send leaves behind


def test_what_random_elements_keep_of_the_energy_is_their_ratio():
    """The one share that is known beforehand."""
    assert rehearsal.share(way(gw.RandomK(0.1)), stream()) == pytest.approx(0.1, abs=0.015)


def test_a_memory_that_holds_all_is_a_delay_and_no_memory_a_loss():
    whole = stream(1, 1000)
    assert rehearsal.share(way(gw.TopK(1.0)), whole) == pytest.approx(1.0)
    assert rehearsal.share(way(gw.TopK(0.1)), whole) < 0.7  # what waits adds up; a step alone would send more
    first = whole[0]["w"].square().flatten().sort(descending=True).values
    alone = rehearsal.share(Group((), gw.TopK(0.1), gw.NoMemory(), gw.AllGather()), [{"w": whole[0]["w"]}])
    assert alone == pytest.approx(float(first[:100].sum() / first.sum()))


@pytest.mark.parametrize(
    "ways",
    [
        [gw.TopK(0.002), gw.TopK(0.01), gw.TopK(0.1)],
        [gw.PowerSGD(1), gw.PowerSGD(4), gw.PowerSGD(16)],
        [gw.PowerSGD(1 / 12, bits=4), gw.PowerSGD(1 / 6, bits=4), gw.PowerSGD(1 / 3, bits=4)],
        [gw.Quantized(2), gw.Quantized(3), gw.Quantized(4), gw.Quantized(8)],
        [gw.RandomK(0.01), gw.RandomK(0.1), gw.TopK(0.1)],
    ],
    ids=str,
)
def test_who_sends_more_is_expected_to_be_worth_more(ways: list[gw.Compressor]):
    efficiencies = [rehearsal.expected(way(each)) for each in ways]
    assert efficiencies == sorted(efficiencies)
    assert efficiencies[0] < efficiencies[-1]


@pytest.mark.parametrize(
    "compressor", [gw.RandomK(0.01), gw.RandomK(0.01, rescale=True), gw.SignSGD(), gw.TernGrad()], ids=str
)
def test_what_harms_training_is_worth_nothing(compressor: gw.Compressor):
    assert rehearsal.expected(way(compressor)) == 0


@pytest.mark.parametrize("compressor", [gw.FP32(), gw.FP16(), gw.BF16(), gw.QSGD(), gw.Quantized(4)], ids=str)
def test_what_keeps_denses_loss_is_worth_a_dense_step(compressor: gw.Compressor):
    assert rehearsal.expected(way(compressor)) > 0.99


def test_the_page_says_what_is_expected_of_each():
    said = {
        "4 bits have": gw.Quantized(4), "PowerSGD 1/6 in 4 bits": gw.PowerSGD(1 / 6, bits=4),
        "top-k 1/16 in 10 bits": gw.TopK(1 / 16, value_bits=4), "PowerSGD r4": gw.PowerSGD(4),
        "RandomK 10 %": gw.RandomK(0.1), "top-k 1.25 %": gw.TopK(0.0125), "EFSignSGD": gw.EFSignSGD(),
    }  # fmt: skip
    page = " ".join(Path(__file__).parents[2].joinpath("docs/scheduler.md").read_text().split())
    figures = {name: float(page.split(f"{name} ")[1].split()[0].rstrip(",")) for name in said}
    assert {name: rehearsal.expected(way(each)) for name, each in said.items()} == pytest.approx(figures, abs=0.01)


def test_warm_ups_are_over_in_a_rehearsal():
    late = rehearsal.expected(way(gw.PowerSGD(4, start_step=1000)))
    assert late == rehearsal.expected(way(gw.PowerSGD(4)))


def test_gradients_that_were_not_finite_do_not_count():
    spoilt = [{"w": torch.full((64, 48), torch.nan)}, *stream()]
    assert rehearsal.efficiency(way(gw.TopK(0.1)), spoilt) == rehearsal.efficiency(way(gw.TopK(0.1)), stream())
    assert rehearsal.efficiency(way(gw.TopK(0.1)), spoilt[:1]) == rehearsal.expected(way(gw.TopK(0.1)))


def test_of_smaller_matrices_ranks_that_count_rows_are_fewer():
    halved = rehearsal.efficiency(way(gw.PowerSGD(8)), stream(), shrunk=0.5)
    assert halved == rehearsal.efficiency(way(gw.PowerSGD(4)), stream())
    share = way(gw.PowerSGD(1 / 6))
    assert rehearsal.efficiency(share, stream(), shrunk=0.5) == rehearsal.efficiency(share, stream())
    # the profiler's are samples of such matrices; it takes the mean of the ranks' efficiencies
    given = [stream(), [{"w": torch.ones(64, 48)}]]
    mine = [rehearsal.efficiency(way(gw.PowerSGD(4)), gradients) for gradients in given]
    meshes, slots = [gw.Mesh.of(each) for each in gw.Threads.group(2)], slots_of({"w": torch.empty(128, 96)})
    found = raising(
        together(2, lambda rank: _efficiencies([way(gw.PowerSGD(8))], given[rank], slots, meshes[rank], CPU))
    )
    assert found[0] == found[1] == pytest.approx([sum(mine) / 2])
    assert mine[0] < 0.9 < mine[1]


def test_a_few_small_matrices_stand_for_all_gradients():
    tensors = {str(i): torch.randn(700, 30 + i) for i in range(6)} | {"wide": torch.randn(900, 400)}
    taken = sampled(tensors | {"bias": torch.randn(9), "scalar": torch.tensor(1)})
    assert list(taken) == ["0", "3", "wide"]
    assert len(taken) <= MATRICES
    assert torch.equal(taken["0"], tensors["0"])
    assert torch.equal(taken["wide"], tensors["wide"][::2, ::2])
    assert all(each.numel() <= ELEMENTS for each in taken.values())
    taken["0"].zero_()
    assert tensors["0"].all()
    assert sampled({"bias": torch.randn(9)}) == {}


@pytest.mark.parametrize("shape", [(400_000, 2), (2, 400_000), (150_000, 1), (1, 150_000), (200_000, 3), (1, 1)])
def test_of_a_narrow_matrix_no_more_elements_are_a_sample_either(shape: tuple[int, int]):
    taken = sampled({"narrow": torch.zeros(shape)})["narrow"]
    assert min(ELEMENTS // 4, shape[0] * shape[1]) <= taken.numel() <= ELEMENTS


@pytest.mark.parametrize("shape", [(256, 256, 3, 3), (1024, 1024, 3, 3), (512, 512, 5, 5)])
def test_of_a_convolution_all_places_of_its_kernels_are_in_the_sample(shape: tuple[int, ...]):
    kernels = torch.arange(shape[2] * shape[3]).reshape(shape[2:]).expand(shape)
    assert len(sampled({"weight": kernels})["weight"].unique()) == shape[2] * shape[3]


def test_a_steps_worth_is_that_of_its_delay():
    assert efficiency_of(1.0) == 1.0
    shares = [0.02, 0.03, 0.1, 0.5, 0.99]
    assert [efficiency_of(share) for share in shares] == sorted(efficiency_of(share) for share in shares)
    assert efficiency_of(0.02) == 0.0
    assert efficiency_of(1 / 9) == pytest.approx(0.5)  # a delay of 8
    assert delay_of(1 / 9) == pytest.approx(8)


# Judging plans


def profile(**efficiencies: float) -> Profile:
    """Six layers; each candidate sends, and costs, less than the one before it."""
    ways = {"dense": gw.FP32(), "four": gw.Quantized(4), "few": gw.TopK(0.01), "random": gw.RandomK(0.01)}
    candidates = tuple(
        Candidate(way(each), Affine(1e-5), Affine(1e-5), efficiencies.get(name, 1.0)) for name, each in ways.items()
    )
    slots = tuple(SlotTime(f"{i}.weight", (256, 256), 0.001 * (i + 1)) for i in range(6))
    return Profile(slots, 0.002, 0.001, candidates, over_link(candidates, 2, 1e-5, 1e7), ranks=2)


def compressors(job: Profile, groups: tuple) -> set[type]:
    return {type(job.candidates[group.option].way.compressor) for group in groups}


def test_the_shortest_step_does_not_win_where_it_is_worth_little():
    job = profile(few=0.9, random=0.0)
    problem = job.problem()
    shortest, best = search(problem, Worker()), search_progress(problem, Worker())
    assert gw.RandomK in compressors(job, shortest.groups)
    assert compressors(job, best.groups) == {gw.TopK}
    slow = profile(few=0.05, random=0.0)
    assert compressors(slow, search_progress(slow.problem(), Worker()).groups) == {gw.Quantized}


def test_no_candidate_makes_more_progress_than_what_is_found():
    for few in (0.05, 1.0):
        job = profile(four=0.99, few=few, random=few / 2)
        problem = job.problem()
        best = search_progress(problem, Worker())
        rate = plan_efficiency(problem, best.groups) / best.step_s
        for option in range(4):
            found = search(replace(problem, options=problem.options[option : option + 1]), Worker())
            assert rate * 1.04 > problem.options[option].efficiency / found.step_s


def test_delays_count_by_elements_and_harm_spoils_all():
    job = profile(four=0.5, random=0.0)
    problem = job.problem()
    half = Plan(tuple(replace(job.candidates[i % 2].way, slots=(slot.name,)) for i, slot in enumerate(job.slots)))
    assert efficiency_of_plan(job, half) == pytest.approx(1 / (0.5 / 1 + 0.5 / 0.5))
    harmed = Plan((*half.groups[:-1], replace(half.groups[-1], compressor=gw.RandomK(0.01), memory=Residual(),
                                              communicator=gw.AllReduce())))  # fmt: skip
    assert plan_efficiency(problem, job.choices(harmed)) == 0
    assert efficiency_of_plan(job, NATIVE) == 1


def test_of_what_is_equally_good_the_one_that_keeps_more_wins():
    assert best_index([10.0, 10.2, 9.0], [1.0, 0.9, 1.0]) == 0
    assert best_index([10.0, 11.0, 9.0], [1.0, 0.9, 1.0]) == 1
    assert best_index([10.0, 10.2, 10.1], [0.9, 0.9, 0.9]) == 1


def test_what_loses_too_much_is_not_even_tried():
    job = profile(four=0.995, few=0.9, random=0.0)
    kept = {bound: compressors_of(allowed(job, bound)) for bound in (None, 0.2, 0.01, 0.0)}
    assert kept[None] == kept[0.2] == {gw.FP32, gw.Quantized, gw.TopK}
    assert kept[0.01] == {gw.FP32, gw.Quantized}
    assert kept[0.0] == {gw.FP32}
    ruled = replace(job, candidates=tuple(replace(c, way=replace(c.way, rule="*")) for c in job.candidates[1:]))
    assert compressors_of(allowed(ruled, 0.001)) == {gw.Quantized}  # a rule's best
    within = allowed(job, 0.01)
    found = search_progress(within.problem(), Worker())
    for plan in shortlist(within, found, Worker(), 10.0):
        assert efficiency_of_plan(job, plan) >= 0.99


def compressors_of(job: Profile) -> set[type]:
    return {type(candidate.way.compressor) for candidate in job.candidates}


@pytest.mark.parametrize("every", [1, 30])
def test_simulated_best_plans_harm_no_training(every: int):
    """RandomK 1 % takes the shortest steps of all, and diverges."""
    job = profile(few=0.4, random=0.0)
    found = {outcome.way: outcome for outcome in simulate(job, Cluster(4, 1e6), every=every)}
    assert found["RandomK(ratio=0.01)"].step_s < found["best plan"].step_s
    assert found["RandomK(ratio=0.01)"].progress == 0
    assert all(1.03 * found["best plan"].progress >= each.progress for each in found.values())
    assert not [outcome for outcome in found.values() if "best" in outcome.way and "RandomK" in outcome.groups]
    assert all((outcome.efficiency is None) == (outcome.every > 1) for outcome in found.values())


def test_a_published_job_is_judged_by_what_is_assumed_of_its_compressors():
    efficiencies = {type(each.way.compressor): each.efficiency for each in published("resnet50").candidates}
    assert efficiencies[gw.FP32] == 1
    assert efficiencies[gw.RandomK] == 0
    assert 0 < efficiencies[gw.DGC] < 1


def test_the_tables_show_what_steps_are_worth():
    job = profile(four=0.99, few=0.4, random=0.0)
    outcomes = list(simulate(job, Cluster(4, 1e6)))
    shown = simulation_report.table(outcomes)
    assert {"Quantized(bits=4), efficiency 0.99", "RandomK(ratio=0.01), efficiency 0.00"} <= set(shown.columns)
    (groups,) = [row[shown.columns.index("groups of the best plan")] for row in shown.rows]
    assert groups.endswith(f", efficiency {outcomes[-1].efficiency:.2f}")
    assert simulation_report.verdict(outcomes).startswith("Beside FP32, the best plan makes ")
    harmful = profile(dense=0.0, four=0.0, few=0.0, random=0.0)
    assert "harms training" in simulation_report.verdict(list(simulate(harmful, Cluster(4, 1e6))))


# The automatic plan


def test_choosing_takes_at_most_150_steps(monkeypatch: pytest.MonkeyPatch):
    """Where everything is worth trying, nothing drops out, and nothing is clearly better than dense."""
    for module, name in ((auto, "WORTH_TRYING"), (auto, "STILL_CLOSE"), (trials, "FAR"), (trials, "STILL_CLOSE")):
        monkeypatch.setattr(module, name, 1e9)
    monkeypatch.setattr(pairs, "WRONG", 0.0)
    running = automatic_job(2, [gw.TopK(0.1), gw.EFSignSGD(), gw.PowerSGD(2), gw.BF16(), gw.Quantized(4)])
    assert 100 < choose(running) <= auto.CHOOSING_STEPS <= 150
    running.close()


def test_fidelity_bounds_what_may_be_lost_and_what_was_learnt_is_said(caplog: pytest.LogCaptureFixture):
    candidates = [gw.RandomK(0.01), gw.TopK(0.01), gw.Quantized(8)]
    running = automatic_job(2, candidates, fidelity=0.01)
    with caplog.at_level(logging.INFO, "gradwire"):
        choose(running)
    controller = running.controllers[0]
    efficiencies = {type(each.way.compressor): each.efficiency for each in controller.measured.candidates}
    assert efficiencies[gw.RandomK] == 0
    assert efficiencies[gw.TopK] < 0.99 < efficiencies[gw.Quantized]
    assert compressors_of(controller.profile) == {gw.FP32, gw.Quantized}
    assert {type(group.compressor) for group in running.runtimes[0].plan.groups} <= {gw.FP32, gw.Quantized}
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "RandomK(ratio=0.01) 0 (it harms training), left out" in said
    assert "ms a step, efficiency" in said
    assert "dense steps a second" in controller.decisions[-1].decision
    running.close()


def test_a_job_that_is_measured_again_takes_efficiencies_from_dense_steps_alone():
    """Means of compressed steps are what a compressor has made of gradients."""
    job = replace(profile(four=0.9), contention=0.25)
    sent, dense = (Plan((replace(each.way, slots=tuple(s.name for s in job.slots)),)) for each in job.candidates[1::-1])
    for traced, expected in ((dense, 0.9), (sent, 0.8)):
        controller = Auto([each.way for each in job.candidates])
        controller.begin(dense)
        controller.measured = profile(four=0.8)
        seen = Observation(17, 19, traced, [], 0, 2, 2, torch.zeros(3), answer=job)
        controller._profiled(seen, job)
        assert [each.efficiency for each in controller.measured.candidates] == [1.0, expected, 1.0, 1.0]
        assert controller.regime == Worker(0.25), "the ranks share their cores as they do now"


@pytest.mark.parametrize("fidelity", [-0.1, 1.0, 5])
def test_a_fidelity_is_a_share(fidelity: float):
    with pytest.raises(ValueError, match=r"use e\.g\. fidelity=0\.01"):
        Auto([gw.BF16()], fidelity)


def test_fidelity_is_for_the_automatic_plan():
    with pytest.raises(ValueError, match="leave the compressor out"):
        gw.attach(torch.nn.Linear(4, 3), gw.TopK(0.1), fidelity=0.01)
