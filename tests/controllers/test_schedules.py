"""Controllers that follow a schedule or the learning rate: warm-up, Accordion, ScaDLES."""

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import gradwire as gw
from tests.support.going_on import check_goes_on
from tests.support.harness import Job, draw, plan_of, slots_of, total
from tests.support.pretend_cuda import on_gpu, pretended_cuda, real
from tests.support.schedule import Schedule

SLOTS = slots_of({"first.weight": torch.empty(60, 50), "second.weight": torch.empty(40, 30)})


def start(make, world: int = 2, compressor=gw.TopK(0.01), groups: int = 2, **options) -> Job:  # noqa: B008
    plan = plan_of(SLOTS, compressor, gw.Residual(), gw.plans.default_communicator(compressor), groups=groups)
    return Job(plan, SLOTS, world, controllers=[make() for _ in range(world)], **options)


def settings(running: Job, name: str = "ratio") -> dict[str, float]:
    plan = running.runtimes[0].plan
    return {slot: getattr(group.compressor, name, 1.0) for group in plan.groups for slot in group.slots}


def run(running: Job, numbers: range) -> list[list[Tensor]]:
    means = []
    for number in numbers:
        by_rank = running.step(draw(SLOTS, running.world, number))
        assert all(torch.equal(a, b) for other in by_rank for a, b in zip(by_rank[0], other, strict=True))
        means.append(by_rank[0])
    return means


def test_warm_up_goes_down_by_quarters():
    running = start(lambda: gw.WarmUp(start=0.64, steps=9, dense=2))
    ratios = []
    for number in range(14):
        ratios.append(settings(running)["first.weight"])
        run(running, range(number, number + 1))
    assert ratios == pytest.approx([1] * 2 + [0.64] * 3 + [0.16] * 3 + [0.04] * 3 + [0.01] * 3)
    assert [d.step for d in running.controllers[0].decisions] == [2, 5, 8, 11]
    running.close()


def test_a_warm_up_may_go_back_to_dense_steps_where_a_run_resumes():
    first, second = (start(lambda dense=dense: gw.WarmUp(0.64, steps=9, dense=dense)) for dense in (0, 8))
    run(first, range(3))
    second.load(first.states())
    run(second, range(3, 6))
    assert settings(second)["first.weight"] == 1
    assert [decision.decision for decision in second.controllers[0].decisions] == ["ratio 1"]
    run(second, range(6, 12))
    assert settings(second)["first.weight"] < 1
    for running in (first, second):
        running.close()


@pytest.mark.parametrize("compressor", [gw.TopK(0.01), gw.PowerSGD(2), gw.RandomK(0.1)], ids=str)
def test_a_warm_up_in_bits_is_followed_by_the_plan(compressor: gw.Compressor):
    """Nothing is lost on the way: what was sent and what is left are all that was given."""
    plan = plan_of(SLOTS, compressor, gw.Residual(), gw.plans.default_communicator(compressor))
    running = Job(plan, SLOTS, 2, controllers=[gw.WarmUp(steps=4, dense=2, bits=8) for _ in range(2)])
    used, given = [], [torch.zeros(slot.shape).double() for slot in SLOTS]
    for number in range(9):
        used.append({type(group.compressor) for group in running.runtimes[0].plan.groups})
        means = run(running, range(number, number + 1))[0]
        drawn = total(draw(SLOTS, 2, number))
        given = [g + t.double() / 2 - m.double() for g, t, m in zip(given, drawn, means, strict=True)]
    assert used == [{gw.FP32}] * 2 + [{gw.Quantized}] * 4 + [{type(compressor)}] * 3
    assert running.runtimes[0].plan == plan
    assert [(d.step, d.decision) for d in running.controllers[0].decisions] == [(2, "8 bits"), (6, "the plan")]
    for kept, lacking in zip(total(running.state("residual")), given, strict=True):
        torch.testing.assert_close(kept.double(), lacking, rtol=1e-4, atol=1e-4)
    running.close()


def test_what_keeps_nothing_stays_as_it_is_in_a_warm_up_in_bits():
    first, second = plan_of(SLOTS, gw.TopK(0.01), gw.Residual(), gw.AllGather()).groups
    plan = gw.Plan((first, gw.Group(second.slots, gw.BF16(), gw.NoMemory(), gw.AllReduce())))
    warm_up = gw.WarmUp(steps=2, bits=4)
    warm_up.check(plan)
    assert [group.compressor for group in warm_up.begin(plan).groups] == [gw.Quantized(4), gw.BF16()]


