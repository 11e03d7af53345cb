"""Recorded steps: every gradient, collective and wait of a real step, in order and inside it."""

from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import profile

import gradwire as gw
from gradwire.runtime.trace import BATCH, EVERY, Clock, RecordedSpan, Recorder, Trace
from gradwire.runtime.worker.events import EPOCH
from gradwire.runtime.worker.events import HostEvent as at
from gradwire.runtime.worker.executor import Executor
from gradwire.schedule.timeline import Timeline
from gradwire.torch_private import profiling
from tests.support.harness import SMALL, draw, hand_over, job, plan_of, raising, slots_of, together

SLOTS = slots_of(SMALL)
PLAN = plan_of(SLOTS, gw.TopK(0.2), gw.Residual(), gw.AllGather(), groups=3)


def traced(steps: int) -> list[list[Timeline]]:
    """The timelines of each of two ranks."""
    with job(PLAN, SLOTS, 2) as running:
        traces = [runtime.trace(steps) for runtime in running.runtimes]

        def train(rank: int) -> None:
            runtime = running.runtimes[rank]
            for number in range(steps + 2):
                runtime.open_step()
                runtime.forward_begins()
                runtime.forward_ends()
                hand_over(runtime, draw(SLOTS, 2, number)[rank])
                runtime.finish()

        raising(together(2, train))
        return [trace.timelines() for trace in traces]


def test_a_traced_step_has_every_gradient_and_every_collective():
    for rank, timelines in enumerate(traced(2)):
        assert len(timelines) == 2
        for timeline in timelines:
            of = {
                lane: [s for s in timeline.spans if s.lane == lane] for lane in ("backward", "wire", "wait", "forward")
            }
            assert [span.slots for span in of["backward"]] == [(slot.name,) for slot in SLOTS]
            assert [span.group for span in of["wire"]] == [0, 1, 2]
            assert [span.slots for span in of["wire"]] == [group.slots for group in PLAN.groups]
            assert all(span.wire_bytes > 0 for span in of["wire"])
            assert len(of["forward"]) == len(of["wait"]) == 1
            assert all(0 <= s.start_s <= s.end_s <= timeline.step_s and s.rank == rank for s in timeline.spans)


def test_turns_are_ranges_in_torchs_profiler():
    """Of the worker's thread, which the profiler looks at where it is asked to."""
    with job(PLAN, SLOTS, 2) as running:
        with profile(experimental_config=_ExperimentalConfig(profile_all_threads=True)) as profiled:
            running.step(draw(SLOTS, 2, 0))
        running.step(draw(SLOTS, 2, 1))
    names = Counter(event.name for event in profiled.events() if event.name.startswith("gradwire"))
    codec = "TopK(ratio=0.2, value_bits=32)"
    assert names == {f"gradwire: turn {turn} of group {i}, {codec}": 2 for i in range(3) for turn in range(2)}


def test_without_a_profiler_no_range_is_made(monkeypatch: pytest.MonkeyPatch):
    """A range costs as much as ten launches."""
    monkeypatch.delattr(profiling.profiler, "record_function")
    with job(PLAN, SLOTS, 2) as running:
        running.step(draw(SLOTS, 2, 0))


def test_a_trace_without_a_whole_step_says_so():
    with job(PLAN, SLOTS, 2) as running:
        trace = running.runtimes[0].trace(1)
        running.step(draw(SLOTS, 2, 0))
        with pytest.raises(ValueError, match="train one more"):
            trace.timelines()


def test_a_trace_that_begins_beside_another_takes_nothing_from_it():
    """A user's while the automatic plan traces, which ended the job on all ranks."""
    executor = Executor(torch.device("cpu"))
    recorder = Recorder(executor, 0)
    traces: list[Trace] = []
    for number in range(5):
        if number in (0, 1):
            traces.append(recorder.trace(steps=2))
        recorder.forward_begins(PLAN)
        recorder.forward_ends()
        recorder.gradient_ready("scale", 0)
        recorder.add("wire", recorder.now(), 0, "Gather", 600)
        assert recorder.traces is (number < 3)
    executor.close()
    first, second = (trace.timelines() for trace in traces)
    assert [len(first), len(second)] == [2, 2]
    lanes = {"forward", "backward", "wire", "optimizer"}
    assert all({span.lane for span in step.spans} == lanes for step in (*first, *second))


