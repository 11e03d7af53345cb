"""Controllers and the engine: ranks that see different things decide alike, and nothing is lost on the way."""

from dataclasses import InitVar, dataclass, replace
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire import group_checks
from gradwire.controllers import MESSAGE_NUMBERS
from gradwire.controllers.requests import change_from_json
from gradwire.runtime.plan.controller_runner import ControllerRunner, Tracing
from gradwire.text_tensors import text_of
from tests.support.harness import SMALL, Job, draw, hosts, job, plan_of, raising, slots_of, together, total
from tests.support.schedule import Schedule

SLOTS = slots_of(SMALL)
SPARSE, DENSER = gw.TopK(0.05), gw.TopK(0.4)


def plan_with(compressor) -> gw.Plan:
    return plan_of(SLOTS, compressor, gw.Residual(), gw.AllGather())


class Thermostat(gw.Controller):
    """More entries while the ranks' gradients are large together; counts its changes."""

    numbers = 2
    looks = True

    def __init__(self) -> None:
        self.changes = 0
        self.seen: list[list[float]] = []

    def describe(self) -> str:
        return "Thermostat()"

    def look(self, context: gw.GroupContext, vector: gw.LazySum, numbers: Tensor) -> None:
        numbers[0] += vector.total().square().sum()

    def observe(self, seen: gw.StepView, numbers: Tensor) -> None:
        numbers[1] = 1

    def decide(self, seen: gw.Observation) -> gw.Plan | None:
        self.seen.append(seen.sums.tolist())
        wanted = DENSER if self.changes % 2 == 0 and seen.sums[0] > 50 / seen.ranks else SPARSE
        if seen.plan.groups[0].compressor == wanted:
            return None
        self.changes += 1
        return gw.Plan(tuple(replace(group, compressor=wanted) for group in seen.plan.groups))

    def state_dict(self) -> dict[str, Tensor]:
        return {"changes": torch.tensor(self.changes)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.changes = int(state["changes"])


def controlled(world: int) -> Job:
    return Job(plan_with(SPARSE), SLOTS, world, controllers=[Thermostat() for _ in range(world)])


def test_a_plan_that_is_refused_changes_nothing():
    controllers = [gw.WarmUp(0.5, steps=4) for _ in range(2)]
    with job(plan_with(SPARSE), SLOTS, 2, controllers=controllers) as running:
        running.step(draw(SLOTS, 2, 0))
        other = gw.Plan(plan_with(SPARSE).groups[:1])
        with pytest.raises(ValueError, match="lacks the model's parameter"):
            running.install(other)  # on all ranks
        for number in range(1, 6):
            running.step(draw(SLOTS, 2, number))
        assert running.runtimes[0].plan == plan_with(SPARSE)


def test_ranks_that_see_different_gradients_decide_alike():
    running = controlled(3)
    for number in range(12):
        scale = [1.0, 30.0, 0.01]
        grads = [[g * scale[(rank + number) % 3] for g in own] for rank, own in enumerate(draw(SLOTS, 3, number))]
        means = running.step(grads)
        assert all(torch.equal(a, b) for other in means for a, b in zip(means[0], other, strict=True))
    seen = [controller.seen for controller in running.controllers]  # pyright: ignore
    assert seen[0] == seen[1] == seen[2]
    assert all(sums[1] == 3 for sums in seen[0])
    assert running.controllers[0].changes > 2  # pyright: ignore
    assert [runtime.plan for runtime in running.runtimes] == [running.runtimes[0].plan] * 3
    running.close()


class CountsGroups(Thermostat):
    """And counts the groups that ranks lead."""

    numbers = 3

    def observe(self, seen: gw.StepView, numbers: Tensor) -> None:
        super().observe(seen, numbers)
        numbers[2] += len(seen.groups)


def test_numbers_are_summed_over_the_ranks_of_all_hosts():
    controllers, plan = (
        [CountsGroups() for _ in range(4)],
        plan_of(SLOTS, SPARSE, gw.Residual(), gw.AllGather(), groups=3),
    )
    with job(plan, SLOTS, 4, transports=hosts(2, 2), controllers=controllers) as running:
        running.step(draw(SLOTS, 4, 0))
    assert [controller.seen[0][1:] for controller in controllers] == [[4.0, 2 * 3.0]] * 4


def test_a_controller_sees_nothing_of_the_step_from_which_the_plan_is_made_again():
    controllers, plan = [CountsGroups() for _ in range(2)], plan_with(SPARSE)
    with job(plan, SLOTS, 2, controllers=controllers, follow_order=True) as running:
        for number in range(2):
            running.step(draw(SLOTS, 2, number))
    assert [[sums[1:] for sums in controller.seen] for controller in controllers] == [[[2.0, 2 * 2.0]]] * 2


class Onlooker(Thermostat):
    """Sums what is encoded, and changes nothing."""

    def look(self, context: gw.GroupContext, vector: gw.LazySum, numbers: Tensor) -> None:
        numbers[0] += vector.total().sum()

    def decide(self, seen: gw.Observation) -> None:
        self.seen.append(seen.sums.tolist())


@pytest.mark.parametrize("kept", [torch.float32, torch.int8], ids=str)
def test_dense_groups_without_memory_are_looked_at_and_stay_as_they_are(kept: torch.dtype):
    """The first of them sends the residual that an earlier plan has left as well."""
    before = plan_of(SLOTS, SPARSE, gw.Residual(dtype=kept), gw.AllGather())
    dense = plan_of(SLOTS, gw.FP16(), gw.NoMemory(), gw.AllReduce())
    onlookers = [Onlooker() for _ in range(2)]
    with job(before, SLOTS, 2) as alone, job(before, SLOTS, 2, controllers=onlookers) as seen:
        for running in (alone, seen):
            running.step(draw(SLOTS, 2, 0))
            running.install(dense)
        for number in range(1, 3):
            grads = draw(SLOTS, 2, number)
            means, others = alone.step(grads)[0], seen.step(grads)[0]
            assert all(torch.equal(a, b) for a, b in zip(means, others, strict=True))
            looked_at = onlookers[0].seen[number][0]
            assert looked_at == pytest.approx(float(sum(mean.double().sum() for mean in means)), abs=0.05)


def test_what_was_not_sent_survives_a_controllers_changes():
    running = controlled(2)
    given, sent = total(running.state("residual")), [torch.zeros(slot.shape).double() for slot in SLOTS]
    for number in range(8):
        grads = draw(SLOTS, 2, number, scale=1.0 + 5 * (number % 2))
        given = [g + t / 2 for g, t in zip(given, total(grads), strict=True)]
        sent = [s + mean.double() for s, mean in zip(sent, running.step(grads)[0], strict=True)]
    left = total(running.state("residual"))
    for g, s, r in zip(given, sent, left, strict=True):
        torch.testing.assert_close(s + r, g, rtol=1e-5, atol=1e-4)
    running.close()


def test_a_decision_costs_at_most_one_message_of_64_bytes():
    assert 4 * Thermostat.numbers <= 4 * MESSAGE_NUMBERS == 64
    with job(plan_with(SPARSE), SLOTS, 2) as plain:
        plain.step(draw(SLOTS, 2, 0))
        before = plain.runtimes[0].stats().wire_bytes
    running = controlled(2)
    running.step(draw(SLOTS, 2, 0))
    assert running.runtimes[0].stats().wire_bytes - before == 4 * (Thermostat.numbers + 1)
    running.close()


class Disagrees(gw.Controller):
    """On each rank another decision, as where one bit of a sum makes the difference; rank 0's counts."""

    def __init__(self, ratio: float | None) -> None:
        self.ratio = ratio

    def describe(self) -> str:
        return "Disagrees()"

    def decide(self, seen: gw.Observation) -> gw.Plan | None:
        return plan_with(gw.TopK(self.ratio)) if self.ratio else None


@pytest.mark.parametrize("ratios", [(0.1, 0.2, None), (None, 0.2, 0.3)])
def test_where_ranks_come_to_other_decisions_rank_0_decides(ratios: tuple[float | None, ...]):
    with job(plan_with(SPARSE), SLOTS, 3, controllers=[Disagrees(ratio) for ratio in ratios]) as running:
        for number in range(6):
            means = running.step(draw(SLOTS, 3, number))
            assert all(torch.equal(a, b) for other in means for a, b in zip(means[0], other, strict=True))
        expected = plan_with(gw.TopK(ratios[0]) if ratios[0] else SPARSE)
        assert [runtime.plan for runtime in running.runtimes] == [expected] * 3


class Turns(gw.Controller):
    """After every step another plan, and on each rank another one."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def decide(self, seen: gw.Observation) -> gw.Plan:
        return plan_with(gw.TopK(0.01 * (seen.step + 1 + 20 * self.rank)))


def test_rank_0s_decisions_do_not_pile_up_in_the_store():
    with job(plan_with(SPARSE), SLOTS, 2, controllers=[Turns(rank) for rank in range(2)]) as running:
        plans = set[gw.Plan]()
        for number in range(12):
            running.step(draw(SLOTS, 2, number))
            first, second = (runtime.plan for runtime in running.runtimes)
            assert first == second
            plans.add(first)
        assert len(plans) > 4
        store: Any = running.transports[0].store
        assert len([key for key in store._words if "change/" in key]) == 2


class Once(gw.Controller):
    """Another plan after the second step."""

    def __init__(self) -> None:
        self.told, self.seen = 0, list[int]()

    def decide(self, seen: gw.Observation) -> gw.Plan | None:
        self.seen.append(seen.step)
        if seen.step != 1:
            return None
        self.told = seen.next_step
        return plan_with(DENSER)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_decision_is_in_force_from_the_step_that_the_controller_was_told(lag: int):
    """With the lag of a GPU, too, whose sums come a step later; those of steps with the plan before are not seen."""
    controllers, plans = [Once(), Once()], []
    with job(plan_with(SPARSE), SLOTS, 2, controllers=controllers) as running:
        for runtime in running.runtimes:
            runtime._active._control._lag = lag
        for number in range(8):
            plans.append(running.runtimes[0].plan)
            running.step(draw(SLOTS, 2, number))
    first = plans.index(plan_with(DENSER))
    for controller in controllers:
        assert controller.told == first
        assert controller.seen == [0, 1, *range(first, 8 - lag)]


class Keeps(Once):
    def state_dict(self) -> dict[str, Tensor]:
        return {"replicas": torch.tensor(3)}


class KeepsNumbers(Once):
    def state_dict(self) -> dict[str, Tensor]:
        return {"steps": 3}  # pyright: ignore[reportReturnType]


class BeginsWithNothing(Once):
    def begin(self, plan: gw.Plan) -> gw.Plan:
        self.first = plan
        return None  # pyright: ignore[reportReturnType]


class BeginsNative(Once):
    def begin(self, plan: gw.Plan) -> gw.Plan:
        return gw.NATIVE


@pytest.mark.parametrize(
    ("controller", "why"),
    [
        (Keeps, r"^Keeps saves 'replicas', a name of Gradwire's own; give it another"),
        (KeepsNumbers, r"^KeepsNumbers\.state_dict\(\) returns \{'steps': 3\}, not tensors by name; write \{"),
        (BeginsWithNothing, r"^BeginsWithNothing\.begin\(\) returns None, no gw\.Plan; return the one to start with"),
        (BeginsNative, "^a native plan leaves reducing to DDP"),
    ],
)
def test_a_controller_that_cannot_begin_is_refused(controller: type[gw.Controller], why: str):
    with (
        pytest.raises(ValueError, match=why),
        job(plan_with(SPARSE), SLOTS, 2, controllers=[controller(), controller()]),
    ):
        pass


class Decides(gw.Controller):
    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def describe(self) -> str:
        return "Decides()"

    def decide(self, seen: gw.Observation) -> Any:
        return self.decision


def decide_on(decision: object, plan: gw.Plan) -> None:
    """Has all ranks decide on this after every step."""
    with job(plan, SLOTS, 2, controllers=[Decides(decision), Decides(decision)]) as running:
        for number in range(4):
            running.step(draw(SLOTS, 2, number))


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        ([SPARSE], r"\[TopK\(.*\)\] is no decision; return a gw\.Plan, or None to go on as before"),
        (gw.Plan(plan_with(SPARSE).groups[:1]), "the plan lacks the model's parameter"),
        (gw.NATIVE, "a native plan leaves reducing to DDP"),
        (gw.NativeRequest(1), "a native plan leaves reducing to DDP"),
    ],
    ids=["no plan", "part of the model", "native", "native steps"],
)
def test_a_decision_that_cannot_be_carried_out_names_the_controller(decision: object, why: str):
    with pytest.raises(RuntimeError, match=rf"^Decides\.decide\(\) failed on rank [01]: ValueError: {why}"):
        decide_on(decision, plan_with(SPARSE))


def test_a_decision_that_would_send_momentum_as_a_gradient_is_refused():
    dion = plan_of(SLOTS, gw.Dion(4), gw.Residual(), gw.AllReduce())
    with pytest.raises(RuntimeError, match=r"^Decides\.decide\(\) failed on rank [01]: .* is the momentum of Dion"):
        decide_on(plan_with(SPARSE), dion)


def test_a_decision_that_is_not_in_force_yet_is_saved():
    with job(plan_with(SPARSE), SLOTS, 2, controllers=[Once(), Once()]) as running:
        for number in range(2):
            running.step(draw(SLOTS, 2, number))
        assert running.runtimes[0].plan == plan_with(SPARSE)
        states = running.states()
    with job(plan_with(SPARSE), SLOTS, 2, controllers=[Once(), Once()]) as resumed:
        resumed.load(states)
        for number in range(2, 4):
            resumed.step(draw(SLOTS, 2, number))
        assert [runtime.plan for runtime in resumed.runtimes] == [plan_with(DENSER)] * 2


def test_a_decision_for_other_slots_is_dropped_with_them():
    names = [slot.name for slot in SLOTS]
    options = {"trained": names, "plan_for": lambda slots: plan_with(SPARSE).only({slot.name for slot in slots})}
    with job(plan_with(SPARSE), SLOTS, 2, controllers=[Once(), Once()], **options) as running:
        for number in range(2):
            running.step(draw(SLOTS, 2, number))
        controls = [runtime._active._control for runtime in running.runtimes]
        assert [control.decided for control in controls] == [plan_with(DENSER)] * 2
        running.follow(names[1:])
        assert [control.decided for control in controls] == [None] * 2
        assert [slot.name for slot in controls[0].slots] == names[1:]


def test_a_decision_that_is_not_in_force_yet_gives_way_to_a_users_plan():
    users = plan_with(gw.TopK(0.2))
    with job(plan_with(SPARSE), SLOTS, 2, controllers=[Once(), Once()]) as running:
        for number in range(2):
            running.step(draw(SLOTS, 2, number))
        assert running.runtimes[0]._active._control.decided == plan_with(DENSER)
        # one that is refused leaves it
        with pytest.raises(ValueError, match="lacks the model's parameter"):
            running.install(gw.Plan(users.groups[:1]))
        assert running.runtimes[0]._active._control.decided == plan_with(DENSER)
        running.install(users)
        for number in range(2, 5):
            running.step(draw(SLOTS, 2, number))
            assert [runtime.plan for runtime in running.runtimes] == [users] * 2


class StaysNative(gw.Controller):
    """Has the framework make one step by itself, and then all of them."""

    def decide(self, seen: gw.Observation) -> gw.Plan | gw.NativeRequest:
        return gw.NATIVE if seen.plan.native else gw.NativeRequest(1)


def test_native_steps_that_a_controller_has_timed_are_not_asked_for_again_after_a_resume():
    options = {"controllers": [StaysNative(), StaysNative()], "no_native": ""}
    with job(plan_with(SPARSE), SLOTS, 2, **options) as running:
        for number in range(2):
            running.step(draw(SLOTS, 2, number))

        def ends(rank: int) -> None:
            assert running.runtimes[rank].native_step_ended() == 0
            running.runtimes[rank].native_ended([0.1])

        raising(together(2, ends))
        states = running.states()
        assert [runtime.native_step_ended() for runtime in running.runtimes] == [None, None]
    with job(plan_with(SPARSE), SLOTS, 2, **options) as resumed:
        resumed.load(states)
        assert [runtime.plan for runtime in resumed.runtimes] == [gw.NATIVE] * 2
        assert [runtime.native_step_ended() for runtime in resumed.runtimes] == [None, None]


def test_a_controllers_plan_that_does_not_fit_is_refused_in_one_line():
    with job(plan_with(SPARSE), SLOTS, 2, controllers=[Once(), Once()]) as running:
        for number in range(2):
            running.step(draw(SLOTS, 2, number))
        # its groups have become too long
        with patch.object(group_checks, "LONGEST", 10), pytest.raises(Exception, match="takes fewer than 2") as error:
            _ = [running.step(draw(SLOTS, 2, number)) for number in range(2, 5)]
        assert "\n" not in str(error.value)


def test_a_controller_that_changes_every_ratio_moves_and_makes_nothing():
    class Changes(gw.Controller):
        """Another ratio as often as can be."""

        def decide(self, seen: gw.Observation) -> gw.Plan:
            return plan_of(wide, gw.TopK(0.01 + 0.0001 * seen.step), gw.Residual(), gw.AllGather())

    wide = slots_of({"a": torch.empty(512, 1024), "b": torch.empty(256, 1024)})
    plan = plan_of(wide, gw.TopK(0.01), gw.Residual(), gw.AllGather())
    with job(plan, wide, 2, controllers=[Changes(), Changes()]) as running:
        grads, plans, places = draw(wide, 2, 0), set(), set()
        store = running.runtimes[0]._steps.store
        for _ in range(42):  # what is decided in one step is in force in the next but one
            running.step(grads)
            plans.add(running.runtimes[0].plan)
            kept = [half for stored in store.groups for half in stored.flat["residual"]]
            buffers = [t for stored in store.groups for t in stored.buffers._tensors.values() if t.nbytes >= 1 << 20]
            places.add(tuple(sorted(tensor.data_ptr() for tensor in (*kept, *buffers))))
        assert len(plans) >= 20
        assert len(places) == 1


def test_a_state_is_saved_while_the_worker_carries_a_decision_out():
    class Carried(ControllerRunner):
        """A decision that is in force as soon as a rank has looked at it."""

        @property
        def decided(self) -> gw.Plan | None:
            return self.pending.pop() if self.pending else None

    control = object.__new__(Carried)
    control.pending, control.controller = [plan_with(DENSER)], Once()
    control._mesh, control._ranks_of_defaults = gw.Mesh.of(gw.Threads.group(1)[0]), 1
    state = control.export(plan_with(SPARSE), plan_with(SPARSE), None)
    assert change_from_json(text_of(state["decided"])) == plan_with(DENSER)


CONTROLLERS = {
    "WarmUp": lambda: gw.WarmUp(0.5, steps=4),
    "Accordion": lambda: gw.Accordion(0.1, 0.01, Schedule(), interval=3),
    "GraVAC": lambda: gw.GraVAC(2, 64, window=4),
    "ScaDLES": lambda: gw.ScaDLES(window=4),
    "CAT": lambda: gw.CAT(2, 64),
    "LGreCo": lambda: gw.LGreCo("seconds", 1.0, interval=2),
    "Auto": lambda: gw.Auto([gw.TopK(0.1)]),
}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_controller_has_nothing_of_the_job_before(name: str):
    """As after detach(), or in a notebook whose cell is run again."""
    controllers = [CONTROLLERS[name]() for _ in range(2)]
    plan = plan_with(gw.FP32() if name == "Auto" else gw.TopK(0.1))
    seen = []
    for _ in range(2):
        with job(plan, SLOTS, 2, controllers=controllers) as running:
            controller = controllers[0]
            assert not controller.decisions
            seen.append((controller.state_dict(), running.runtimes[0].plan, running.states()[0]["step"]))
            controller.report(1.0)
            for number in range(9):
                running.step(draw(SLOTS, 2, number))
            changed = controller.state_dict()
    (first, *rest), (again, *others) = seen
    assert rest == others
    torch.testing.assert_close(again, first, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(changed, first, rtol=0, atol=0, equal_nan=True)


@dataclass
class Own(gw.Controller):
    """A user's, which needs something once."""

    once: InitVar[list[int]]

    def __post_init__(self, once: list[int]) -> None:
        once.append(0)
        self.log: list[int] = []

    def decide(self, seen: gw.Observation) -> None:
        self.log.append(seen.step)


def test_a_controller_is_not_made_again_for_its_first_job():
    """What its user has set since it was made stays; a later job says what it cannot do."""
    made, log, plan = list[int](), list[int](), plan_with(SPARSE)
    controllers = [Own(made) for _ in range(2)]
    controllers[0].log = log
    with job(plan, SLOTS, 2, controllers=controllers) as running:
        running.step(draw(SLOTS, 2, 0))
    assert (made, log) == ([0, 0], [0])
    with pytest.raises(ValueError, match=r"^Own cannot be made again by its fields for another job") as error:
        Job(plan, SLOTS, 2, controllers=controllers)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith("; make a new one, or override restart()")


def test_a_controller_is_one_jobs_at_a_time():
    controllers, plan = [gw.WarmUp(0.5, steps=4) for _ in range(2)], plan_with(gw.TopK(0.1))
    with job(plan, SLOTS, 2, controllers=controllers) as first:
        first.step(draw(SLOTS, 2, 0))
        busy = "^this WarmUp controls another job; make one for each, or first call handle.detach\\(\\)$"
        with pytest.raises(ValueError, match=busy):
            Job(plan, SLOTS, 2, controllers=controllers)
        # which goes on as it was
        first.step(draw(SLOTS, 2, 1))
        assert controllers[0].state_dict()["done"] == 2
        # one that ends by an error has it no more
        for runtime in first.runtimes:
            runtime.fail(RuntimeError("as it may"))
        job_of_its_own = Job(plan, SLOTS, 2, controllers=controllers)
    # nor does one that was dropped
    del job_of_its_own
    Job(plan, SLOTS, 2, controllers=controllers).close()


def test_a_profiles_sample_of_means_has_no_scale_of_the_loss():
    slots, scale = slots_of(SMALL), 1024.0
    with job(gw.plans.uniform(slots, gw.FP32()), slots, 2, scale=lambda: scale) as running:
        control = running.runtimes[0]._steps.control
        control._tracing = tracing = Tracing(Mock(), Mock(), due=9)
        means = running.step([[scale * grad for grad in own] for own in draw(slots, 2, 0)])
        (sample,) = tracing.gradients
        by_name = dict(zip((slot.name for slot in slots), means[0], strict=True))
        assert sample
        assert all(torch.equal(found, by_name[name].flatten(1) / scale) for name, found in sample.items())
