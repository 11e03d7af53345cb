"""Steps with a chosen plan: when they have changed, and when the plan is compared again."""

import pytest

from gradwire.tuner.watch import LOOK_AFTER, PATIENCE, WINDOW, StepTimeMonitor


@pytest.mark.parametrize("seconds", [2.0, 0.5])
def test_longer_and_shorter_steps_are_a_change_after_so_many_windows_in_turn(seconds: float):
    watch = StepTimeMonitor(expected_s=1.0)
    # a window as expected between two others: not in turn
    for own in (seconds, 1.0, *[seconds] * (PATIENCE - 1)):
        assert watch.add(own, whole=True)
        assert not watch.has_changed
    for _ in range(WINDOW - 1):
        assert not watch.add(seconds, whole=False)
    assert watch.add(seconds, whole=False)
    assert watch.has_changed


def test_steps_that_were_never_as_in_the_trials_are_no_change_but_what_is_expected():
    """On a GPU trials timed steps that were not recorded: the plan was chosen again, and again, for ever."""
    watch = StepTimeMonitor(expected_s=0.142)
    for _ in range(10):
        watch.add(0.063, whole=True)
        assert not watch.has_changed
    assert watch.expected_s == 0.063
    for _ in range(PATIENCE):
        watch.add(0.142, whole=True)
    assert watch.has_changed


def test_one_window_that_the_machine_made_slow_is_not_what_is_expected():
    watch = StepTimeMonitor(expected_s=1.0)
    for own in (2.0, *[1.0] * 5):
        watch.add(own, whole=True)
    assert watch.expected_s == 1.0


def test_before_each_next_comparison_twice_as_many_steps_pass():
    watch, looks = StepTimeMonitor(), []
    for _ in range(3):
        begun = watch.look_at
        watch = watch.after(begun, expected_s=1.0, close=True)
        assert not watch.is_due(watch.look_at - 1)
        assert watch.is_due(watch.look_at)
        looks.append(watch.look_at - begun)
    assert looks == [LOOK_AFTER, 2 * LOOK_AFTER, 4 * LOOK_AFTER]
    assert not watch.after(0, expected_s=1.0, close=False).is_due(1 << 40)
