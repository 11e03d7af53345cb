"""Timelines: spans of time on the lanes of a step."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any, Self

from gradwire.plans import Plan
from gradwire.schedule.candidate_names import describe
from gradwire.schedule.problem import GroupChoice, Problem
from gradwire.schedule.profile import Profile
from gradwire.schedule.regimes import Regime, Worker
from gradwire.schedule.search import timed_groups
from gradwire.schedule.work import Interval, SlowedBackward


@dataclass(frozen=True)
class Span:
    """Work on a lane, from `start_s` to `end_s` after the step began."""

    lane: str
    """"forward", "backward", "encode", "wire", "decode", "wait" or "optimizer"."""
    start_s: float
    end_s: float
    label: str
    """Its text in a picture."""
    group: int
    """Its index in the plan, -1 where there is none."""
    rank: int
    """The rank that did it."""
    wire_bytes: int = 0
    """Bytes that a collective sends."""
    slots: tuple[str, ...] = ()
    """The parameters that it is about."""


@dataclass(frozen=True)
class Timeline:
    """The spans of one step."""

    spans: tuple[Span, ...]

    @property
    def step_s(self) -> float:
        return max((span.end_s for span in self.spans), default=0.0)

    def to_data(self) -> list[list[Any]]:
        """As plain values for JSON; `from_data` reads it back."""
        return [list(astuple(span)) for span in self.spans]

    @classmethod
    def from_data(cls, spans: Sequence[Sequence[Any]]) -> Self:
        """The timeline whose `to_data` this is."""
        return cls(tuple(Span(*span[:-1], slots=tuple(span[-1])) for span in spans))


def timeline(profile: Profile, plan: Plan, regime: Regime | None = None) -> Timeline:
    """The predicted timeline of a step with `plan`, in the engine's regime unless another is given.

    Raises ValueError, naming it, for a slot or a candidate of the plan that was not profiled.
    """
    # play the groups through, beside backward
    groups = profile.choices(plan)
    works = timed_groups(problem := profile.problem(), groups)
    regime = regime or Worker(profile.contention)
    backward = SlowedBackward(regime.slow)
    intervals = [*regime.run(works, backward)]
    # the moments that follow: backward is over, all means are in place
    done = backward.at(float(problem.ready_s[-1]))
    reduced = max([done, *(interval.end_s for interval in intervals)])
    start, end = profile.forward_s, profile.forward_s + reduced
    spans = [
        Span("forward", 0.0, start, "forward", -1, 0),
        *_backward(profile, problem, backward),
        *(_span(profile, groups, interval) for interval in intervals),
        Span("wait", start + done, end, "wait for the means", -1, 0),
        Span("optimizer", end, end + profile.optimizer_s, "optimizer", -1, 0),
    ]
    return Timeline(tuple(spans))


def _backward(profile: Profile, problem: Problem, backward: SlowedBackward) -> list[Span]:
    """One span for each slot: from when the slot before it is ready to when it is."""
    ready = [profile.forward_s + backward.at(work_s) for work_s in (0.0, *problem.ready_s.tolist())]
    return [
        Span("backward", start, end, slot.name, -1, 0, slots=(slot.name,))
        for (start, end), slot in zip(pairwise(ready), profile.slots, strict=True)
    ]


def _span(profile: Profile, groups: tuple[GroupChoice, ...], interval: Interval) -> Span:
    group = groups[interval.group]
    # the problem's times begin where backward does
    return Span(
        interval.lane,
        profile.forward_s + interval.start_s,
        profile.forward_s + interval.end_s,
        describe(profile.candidates[group.option].way),
        interval.group,
        0,
        profile.wire_bytes(group) if interval.lane == "wire" else 0,
        tuple(profile.slots[i].name for i in group.slots),
    )