@pytest.mark.parametrize("begun", [False, True], ids=["after a step", "after a forward pass"])
def test_steps_of_the_framework_are_no_part_of_a_trace(begun: bool):
    trace = Trace(0, 2)
    assert told(trace, 0)
    if begun:
        # the plan became native behind it, at its first gradient
        trace.forward_begins(at(10), PLAN)
        trace.forward_ends(at(11))
    spans = []
    for start in (20, 30, 40):
        trace.forward_begins(at(start), gw.NATIVE)
        trace.forward_ends(at(start + 2))
        spans.append(len(trace._spans))
    assert len(set(spans)) == 1
    assert [timeline.step_s for timeline in trace.timelines()] == [10 if begun else 20]
    assert told(trace, 50)
    assert not told(trace, 60)
    first, second = trace.timelines()
    assert second.step_s == 10
    assert Counter(span.lane for span in first.spans) == Counter(span.lane for span in second.spans)


def test_recording_changes_no_mean():
    def means(record: bool) -> list[torch.Tensor]:
        with job(PLAN, SLOTS, 2) as running:
            if record:
                running.runtimes[0].trace(2)
            for number in range(3):
                running.runtimes[0].forward_begins()
                last = running.step(draw(SLOTS, 2, number))[0]
            return last

    assert all(torch.equal(a, b) for a, b in zip(means(True), means(False), strict=True))


def told(trace: Trace, start: float) -> bool:
    """One step of 10 seconds as front end and engine tell of it; whether there is more to record."""
    trace.forward_begins(at(start), PLAN)
    trace.forward_ends(at(start + 2))
    more = [trace.gradient_ready(name, 0, at(start + 3 + index)) for index, name in enumerate(PLAN.groups[0].slots[:2])]
    trace.add(RecordedSpan("wire", at(start + 4), at(start + 7), 0, "Gather", 600))
    trace.add(RecordedSpan("wait", at(start + 4), at(start + 8)))
    trace.add(RecordedSpan("decode", at(start + 8), at(start + 10.5)))
    return all(more)


def test_a_step_lasts_until_the_next_one_begins():
    trace = Trace(3, 1)
    told(trace, 100.0)
    trace.forward_begins(at(110.0), PLAN)
    (timeline,) = trace.timelines()
    assert [(s.lane, s.start_s, s.end_s, s.rank) for s in timeline.spans] == [
        ("forward", 0, 2, 3),
        ("backward", 2, 3, 3),
        ("backward", 3, 4, 3),
        ("wire", 4, 7, 3),
        ("wait", 4, 8, 3),
        ("decode", 8, 10, 3),
        ("optimizer", 8, 10, 3),
    ]


class Later:
    """An executor of a GPU, whose clock goes on by a second at each mark."""

    is_immediate = False

    def __init__(self):
        self.marks = 0

    def record_event(self) -> at:
        self.marks += 1
        return at(self.marks)


def test_on_a_gpu_one_step_of_some_stands_for_all():
    executor: Any = Later()
    recorder = Recorder(executor, 0)
    for number in range(3 * EVERY):
        recorder.step_begins(is_timed=number == EVERY + 3)
        recorder.add("encode", recorder.now(), 0)
    # all of the first, then one for each EVERY, and one that was asked for
    assert executor.marks == 2 * (EVERY + 2 + 1)
    assert recorder.totals() == {"encode": pytest.approx(3 * EVERY)}
    # a trace has all
    recorder.trace(2)
    for _ in range(2):
        recorder.step_begins(is_timed=False)
        recorder.add("encode", recorder.now(), 0)
    assert executor.marks == 2 * (EVERY + 2 + 1 + 2)
    assert recorder.totals() == {"encode": pytest.approx(3 * EVERY + 2)}


class Pending(at):
    """A moment to which the GPU has not come yet."""

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        raise AssertionError("the thread waits for the GPU")


def test_spans_are_read_as_they_end_and_no_step_waits_for_them():
    clock = Clock()
    for second in range(10 * BATCH):
        clock.add("wire", at(second), at(second + 1))
        assert len(clock._open) <= BATCH, "events that are kept for ever"
    for second in range(2 * BATCH):
        clock.add("wire", at(second), Pending(second + 1))
    assert clock.so_far("wire") == 10 * BATCH


def test_on_a_gpu_the_wait_of_each_step_is_timed_and_stands_for_itself():
    executor: Any = Later()
    recorder = Recorder(executor, 0)
    for _ in range(3 * EVERY):
        recorder.step_begins(is_timed=False)
        recorder.add("encode", recorder.now(), 0)
        recorder.waited(recorder.record_event())
    assert recorder.totals() == {"encode": pytest.approx(3 * EVERY), "wait": pytest.approx(3 * EVERY)}