def test_groups_that_a_controller_does_not_touch_keep_their_communicator():
    first, second = plan_of(SLOTS, gw.TopK(0.01), gw.Residual(), gw.AllGather()).groups
    plan = gw.Plan((first, gw.Group(second.slots, gw.FP16(), gw.NoMemory(), gw.ScatterReduce())))
    for controller in (gw.WarmUp(), gw.WarmUp(bits=8), accordion(), gw.GraVAC()):
        assert controller.begin(plan).groups[-1] == plan.groups[-1]


@pytest.mark.parametrize("ranks", [2, 16])
def test_a_new_compressor_gets_the_communicator_that_suits_it_where_the_user_named_none(ranks: int):
    topk = gw.TopK(1 / 16, value_bits=4)
    first, begun = gw.plans.uniform(SLOTS, topk, ranks=ranks), gw.plans.uniform(SLOTS, gw.Quantized(8), ranks=ranks)
    warm_up = gw.WarmUp(bits=8)
    warm_up.meet(SLOTS, ranks)
    assert {type(group.communicator) for group in first.groups} == {gw.AllGather}
    assert {type(group.communicator) for group in begun.groups} == {gw.AllGather if ranks == 2 else gw.ScatterReduce}
    assert [group.communicator for group in warm_up.begin(first).groups] == [
        group.communicator for group in begun.groups
    ]
    # the one that was named stays, where it takes the new compressor
    named = gw.plans.uniform(SLOTS, topk, communicator=gw.ScatterReduce(), ranks=ranks)
    assert {group.communicator for group in warm_up.begin(named).groups} == {gw.ScatterReduce()}


def test_levels_are_gathered_where_the_selection_of_the_users_compressor_would_not_be():
    plan = gw.plans.uniform(SLOTS, gw.TopK(0.1), ranks=64)
    assert {group.communicator for group in plan.groups} == {gw.ScatterReduce()}
    for controller in (gw.GraVAC(), gw.CAT(), gw.ScaDLES()):
        controller.meet(SLOTS, 64)
        controller.check(plan)
        assert all(group.communicator.sends_levels for group in controller.begin(plan).groups)
        # but a user who names it is told
        controller.meet(SLOTS, 2)
        with pytest.raises(ValueError, match="leave communicator= out"):
            controller.check(plan)


def test_the_ranks_that_compress_with_each_other_are_known_to_a_controller():
    plan = gw.plans.uniform(SLOTS, gw.TopK(1 / 16, value_bits=4), ranks=16)
    running = Job(plan, SLOTS, 16, controllers=[gw.WarmUp(steps=2, bits=8) for _ in range(16)])
    used = []
    for number in range(4):
        used.append({type(group.communicator) for group in running.runtimes[0].plan.groups})
        run(running, range(number, number + 1))
    assert used == [{gw.ScatterReduce}] * 2 + [{gw.AllGather}] * 2
    running.close()


def test_the_papers_warm_up():
    """75 %, 93.75 %, 98.4 %, 99.6 % and then 99.9 % are left out."""
    warm_up = gw.WarmUp(steps=4)
    shares = []
    for done in range(5):
        warm_up._done = done
        shares.append(warm_up._ratio_now(0.001))
    assert shares == pytest.approx([0.25, 0.0629, 0.0158, 0.00398, 0.001], rel=0.01)


def test_what_sends_all_anyway_warms_up_no_more_and_the_rest_does():
    first, second = (gw.Group((slot.name,), gw.TopK(1.0), gw.Residual(), gw.AllGather()) for slot in SLOTS)
    plan = gw.Plan((first, replace(second, compressor=gw.TopK(0.01))))
    running = Job(plan, SLOTS, 2, controllers=[gw.WarmUp(0.16, steps=4) for _ in range(2)])
    ratios = []
    for number in range(6):
        ratios.append(settings(running))
        run(running, range(number, number + 1))
    assert {own["first.weight"] for own in ratios} == {1.0}
    assert [own["second.weight"] for own in ratios] == pytest.approx([0.16] * 2 + [0.04] * 2 + [0.01] * 2)
    assert [decision.factor for decision in running.controllers[0].decisions] == pytest.approx([25.0, 100.0])
    running.close()


