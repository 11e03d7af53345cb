"""What happens when in a step: spans on lanes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Something that takes time, from `start_s` to `end_s` after the step began.

    `lane` is one of "forward", "backward", "encode", "wire", "decode", "wait" and "optimizer"; `group` is the group's
    place in the plan, -1 where there is none.
    """

    lane: str
    start_s: float
    end_s: float
    label: str
    group: int
    rank: int
    wire_bytes: int = 0
    slots: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timeline:
    """The spans of one step."""

    spans: tuple[Span, ...]

    @property
    def step_s(self) -> float:
        """When the last span ends."""
        return max((span.end_s for span in self.spans), default=0.0)