def test_on_a_gpu_totals_may_be_compared_after_any_steps():
    """Six steps after the first eleven take six seconds, though the last of them stands for sixteen."""
    executor: Any = Later()
    recorder = Recorder(executor, 0)
    seconds = [0.0]
    for _ in range(3 * EVERY):
        recorder.step_begins(is_timed=False)
        recorder.add("encode", recorder.now(), 0)
        seconds.append(recorder.totals()["encode"])
    assert seconds == [pytest.approx(step) for step in range(3 * EVERY + 1)]


def step_of(recorder: Recorder, seconds: float, is_timed: bool = False) -> float:
    """A step whose encoding takes so many seconds; returns the total behind it."""
    recorder.step_begins(is_timed)
    if recorder.now() is not EPOCH:
        recorder.add("encode", at(recorder.record_event() + 1 - seconds), 0)
    return recorder.totals()["encode"]


def test_on_a_gpu_a_slow_first_step_counts_once():
    executor: Any = Later()
    recorder = Recorder(executor, 0)
    seconds = [300.0, 3.0, 3.0, 3.0, 3.0, *(2 * EVERY - 5) * [1.0]]
    totals = [step_of(recorder, each) for each in seconds]
    assert totals == pytest.approx(list(accumulate(seconds)))


def test_on_a_gpu_totals_never_fall_and_a_step_under_way_halves_none():
    executor: Any = Later()
    recorder = Recorder(executor, 0)
    totals = [0.0]
    # a slow step among those that stand for others, quick ones behind it, and one that a controller asked for
    for number in range(5 * EVERY):
        seconds = 100.0 if number == 2 * EVERY else 1.0
        if number == 4 * EVERY:  # one that begins in the middle of a reading
            recorder.step_begins(False)
            totals.append(recorder.totals()["encode"])
            assert totals[-1] == totals[-2]
        else:
            totals.append(step_of(recorder, seconds, is_timed=number == 3 * EVERY + 4))
    assert totals == sorted(totals)


def test_a_trace_ends_by_itself_after_its_steps():
    trace = Trace(0, 2)
    assert [told(trace, start) for start in (0.0, 10.0, 20.0)] == [True, True, False]
    trace.forward_begins(at(30.0), PLAN)
    assert len(trace.timelines()) == 2


def test_passes_that_only_accumulate_belong_to_the_step():
    trace = Trace(0, 1)
    for start in (0.0, 3.0):
        trace.forward_begins(at(start), PLAN)
        trace.forward_ends(at(start + 1))
    trace.gradient_ready("scale", 0, at(6.0))
    trace.forward_begins(at(7.0), PLAN)
    lanes = [(s.lane, s.start_s, s.end_s) for s in trace.timelines()[0].spans]
    passes = [("forward", 0, 1), ("backward", 1, 3), ("forward", 3, 4), ("backward", 4, 6)]
    assert lanes == [*passes, ("optimizer", 7, 7)], "nothing was waited for"


def test_what_was_under_way_when_a_trace_began_is_left_out():
    trace = Trace(0, 1)
    trace.forward_ends(at(1.0))
    trace.gradient_ready("scale", 0, at(2.0))
    trace.add(RecordedSpan("encode", at(2.0), at(3.0), 0))
    told(trace, 10.0)
    trace.forward_begins(at(20.0), PLAN)
    assert len(trace.timelines()[0].spans) == 7


def test_a_step_has_the_plan_that_came_between_its_passes():
    """`handle.replan()` may be called there."""
    fewer, more = (plan_of(SLOTS, gw.TopK(0.2), gw.Residual(), gw.AllGather(), groups=count) for count in (1, 3))
    with job(fewer, SLOTS, 2) as running:
        traces = [runtime.trace(1) for runtime in running.runtimes]

        def train(rank: int) -> None:
            runtime = running.runtimes[rank]
            for number in range(3):
                runtime.forward_begins()
                runtime.forward_ends()
                if number == 0:
                    runtime.install(more)
                runtime.open_step()
                hand_over(runtime, draw(SLOTS, 2, number)[rank])
                runtime.finish()

        raising(together(2, train))
        for (timeline,) in (trace.timelines() for trace in traces):
            assert [s.slots for s in timeline.spans if s.lane == "wire"] == [group.slots for group in more.groups]