def test_dense_steps_have_dgcs_momentum_which_nothing_masks():
    """As in DGC's own code, so that its plain optimizer has the momentum that the steps after them go on with."""
    plan = plan_of(SLOTS, gw.DGC(0.01), gw.DGCMemory(0.8), gw.AllGather())
    running = Job(plan, SLOTS, 2, controllers=[gw.WarmUp(0.64, steps=9, dense=2) for _ in range(2)])
    velocity = waiting = [torch.zeros(slot.shape) for slot in SLOTS]
    for number in range(4):
        means = run(running, range(number, number + 1))[0]
        drawn = total(draw(SLOTS, 2, number))
        velocity = [0.8 * v + t / 2 for v, t in zip(velocity, drawn, strict=True)]
        waiting = [w + v - m for w, v, m in zip(waiting, velocity, means, strict=True)]
        if number < 2:
            torch.testing.assert_close(means, velocity, check_dtype=False)
        torch.testing.assert_close(list(total(running.state("residual"))), waiting, rtol=1e-4, atol=1e-5)
        velocity = list(total(running.state("velocity")))
    assert {group.memory for group in running.runtimes[0].plan.groups} == {gw.DGCMemory(0.8)}
    running.close()


def test_steps_in_bits_have_no_dgc_memory():
    with pytest.raises(ValueError, match=re.escape("use WarmUp(start=0.25)")):
        gw.WarmUp(bits=8).check(plan_of(SLOTS, gw.DGC(0.01), gw.DGCMemory(), gw.AllGather()))


@pytest.mark.parametrize("make", [gw.GraVAC, gw.CAT, gw.ScaDLES])
def test_levels_that_fall_back_to_everything_have_no_dgc_memory(make):
    plan = plan_of(SLOTS, gw.DGC(0.1), gw.DGCMemory(), gw.AllGather())
    with pytest.raises(ValueError, match=f"{make.__name__} sends all where .* use memory=Residual"):
        make().check(plan)


@pytest.mark.parametrize(
    ("controller", "masking"), [(gw.GraVAC(min_gain=0), True), (gw.ScaDLES(loss=1), True), (gw.CAT(), False)], ids=str
)
def test_momentum_stays_where_levels_never_fall_back_or_nothing_is_masked(controller: gw.Controller, masking: bool):
    plan = plan_of(SLOTS, gw.DGC(0.1), gw.DGCMemory(masking=masking), gw.AllGather())
    controller.check(plan)
    assert controller.begin(plan) != plan


def accordion(schedule: Schedule | None = None, interval: int = 3) -> gw.Accordion:
    return gw.Accordion(0.5, 0.25, schedule or Schedule(), interval)


