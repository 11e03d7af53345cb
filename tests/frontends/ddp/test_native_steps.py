"""Counting of steps that DDP makes by itself."""

from types import SimpleNamespace
from typing import Any

import pytest

import gradwire as gw
from gradwire.controllers.requests import change_from_json, change_to_json
from gradwire.frontends.ddp.native_steps import NativeSteps
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.plan.active_plan import ActivePlan


class Event:
    """A moment of a GPU that takes 100 ms a step, for which nothing may wait while steps go on."""

    may_wait = False

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def synchronize(self) -> None:
        assert Event.may_wait

    def elapsed_time(self, end: "Event") -> float:
        return 1e3 * (end.at_s - self.at_s)


def counted(lefts: list[int | None]) -> tuple[NativeSteps, list[list[float]]]:
    """What is left after each step is `lefts`; also the seconds that were passed on. The host takes no time."""
    passed_on, steps, left, ran = list[list[float]](), NativeSteps(), iter(lefts), 0
    runtime: Any = SimpleNamespace(
        native_step_ended=lambda: next(left), native_ended=passed_on.append, record_event=lambda: Event(0.1 * ran)
    )
    steps.begin(runtime)
    for each in lefts:
        ran, Event.may_wait = ran + 1, each == 0
        steps.reduces(runtime)
        for _ in range(2):  # a forward pass without a step changes nothing
            steps.forward_begins(runtime)
    assert not [*left]
    return steps, passed_on


def test_a_plan_that_stays_native_keeps_nothing_of_its_steps():
    """Each kept a number, for ever."""
    steps, passed_on = counted([None] * 100)
    assert not passed_on
    assert len(steps._begins) == 1


def test_the_steps_that_were_asked_for_are_passed_on():
    steps, passed_on = counted([2, 1, 0, 1, 0])
    assert [len(each) for each in passed_on] == [3, 2]
    assert len(steps._begins) == 1


def test_steps_take_as_long_as_on_the_device():
    """The host's clock saw the time that it takes to queue a step: "steps take 5 ms, not 100 ms any more"."""
    _, passed_on = counted([2, 1, 0, 1, 0])
    assert passed_on == [pytest.approx([0.1] * 3), pytest.approx([0.1] * 2)]


def test_steps_after_those_that_were_asked_for_keep_nothing():
    """A controller that decided on nothing."""
    steps, _ = counted([0, -1, -2, -3])
    assert len(steps._begins) == 1


def test_steps_that_settle_do_not_count():
    """The first has DDP make its buckets anew: other plans' turns leave it out, and DDP's counted it."""
    applied, request = [], gw.NativeRequest(4, settle=1)
    control: Any = SimpleNamespace(native_ended=lambda step, plan, seconds: applied.append(seconds))
    active: Any = ActivePlan.__new__(ActivePlan)
    active._control, active._steps, active._options = control, SimpleNamespace(number=1), JobOptions(no_native="")
    active._install_decided = lambda plan: None
    active.plan = gw.NATIVE
    active._apply(request)
    for _ in range(4):
        active.native_step_ended()
    active.native_ended([9.0, 1.0, 5.0, 2.0])
    assert applied == [2.0]


def test_a_request_survives_json():
    for request in (gw.NativeRequest(4, settle=1), gw.NativeRequest(3)):
        assert change_from_json(change_to_json(request)) == request
    assert change_from_json('{"native": 3}') == gw.NativeRequest(3)  # of a version before


def test_a_request_that_leaves_no_step_to_time_is_refused():
    with pytest.raises(ValueError, match="of 2 steps 2 settle, so none is timed"):
        gw.NativeRequest(2, settle=2)
