"""Plans: JSON, what they refuse and advise, and that all ranks have the same."""

import json
from dataclasses import dataclass, replace
from importlib import metadata
from typing import cast

import pytest
import torch

import gradwire as gw
from gradwire.compressors import FixedSizeCompressor
from gradwire.frontends.local_steps.fragments import FragmentedModel
from gradwire.frontends.model_replica import ModelReplica
from gradwire.plans import SIZES, sizes_follow_from_shapes, uniform
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.runtime import Runtime
from gradwire.runtime.state.store import Store
from gradwire.slots import Layout, Slot
from tests.support.cases import CASES, Case
from tests.support.harness import CPU, SMALL, job, plan_of, raising, slots_of, together

SLOTS = slots_of(SMALL)
TOP_K = gw.TopK(0.05)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_json_round_trip(case: Case):
    plan = plan_of(SLOTS, case.compressor, case.memory, case.communicator)
    again = gw.Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()


@dataclass(frozen=True)
class Stages(gw.TopK):
    """A user's compressor, one of whose options is a tuple."""

    ratios: tuple[float, ...] = ()
    others: tuple[gw.Compressor, ...] = ()


def test_options_that_are_tuples_come_back_as_tuples():
    stages = Stages(ratios=(0.25, 0.1), others=(gw.TopK(0.1), Stages(ratios=(0.5,))))
    plan = uniform(SLOTS, stages)
    assert gw.Plan.from_json(plan.to_json()) == plan


PLAN_OF_SLOTS = gw.Plan((gw.Group(("SLOTS",), gw.TopK(0.1), gw.Residual(), gw.AllGather()),)).to_json()
PLAN_OF_SLOTS = json.dumps(json.loads(PLAN_OF_SLOTS)).replace('["SLOTS"]', "SLOTS")


