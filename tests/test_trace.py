"""Recorded steps: every gradient, collective and wait of a real step, in order and inside it."""

import pytest
import torch
from harness import SMALL, draw, job, plan_of, raising, slots_of, together

import gradwire as gw
from gradwire.schedule.timeline import Timeline

SLOTS = slots_of(SMALL)
PLAN = plan_of(SLOTS, gw.TopK(0.2), gw.Residual(), gw.AllGather(), groups=3)


def traced(steps: int) -> list[list[Timeline]]:
    """The timelines of each of two ranks."""
    with job(PLAN, SLOTS, 2) as running:
        traces = [engine.trace(steps) for engine in running.engines]

        def train(rank: int) -> None:
            engine = running.engines[rank]
            for number in range(steps + 2):
                engine.forward_begins()
                engine.forward_ends()
                for slot, grad in enumerate(draw(SLOTS, 2, number)[rank]):
                    engine.give(slot, grad)
                engine.wait()

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


def test_a_trace_without_a_whole_step_says_so():
    with job(PLAN, SLOTS, 2) as running:
        trace = running.engines[0].trace(1)
        running.step(draw(SLOTS, 2, 0))
        with pytest.raises(ValueError, match="train one more"):
            trace.timelines()


def test_recording_changes_no_mean():
    def means(record: bool) -> list[torch.Tensor]:
        with job(PLAN, SLOTS, 2) as running:
            if record:
                running.engines[0].trace(2)
            for number in range(3):
                running.engines[0].forward_begins()
                last = running.step(draw(SLOTS, 2, number))[0]
            return last

    assert all(torch.equal(a, b) for a, b in zip(means(True), means(False), strict=True))