def test_accordion_compresses_each_layer_by_its_own_change():
    """The first layer's gradient keeps its size; the second's shrinks to a tenth in every interval."""
    schedule = Schedule()
    running = start(lambda: accordion(schedule, 20))
    seen = []
    for number in range(71):
        grads = draw(SLOTS, 2, 0)
        for own in grads:
            own[1].mul_(0.1 ** (number // 20))
        if number == 69:
            schedule.rate = 0.01
        running.step(grads)
        seen.append(settings(running))
    assert [seen[at]["first.weight"] for at in (20, 40, 60, 70)] == [0.5, 0.25, 0.25, 0.5]
    assert [seen[at]["second.weight"] for at in (20, 40, 60, 70)] == [0.5, 0.5, 0.5, 0.5]
    assert running.controllers[0].decisions[-1].decision == "the learning rate dropped: 2 layers low, 0 high"
    running.close()


@pytest.mark.parametrize(("threshold", "ratio"), [(0.8, 0.5), (0.95, 0.25)])
def test_accordions_threshold_says_which_change_is_critical(threshold: float, ratio: float):
    """The second layer's gradient shrinks by 0.9 in every interval."""
    running = start(lambda: gw.Accordion(0.5, 0.25, Schedule(), 20, threshold))
    for number in range(61):
        grads = draw(SLOTS, 2, 0)
        for own in grads:
            own[1].mul_(0.1 ** (number // 20))
        running.step(grads)
    assert settings(running)["second.weight"] == ratio
    running.close()


def test_accordion_has_nothing_to_compare_the_first_interval_with():
    running = start(lambda: gw.Accordion(0.5, 0.25, Schedule(), 5, threshold=1.5))
    used = []
    for _ in range(13):
        running.step(draw(SLOTS, 2, 0))
        used.append(settings(running)["first.weight"])
    assert used[6:8] == [0.5, 0.5]
    assert used[-1] == 0.25
    running.close()


def test_accordions_first_interval_begins_where_it_begins():
    """Also where the job has made many steps before, as with a state that has nothing of a controller."""
    plain = Job(plan_of(SLOTS, gw.TopK(0.01), gw.Residual(), gw.AllGather()), SLOTS, 2)
    run(plain, range(7))
    running = start(lambda: accordion(interval=5))
    run(running, range(23))
    running.load(plain.states())
    del running.controllers[0].decisions[:]
    run(running, range(7, 20))
    # steps 7 to 11, 12 to 16
    assert [decision.step for decision in running.controllers[0].decisions] == [13, 18]
    for each in (plain, running):
        each.close()


def test_a_rate_that_falls_from_step_to_step_drops_now_and_then():
    schedule = Schedule()
    running = start(lambda: accordion(schedule, 20))
    for number in range(72):
        schedule.rate = 0.1 * 0.98**number
        running.step(draw(SLOTS, 2, 0))
    decisions = [(decision.step, decision.decision.partition(":")[0]) for decision in running.controllers[0].decisions]
    assert decisions == [
        (21, "norms compared"), (37, "the learning rate dropped"),
        (57, "norms compared"), (72, "the learning rate dropped"),
    ]  # fmt: skip
    running.close()


def test_accordion_changes_ranks_as_well():
    running = start(lambda: gw.Accordion(4, 1, Schedule(), interval=2), compressor=gw.PowerSGD(2), groups=1)
    for _ in range(5):
        running.step([[torch.ones(slot.shape) for slot in SLOTS] for _ in range(2)])
    assert settings(running, "rank") == {"first.weight": 1, "second.weight": 1}
    running.close()


def test_accordion_changes_shares_of_the_full_rank_as_well():
    compressor, controller = gw.PowerSGD(1 / 6), gw.Accordion(1 / 3, 1 / 12, Schedule(), interval=2)
    controller.check(plan_of(SLOTS, compressor, gw.Residual(), gw.AllReduce()))
    running = start(lambda: replace(controller), compressor=compressor, groups=1)
    assert settings(running, "rank") == dict.fromkeys(("first.weight", "second.weight"), 1 / 3)
    for _ in range(5):
        running.step([[torch.ones(slot.shape) for slot in SLOTS] for _ in range(2)])
    assert settings(running, "rank") == dict.fromkeys(("first.weight", "second.weight"), 1 / 12)
    running.close()


def test_accordion_goes_on_on_a_gpu_from_a_state_that_lies_on_the_cpu():
    group = gw.Group(("w",), gw.TopK(0.5), gw.Residual(), gw.AllGather())
    before, after, mean = accordion(), accordion(), torch.arange(1.0, 7.0)
    for controller in (before, after):
        controller.begin(gw.Plan((group,)))
    before.reduced({"w": mean}, torch.zeros(1), 1.0)
    after.load_state_dict(before.state_dict())
    with pretended_cuda() as gpu:
        after.reduced({"w": on_gpu(mean)}, on_gpu(torch.zeros(1)), 1.0)
        gpu.forget()
        after.reduced({"w": on_gpu(mean)}, on_gpu(torch.zeros(1)), 1.0)
    assert not gpu.syncs + gpu.pageable
    assert torch.equal(real(after.state_dict()["shared/sum w"]), 3 * mean)


def test_accordion_sees_small_half_precision_means_of_a_scaled_loss_on_a_gpu_as_on_a_cpu():
    here, there, mean = accordion(), accordion(), torch.full((6,), 1e-8 * 2**16).half()
    for controller in (here, there):
        controller.begin(gw.Plan((gw.Group(("w",), gw.TopK(0.5), gw.Residual(), gw.AllGather()),)))
    here.reduced({"w": mean}, torch.zeros(1), 2.0**16)
    with pretended_cuda():
        there.reduced({"w": on_gpu(mean)}, on_gpu(torch.zeros(1)), on_gpu(torch.tensor(2.0**16)))
    found = real(there.state_dict()["shared/sum w"])
    assert found.any()
    assert torch.equal(found, here.state_dict()["shared/sum w"])


def test_accordion_takes_fewer_ranks_for_no_drop_of_the_learning_rate():
    before, after = start(lambda: accordion(interval=20), world=4), start(lambda: accordion(interval=20))
    run(before, range(3))
    after.load(gw.reshard(before.states(), 2))
    run(after, range(3, 6))
    assert after.controllers[0].decisions == []
    for running in (before, after):
        running.close()


def test_accordion_keeps_the_layers_of_its_plan_alone():
    """Some are frozen, or a plan with more of them was refused: regimes stay with their layers."""
    first, second = plan_of(SLOTS, gw.TopK(0.5), gw.Residual(), gw.AllGather()).groups
    controller, other = accordion(), accordion()
    controller.begin(gw.Plan((first, second)))
    controller.reduced({"second.weight": torch.ones(40, 30)}, torch.zeros(1), 1.0)
    controller.begin(gw.Plan((second,)))
    saved = controller.state_dict()
    other.begin(gw.Plan((second,)))
    other.load_state_dict(saved)
    assert other.state_dict().keys() == saved.keys() == {"interval", "shared/sum second.weight"}
    for more in (gw.Plan((first, second)), gw.Plan((second,))):
        other.begin(more)
        other.load_state_dict(saved)
        assert other.state_dict().keys() == saved.keys()


def test_scadles_refuses_a_state_of_another_factor_by_its_own_options():
    with pytest.raises(ValueError, match=r"these are 10x: pass the same factor$"):
        gw.ScaDLES(10).load_state_dict(gw.ScaDLES(5).state_dict())


def test_scadles_sends_all_where_too_much_would_be_lost():
    kinds = []
    for loss in (0.95, 0.05):
        running = start(lambda loss=loss: gw.ScaDLES(10, loss, window=4))
        run(running, range(5))
        kinds.append(round(running.controllers[0].decisions[0].factor))
        running.close()
    assert kinds == [10, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: gw.WarmUp(0.5, steps=9),
        lambda: gw.WarmUp(steps=5, bits=4),
        accordion,
        lambda: gw.ScaDLES(4, 0.5, window=6),
    ],
    ids=["warm", "bits", "acc", "sca"],
)
@pytest.mark.parametrize("cut", [4, 7])
def test_a_run_that_was_cut_goes_on_bit_for_bit(make, cut: int):
    check_goes_on(lambda: start(make), run, cut, 13)


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("use e.g. Accordion(low=0.1, high=0.01, scheduler=scheduler)", lambda: gw.Accordion(0.01, 0.1)),
        ("use e.g. WarmUp(start=0.25, steps=1000)", lambda: gw.WarmUp(steps=0)),
        ("use e.g. start=0.25", lambda: gw.WarmUp(start=2)),
        ("use 2, 3, 4 or 8", lambda: gw.WarmUp(bits=5)),
        ("use WarmUp(bits=8) or WarmUp(start=0.001)", lambda: gw.WarmUp(bits=8, start=0.001)),
        ("has no get_last_lr(); pass torch", lambda: gw.Accordion(0.1, 0.01, torch.optim.SGD([torch.zeros(1)]))),
        ("has no get_last_lr(); pass torch", lambda: gw.GraVAC(scheduler=torch.optim.SGD([torch.zeros(1)]))),
        ("use e.g. ScaDLES(factor=10, loss=0.3)", lambda: gw.ScaDLES(0.1)),
    ],
)
def test_options_that_make_no_sense_are_refused(text, make):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


@pytest.mark.parametrize(
    ("text", "controller", "compressor"),
    [
        ("use Accordion(low, high, scheduler=scheduler)", gw.Accordion(0.1, 0.01), gw.TopK(0.1)),
        ("use TopK(0.1), or PowerSGD(4)", gw.Accordion(0.1, 0.01, Schedule()), gw.QSGD()),
        ("use e.g. Accordion(low=4, high=1", gw.Accordion(4, 0.5, Schedule()), gw.PowerSGD(4)),
        ("compares norms of mean gradients, and Dion", gw.Accordion(4, 1, Schedule()), gw.Dion(4)),
        ("use e.g. WarmUp(start=0.4)", gw.WarmUp(0.05), gw.TopK(0.1)),
        ("sends all already, with ratio=1", gw.WarmUp(), gw.TopK(1.0)),
        ("makes updates; leave WarmUp out", gw.WarmUp(bits=8), gw.Dion(4)),
        ("use attach(ddp, TopK(0.1), controller=ScaDLES())", gw.ScaDLES(), gw.PowerSGD()),
        ("use e.g. attach(ddp, DGC(0.001), controller=WarmUp())", gw.WarmUp(), gw.PowerSGD()),
    ],
)
def test_what_a_controller_cannot_change_is_refused_when_attached(text, controller, compressor):
    plan = plan_of(SLOTS, compressor, gw.Residual(), gw.plans.default_communicator(compressor))
    with pytest.raises(ValueError, match=re.escape(text)):
        controller.check(plan)


@pytest.mark.parametrize("make", [lambda: gw.WarmUp(bits=8, steps=4), lambda: gw.WarmUp(0.64, steps=4)])
def test_what_a_warm_up_needed_is_not_kept(make):
    def nbytes(running: Job) -> int:
        run(running, range(12))
        running.close()
        return running.runtimes[0]._steps.store.nbytes

    plan = plan_of(SLOTS, gw.TopK(0.01), gw.Residual(), gw.AllGather(), groups=1)
    assert nbytes(start(make, groups=1)) == nbytes(Job(plan, SLOTS, 2))