class Counted(str):
    """A name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class Measured(Slot):
    """A slot that counts how often it is measured."""

    measured = 0

    @property
    def numel(self) -> int:
        Measured.measured += 1
        return super().numel


def in_fragments(plan: gw.Plan, slots: list[Slot]) -> gw.Plan:
    model = FragmentedModel(torch.nn.Module(), cast(ModelReplica, None), 2, lambda own: uniform(own, TOP_K))
    model.names[:] = [tuple(slot.name for slot in half) for half in (slots[:500], slots[500:])]
    made = model.plan(slots)
    model.check_fits(made)
    return made


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda plan, slots: uniform(slots, TOP_K), id="uniform"),
        pytest.param(lambda plan, slots: gw.groups.of(megabytes=25).regroup(plan, slots, TOP_K), id="of"),
        pytest.param(lambda plan, slots: gw.groups.partial(1).regroup(plan, slots, TOP_K), id="partial"),
        pytest.param(
            lambda plan, slots: gw.groups.listed(
                [[slot.name for slot in slots if not slot.is_vector]],
            ).regroup(plan, slots, TOP_K),
            id="listed",
        ),
        pytest.param(in_fragments, id="fragments"),
    ],
)
def test_the_work_of_making_a_plan_grows_with_the_number_of_slots_not_with_its_square(make):
    shapes = [(2, 2), (2,), (1, 1), (1,)]
    slots = [Measured(Counted(f"{i}"), shape, (1,) * len(shape), torch.float32) for i, shape in enumerate(250 * shapes)]
    plan = uniform(slots, TOP_K)
    Counted.compared = Measured.measured = 0
    make(plan, slots).check(slots)
    assert Counted.compared + Measured.measured < 50 * len(slots)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "groups": []}',
        '{"version": 1}',
        '{"version": 1, "groups": [{}]}',
        '{"version": 1, "groups": [3]}',
    ],
)
def test_what_is_no_plan_is_refused(text: str):
    with pytest.raises(ValueError, match=r"no plan that Plan|^plan version"):
        gw.Plan.from_json(text)


@pytest.mark.parametrize(
    "change",
    [
        {"compressor": {"name": "TopKK"}},
        {"compressor": {"name": "Codec"}},
        {"compressor": {"name": "Workspace"}},
        {"compressor": {"name": "__name__"}},
        {"compressor": {"name": "TopK", "ration": 0.1}},
        {"compressor": {"name": "TopK", "ratio": 7}},
        {"compressor": {"ratio": 0.1}},
        {"memory": {"name": "torch"}},
        {"memory": {"name": "sqrt", "x": 4}},
        {"communicator": {"name": "TopK"}},
    ],
    ids=str,
)
def test_what_names_no_part_is_refused(change: dict):
    data = json.loads(uniform(SLOTS, TOP_K).to_json())
    data["groups"][0] |= change
    with pytest.raises(ValueError, match=r"no plan that Plan|^the plan names|^ratio=7 "):
        gw.Plan.from_json(json.dumps(data))


REFUSED = [
    (TOP_K, gw.Residual(), gw.AllReduce(), "AllGather"),
    (gw.EFSignSGD(), gw.Residual(), gw.AllReduce(), "AllGather"),
    (gw.QSGD(), gw.NoMemory(), gw.AllReduce(), "ScatterReduce"),
    (gw.PowerSGD(), gw.Residual(), gw.AllGather(), "AllReduce"),
    (gw.PowerSGD(), gw.Residual(), gw.ScatterReduce(), "AllReduce"),
    (gw.ACPSGD(), gw.Residual(), gw.AllGather(), "AllReduce"),
    (gw.SignSGD(), gw.Residual(), gw.AllGather(), "NoMemory"),
    (gw.Signum(), gw.Residual(), gw.AllGather(), "NoMemory"),
    (gw.SignSGD(), gw.NoMemory(), gw.ScatterReduce(), "AllGather"),
    (gw.RandomK(rescale=True), gw.Residual(), gw.AllReduce(), "NoMemory"),
    (gw.RandomK(rescale=True), gw.NoMemory(), gw.ScatterReduce(), "AllReduce"),
    (gw.EFSignSGD(), gw.DGCMemory(), gw.AllGather(), "Residual"),
    (gw.PowerSGD(), gw.DGCMemory(), gw.AllReduce(), "Residual"),
]


@pytest.mark.parametrize(("compressor", "memory", "communicator", "advice"), REFUSED, ids=str)
def test_a_pairing_that_makes_no_sense_names_one_that_does(compressor, memory, communicator, advice: str):
    with pytest.raises(ValueError, match=advice) as refusal:
        gw.Group(("a",), compressor, memory, communicator)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gw.TopK(0), lambda: gw.TopK(1.5), lambda: gw.TopK(float("nan")), lambda: gw.DGC(-0.1),
        lambda: gw.RandomK(2), lambda: gw.QSGD(levels=128), lambda: gw.QSGD(block=100), lambda: gw.TernGrad(block=0),
        lambda: gw.EFSignSGD(block=12), lambda: gw.OneBit(block=-8), lambda: gw.Signum(momentum=1.0),
        lambda: gw.PowerSGD(0), lambda: gw.ACPSGD(min_compression_rate=0.5), lambda: gw.PowerSGD(start_step=-1),
        lambda: gw.Residual(0), lambda: gw.Residual(dtype=torch.float16),
        lambda: gw.DGCMemory(momentum=1), lambda: gw.DGCMemory(clip=0),
    ],
)  # fmt: skip
def test_hyperparameters_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match=r"=") as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_ranks_with_a_copy_that_is_not_installed_meet(monkeypatch: pytest.MonkeyPatch):
    """On PYTHONPATH there is no metadata of a package."""

    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata.Distribution, "from_name", absent)
    with job(uniform(SLOTS, TOP_K), SLOTS, 2):
        pass


def test_a_plan_for_another_model_is_refused():
    plan = uniform(SLOTS, TOP_K)
    with pytest.raises(ValueError, match="lacks"):
        plan.check(slots_of(SMALL | {"more": torch.empty(2, 2)}))
    with pytest.raises(ValueError, match="names parameter"):
        plan.check(SLOTS[1:])
    with pytest.raises(ValueError, match="two groups"):
        gw.Plan(plan.groups + plan.groups[:1]).check(SLOTS)
    with pytest.raises(ValueError, match="group without parameters"):
        gw.Plan((*plan.groups, replace(plan.groups[0], slots=()))).check(SLOTS)


def matrices(*rows: int) -> list[Slot]:
    """Of 2^20 columns, without memory."""
    return [Slot(f"{i}.weight", (n, 1 << 20), (1 << 20, 1), torch.float32) for i, n in enumerate(rows)]


def test_a_parameter_that_one_group_names_twice_is_told_so():
    slot = slots_of(SMALL)[0]
    plan = uniform([slot, slot], gw.FP32())
    with pytest.raises(ValueError, match=rf"^a group of the plan has parameter '{slot.name}' twice; name it once$"):
        plan.check([slot])


def test_a_group_of_more_elements_than_kernels_number_is_refused_in_one_line():
    """The last of 2^31 - 1 is the last of 32 bits; a cast numbers none."""
    slots = matrices(1024, 1024)
    for refused, names, why in (
        (slots, ["0.weight", "1.weight"], r"group of '0.weight' has 2,147,483,648 elements.*groups.of\(megabytes=1024"),
        (matrices(2048), ["0.weight"], r"parameter '0.weight' has 2,147,483,648 elements.*\('0.weight', gw.FP32"),
    ):
        group = gw.Group(tuple(names), gw.TopK(0.01), gw.Residual(), gw.AllGather())
        with pytest.raises(ValueError, match=why):
            gw.Plan((group,)).check(refused)
        gw.Plan((replace(group, compressor=gw.FP16(), communicator=gw.AllReduce()),)).check(refused)
    gw.Plan((gw.Group(("0.weight", "1.weight"), gw.TopK(0.01), gw.Residual(), gw.AllGather()),)).check(
        matrices(1024, 1023)
    )


@pytest.mark.parametrize("compressor", [gw.TopK(0.01), gw.QSGD()], ids=str)
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_default_groups_of_the_largest_models_are_none_too_long(compressor: gw.Compressor, kind: str):
    """Of 54 billion elements: a quarter of them is beyond 2^31."""
    slots = matrices(1500, *[400] * 120, 2047, 700)
    plan = uniform(slots, compressor, sizes=SIZES[kind])
    numel = {slot.name: slot.numel for slot in slots}
    assert all(sum(numel[name] for name in group.slots) < 1 << 31 for group in plan.groups)
    assert len(plan.groups) < 60


def test_the_default_plan_sends_small_tensors_dense_and_last():
    *compressed, dense = uniform(SLOTS, TOP_K).groups
    assert {name for group in compressed for name in group.slots} == {s.name for s in SLOTS if len(s.shape) > 1}
    assert dense.compressor == gw.FP32()
    assert set(dense.slots) == {slot.name for slot in SLOTS if len(slot.shape) < 2}


@pytest.mark.parametrize(
    ("compressor", "kind", "megabytes"),
    [
        (gw.TopK(0.01), "cpu", [8, 8, 4, 2, 1]), (gw.PowerSGD(4), "cpu", [8, 8, 4, 2, 1]),
        (gw.QSGD(), "cpu", [1, 2, 4, 4, 4, 4, 4]), (gw.Quantized(4), "cpu", [1, 2, 4, 4, 4, 4, 4]),
        (gw.TopK(0.01), "cuda", [32, 32, 16, 8]), (gw.QSGD(), "cuda", [8, 16, 20, 20, 16]),
    ],
    ids=str,
)  # fmt: skip
def test_groups_are_small_where_nothing_hides_them(compressor, kind: str, megabytes: list[int]):
    """What is sent last; where the wire sets the pace what is sent first. On a GPU they are larger."""

    def quarters(count: int) -> list[int]:
        slots = slots_of({f"{i}.weight": torch.empty(256, 256, device="meta") for i in range(count)})
        groups = uniform(slots, compressor, sizes=SIZES[kind]).groups
        assert [name for group in groups for name in group.slots] == [f"{i}.weight" for i in range(count)]
        return [len(group.slots) for group in groups]

    even = 4 * sum(megabytes)
    assert quarters(even) == [4 * size for size in megabytes]
    assert len(quarters(even + 1)) == len(megabytes)


def test_groups_are_as_large_as_they_may_be():
    sizes = {"a": 1, "b": 1, "c": 2, "d": 1}
    slots = slots_of({name: torch.empty(size, 1 << 18, device="meta") for name, size in sizes.items()})
    plan = gw.Plan((gw.Group(tuple("abcd"), TOP_K, gw.Residual(), gw.AllGather()),))
    groups = gw.groups.of(megabytes=2).regroup(plan, slots, TOP_K).groups
    assert [group.slots for group in groups] == [("a", "b"), ("c",), ("d",)]


def test_no_small_group_lies_between_full_ones():
    """ACP-SGD's next-fit closed a buffer before what would overflow it: every third of BERT-Large's held one small
    tensor. Here a group is closed once it is worth a message. Only the last are smaller, each at least half of the one
    before it."""
    shapes = [(1024, 1024), (1024,), (1024, 1024), (1024, 4096), (4096,), (1024, 1024)] * 8
    slots = slots_of({str(i): torch.empty(shape, device="meta") for i, shape in enumerate(shapes)})
    numel = {slot.name: slot.numel for slot in slots}
    sizes = [sum(numel[name] for name in group.slots) for group in uniform(slots, gw.ACPSGD()).groups]
    assert len(sizes) <= 12
    full = sum(numel.values()) // 8
    assert all(size >= min(full, (1 << 18) << i) for i, size in enumerate(reversed(sizes[1:])))


def test_what_is_dense_leaves_something_of_the_budget():
    slots = slots_of({name: torch.empty(size, 100) for name, size in {"a": 1, "b": 9, "c": 90}.items()})
    top_k = gw.TopK(0.1)
    plan = gw.Plan((gw.Group(tuple("abc"), top_k, gw.Residual(), gw.AllGather()),))
    sparse, dense = gw.groups.partial().regroup(plan, slots, top_k).groups
    assert (sparse.slots, dense.slots) == (("b", "c"), ("a",))
    assert sparse.compressor.ratio == pytest.approx(900 / 9900)


PLAN, OTHER_SHAPE = uniform(SLOTS, TOP_K), slots_of(SMALL | {"scale": torch.empty(2)})
OTHER = {
    "ratio": (uniform(SLOTS, gw.TopK(0.06)), SLOTS, {}, "plan"),
    "order": (uniform(SLOTS[::-1], TOP_K), SLOTS, {}, "plan"),
    "native": (gw.NATIVE, SLOTS, {"no_native": ""}, "plan"),
    "shape": (uniform(SLOTS, TOP_K), OTHER_SHAPE, {}, "scale: (1,) torch.float32 with strides (1,) on rank"),
    "seed": (PLAN, SLOTS, {"seed": 1}, "seed: 0 on rank"),
    "controller": (PLAN, SLOTS, {"controller": gw.WarmUp(steps=20)}, "controller: none on rank"),
    "scaler": (PLAN, SLOTS, {"facts": {"scaler": "yes"}}, "scaler: none on rank"),
    "a plan for another model": (uniform(SLOTS[1:], TOP_K), SLOTS, {}, "rank 1 cannot go on: the plan lacks"),
}


@pytest.mark.parametrize(("plan", "slots", "options", "why"), OTHER.values(), ids=OTHER)
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_differ_are_refused_on_all_ranks(plan: gw.Plan, slots: list, options: dict, why: str, world: int):
    transports = gw.Threads.group(world)

    def make(rank: int) -> Runtime:
        own = (plan, slots, options) if rank == 1 else (PLAN, SLOTS, {})
        return Runtime(lambda: own[0], own[1], gw.Mesh.of(transports[rank]), CPU, JobOptions(**own[2]))

    for error in together(world, make):
        assert isinstance(error, ValueError)
        assert why in str(error)
        assert "\n" not in str(error)


def test_controllers_that_differ_are_refused_by_what_they_are_set_to():
    controllers = [gw.WarmUp(steps=20), gw.WarmUp(steps=30)]
    transports = gw.Threads.group(2)
    settings = [JobOptions(controller=controller) for controller in controllers]
    for error in together(
        2, lambda rank: Runtime(lambda: PLAN, SLOTS, gw.Mesh.of(transports[rank]), CPU, settings[rank])
    ):
        assert isinstance(error, ValueError)
        assert "WarmUp(start=0.25, steps=20, dense=0, bits=None) on rank 0" in str(error)


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gradwire.runtime.meeting.PATIENCE_S", 2.0)
    transports = gw.Threads.group(3)
    for error in together(
        2, lambda rank: Runtime(lambda: PLAN, SLOTS, gw.Mesh.of(transports[rank]), CPU, JobOptions())
    ):
        assert isinstance(error, RuntimeError)
        assert "rank 2 did not come to attach() or replan() within 2 s" in str(error)


def test_a_new_plan_that_differs_is_refused_on_all_ranks_and_the_old_one_stays():
    with job(uniform(SLOTS, TOP_K), SLOTS, 2) as running:
        plans = [uniform(SLOTS, gw.TopK(ratio)) for ratio in (0.1, 0.2)]
        for error in together(2, lambda rank: running.runtimes[rank].install(plans[rank])):
            assert isinstance(error, ValueError)
        running.step([[torch.ones(slot.shape) for slot in SLOTS]] * 2)
        first = running.runtimes[0]
        assert first.plan == first.origin == uniform(SLOTS, TOP_K)
        raising(together(2, lambda rank: running.runtimes[rank].install(plans[0])))
        second = running.runtimes[1]
        assert second.plan == second.origin == plans[0]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"version": 1, "groups": ' + "[" * 5000 + "]" * 5000 + "}",
        *(PLAN_OF_SLOTS.replace("SLOTS", slots) for slots in ('"ab"', "[1]", "[[1]]", "[{}]")),
    ],
    ids=range(6),
)
def test_what_a_fuzzer_found_to_be_no_plan_is_refused(text: str):
    with pytest.raises(ValueError, match="no plan that"):
        gw.Plan.from_json(text)


BIG = slots_of({"a.weight": torch.empty(512, 2048), "b.weight": torch.empty(2048, 512)})


SMALLER = [
    compressor
    for compressor in dict.fromkeys(case.compressor for case in CASES)
    if sizes_follow_from_shapes(compressor) and compressor.group_bytes(Layout(tuple(BIG)), 0) < 4 << 20
]
"""Those whose payload takes no more than half of the gradient."""


@pytest.mark.parametrize("compressor", SMALLER, ids=str)
def test_by_default_no_rank_receives_more_than_by_a_dense_all_reduce(compressor: FixedSizeCompressor):
    """Unless nothing but an all-gather carries the compressor, or its errors would build up in the memory."""
    layout = Layout(tuple(BIG))
    for ranks in (2, 8, 64, 1024):
        (group, *_) = uniform(BIG, compressor, ranks=ranks).groups
        scatters = gw.ScatterReduce().takes(compressor) and not compressor.once_only
        if isinstance(group.communicator, gw.AllGather) and not scatters:
            continue
        sent = group.communicator.wire(compressor, layout, ranks).wire_bytes
        assert sent <= 1.05 * gw.AllReduce().wire(gw.FP32(), layout, ranks).wire_bytes, ranks


@pytest.mark.parametrize(("ranks", "kind"), [(4, gw.AllGather), (64, gw.ScatterReduce)])
def test_front_ends_know_how_many_ranks_there_are(ranks: int, kind: type):
    transport, model = gw.Played(ranks, gw.Card(0.0, 1e12)), torch.nn.Linear(64, 32)
    inner = torch.optim.SGD(model.parameters())
    for wrap in (gw.DistributedOptimizer, gw.LocalSteps):
        handle = wrap(inner, model, gw.Quantized(4), transport=transport).handle
        assert isinstance(handle.plan.groups[0].communicator, kind)
        handle.detach()
    named = gw.DistributedOptimizer(inner, model, gw.Quantized(4), communicator=gw.AllGather(), transport=transport)
    assert isinstance(named.handle.plan.groups[0].communicator, gw.AllGather)
    named.handle.detach()


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_a_plan_of_another_rank_goes_on_from_the_rows_of_the_basis_that_both_have(before: int, after: int):
    slots = slots_of({"w": torch.empty(40, 30)})
    kept, fresh = Store(slots, CPU), Store(slots, CPU)
    kept.arrange(gw.plans.uniform(slots, gw.PowerSGD(before)))
    kept.groups[0].slot_state.slots[0]["q"].fill_(3)
    for store in kept, fresh:
        store.arrange(gw.plans.uniform(slots, gw.PowerSGD(after)))
    basis, drawn = (store.groups[0].slot_state.slots[0]["q"] for store in (kept, fresh))
    assert basis.shape == (after, 30)
    assert (basis[:2] == 3).all()
    assert torch.equal(basis[2:], drawn[2:])


def test_slots_of_frozen_parameters_leave_the_plan():
    names = [slot.name for slot in SLOTS]
    with job(PLAN, SLOTS, 2, trained=names[1:], plan_for=lambda slots: uniform(slots, TOP_K)) as running:
        for runtime in running.runtimes:
            assert {name for group in runtime.plan.groups for name in group.slots} == {*names[1:]}


def test_a_native_plan_stays_where_other_parameters_are_trained():
    names = [slot.name for slot in SLOTS]
    with job(PLAN, SLOTS, 2, no_native="", trained=names, plan_for=lambda slots: uniform(slots, TOP_K)) as running:
        running.install(gw.NATIVE)
        running.follow(names[1:])
        assert [runtime.plan for runtime in running.runtimes] == [gw.NATIVE] * 2
        running.runtimes[0].native_step_ended()
        assert running.runtimes[0].stats().dense_bytes == sum(4 * slot.numel for slot in SLOTS[1:])


def test_a_plan_that_ranks_do_not_agree_on_is_none_that_a_controller_makes_others_from():
    controllers = [gw.WarmUp(steps=20), gw.WarmUp(steps=20)]
    with job(PLAN, SLOTS, 2, controllers=controllers) as running:
        before = running.runtimes[0].plan
        plans = [uniform(SLOTS, gw.TopK(0.2)), uniform(SLOTS, gw.TopK(0.3))]
        errors = together(2, lambda rank: running.runtimes[rank].install(plans[rank]))
        assert all(isinstance(error, ValueError) for error in errors)
        assert [controller._origin for controller in controllers] == [PLAN] * 2
        assert [runtime._active.origin for runtime in running.runtimes] == [PLAN] * 2
        assert [runtime.plan for runtime in running.runtimes] == [before] * 2


def test_a_group_of_a_list_is_that_of_a_tuple():
    given = gw.Group(["weight"], gw.TopK(0.1), gw.Residual(), gw.AllGather())  # pyright: ignore
    assert gw.Plan.from_json(gw.Plan((given,)).to_json()).groups == (given,)
    assert hash(given) == hash(gw.Group(("weight",), gw.TopK(0.1), gw.Residual(), gw.AllGather()))
    with pytest.raises(ValueError, match=r"^Group\(rule=5\) takes a text"):
        gw.Group((), gw.TopK(0.1), gw.Residual(), gw.AllGather(), 5)  # pyright: ignore
