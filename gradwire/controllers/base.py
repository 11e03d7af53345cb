"""What a controller is: numbers that all ranks add up, and the plan that follows from their sum."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors import State
from gradwire.layout import Slot
from gradwire.plan import Plan
from gradwire.stats import Stats
from gradwire.trace import Trace
from gradwire.transports import Transport

MESSAGE_NUMBERS = 16
RATE_DROP = 0.5


def rate_dropped(rate: float, before: float) -> bool:
    """Whether the learning rate has fallen to half of what it was, or below; rounding aside. A rate that falls from
    step to step drops now and then, not all the time."""
    return rate <= RATE_DROP * before * (1 + 1e-6) and before > 0


@dataclass(frozen=True)
class Step:
    """What a controller sees of the step that is about to end.

    `states` are those of the plan's groups, as far as this rank compresses them (with hierarchical transports,
    the leaders do): where a group has a memory, `flat["x"]` is still gradient and residual before anything was
    taken out. `means()` are the reduced gradients by parameter, equal on all ranks, and `stats()` this rank's
    totals: for `decide` alone, when they are there. In `decide` the `transport` is idle; what runs on it must run on
    all ranks alike. `record(steps)` traces the steps that follow. `may_stand_aside` says whether who hands over
    gradients can also reduce them without the engine.
    """

    number: int
    plan: Plan
    ranks: int
    states: Sequence[State]
    means: Callable[[], dict[str, Tensor]]
    stats: Callable[[], Stats]
    slots: Sequence[Slot]
    transport: Transport
    device: torch.device
    record: Callable[[int], Trace]
    may_stand_aside: bool = False


@dataclass(frozen=True)
class Decision:
    """What a controller decided after `step` steps, for people to read. `factor` is how many times fewer elements
    were sent since the decision before, `gain` what of the gradients that let through, `throughput` gain per second."""

    step: int
    decision: str
    factor: float | None = None
    gain: float | None = None
    throughput: float | None = None


class Controller(ABC):
    """Changes the plan between steps, in force at the same step on all ranks because it follows from sums that all
    have. `numbers` float32 values per rank and step, at most 16 (64 bytes), travel for it; with 0 nothing does.

    Runs on the engine's thread, while training waits for the step's means.
    """

    numbers: ClassVar[int] = 0
    aside: int = 0
    """For so many steps from now on gradients are reduced without the engine, where `Step.may_stand_aside`. Then
    `decide` is asked again; its sums are those of the median step's seconds and of 1."""

    def check(self, plan: Plan) -> None:  # noqa: B027
        """Raises ValueError, naming the call that works, where the plan's compressors do not give what this needs."""

    def begin(self, plan: Plan) -> Plan:
        """The plan to start with, instead of the user's `plan`; asked once more when the order of gradients is known,
        and where a user replans or resumes."""
        return plan

    @cached_property
    def decisions(self) -> list[Decision]:
        """All decisions so far, or since they were last removed; not part of the state."""
        return []

    def observe(self, step: Step, numbers: Tensor) -> None:  # noqa: B027
        """Writes this rank's `numbers` (numbers,); called when all groups are encoded and on their way."""

    @abstractmethod
    def decide(self, step: Step, sums: Tensor) -> Plan | None:
        """The plan from the next step on, or None to go on as it is. `sums` (numbers,) on the CPU are over all ranks;
        nothing that differs between ranks may enter."""

    def state_dict(self) -> dict[str, Tensor]:
        """All that the next decision depends on, equal on all ranks."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Takes over what `state_dict` returned."""
