"""Counting of steps that DDP makes by itself."""

from types import SimpleNamespace

from gradwire.frontends.native_steps import NativeSteps


def counted(lefts: list[int | None]) -> tuple[NativeSteps, list[float]]:
    """What is left after each step is `lefts`; also the medians that were passed on."""
    medians, steps, left = list[float](), NativeSteps(), iter(lefts)
    runtime = SimpleNamespace(native_step_ended=lambda: next(left), native_ended=medians.append)
    steps.begin()
    for _ in lefts:
        steps.reduced = True
        steps.count(runtime)  # pyright: ignore
        steps.count(runtime)  # a forward pass without a step: counts nothing  # pyright: ignore
    return steps, medians


def test_a_plan_that_stays_native_keeps_nothing_of_its_steps():
    """Each kept a number, for ever."""
    steps, medians = counted([None] * 100)
    assert not medians
    assert len(steps._seconds) == 0


def test_the_median_of_steps_that_were_asked_for_is_passed_on():
    steps, medians = counted([2, 1, 0, 1, 0])
    assert len(medians) == 2
    assert not steps._seconds
