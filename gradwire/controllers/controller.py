"""What a controller is: numbers that all ranks add up, and the plan that follows from their sum."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from gradwire.compressors import GroupContext
from gradwire.controllers.requests import Profiled, Request
from gradwire.ops.gradients import Share
from gradwire.ops.lazy_sum import LazySum
from gradwire.options import Options
from gradwire.plans import Group, Plan
from gradwire.slots import Slot

MESSAGE_NUMBERS = 16
RATE_DROP = 0.5


def rate_dropped(rate: float, before: float) -> bool:
    """Whether the learning rate has fallen to half of what it was, or below; rounding aside. A rate that falls from
    step to step drops now and then, not all the time."""
    return rate <= RATE_DROP * before * (1 + 1e-6) and before > 0


@dataclass(frozen=True)
class GroupView:
    """A group that this rank has just encoded. `nonfinite` (1,) is NaN where a gradient was not finite."""

    group: Group
    context: GroupContext
    nonfinite: Tensor


@dataclass(frozen=True)
class StepView:
    """What this rank knows of a step when all its groups are on their way: those that it compresses, and what was
    sent so far and how long collectives took, since the job began."""

    step: int
    groups: Sequence[GroupView]
    wire_bytes: int
    wire_s: float


@dataclass(frozen=True)
class Observation:
    """What a controller learns of a step: `sums` (numbers,) float32, on the CPU, over all ranks. The plan was in
    force in the step, and another one, decided on now, would be from step `next_step` on.

    `seconds` were the median step's where the framework reduced by itself. `answer` is that to a request; the plan has
    not changed meanwhile.
    """

    step: int
    next_step: int
    plan: Plan
    slots: Sequence[Slot]
    rank: int
    ranks: int
    replicas: int
    sums: Tensor
    can_be_native: bool = False
    seconds: float = 0.0
    answer: Profiled | None = None


@dataclass(frozen=True)
class Decision:
    """What a controller decided after `step` steps, for people to read. `factor` is how many times fewer elements
    were sent since the decision before, `gain` what of the gradients that let through, `throughput` gain per second."""

    step: int
    decision: str
    factor: float | None = None
    gain: float | None = None
    throughput: float | None = None


class Controller(Options, ABC):
    """Changes the plan between steps. `numbers` float32 values per rank and step, at most 16 (64 bytes), travel for it.

    On every rank `look` and `observe` write that rank's numbers, and `decide` makes of their sums what is to change.
    What rank 0 decided is then told to all and is in force on all from the same step on; a step or a few pass
    meanwhile, of which nothing is shown. So ranks whose arithmetic differs by a bit do not part ways.

    All but `report`-like methods of its own run on the runtime's thread. Nothing here may wait for a GPU.
    """

    numbers: ClassVar[int] = 0
    looks: ClassVar[bool] = False
    reduces: ClassVar[bool] = False

    def check(self, plan: Plan) -> None:
        """Raises ValueError, naming the call that works, where the plan's compressors do not give what this needs."""

    def describe(self) -> str:
        """Its class and settings, the same on all ranks; what is code, such as a scheduler, left out."""
        known = fields(self) if is_dataclass(self) else ()
        plain = [field.name for field in known if "code" not in field.metadata]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in plain)})"

    def begin(self, plan: Plan) -> Plan:
        """The plan to start with, instead of the user's `plan`; asked once more when the order of gradients is known,
        and where a user replans or resumes."""
        return plan

    @property
    def status(self) -> str:
        """What it is doing, in a few words, where that is worth saying."""
        return ""

    @cached_property
    def decisions(self) -> list[Decision]:
        """All decisions so far, or since they were last removed; not part of the state."""
        return []

    def look(self, context: GroupContext, vector: LazySum, numbers: Tensor) -> None:
        """Where `looks`: sees each group before it is encoded, gradient and residual x (n,) = `vector.total()`. Asking
        for it takes a pass over memory, which the kernels would do while they encode."""

    def observe(self, seen: StepView, numbers: Tensor) -> None:
        """Writes this rank's `numbers` (numbers,), or adds to what `look` has written."""

    def reduced(self, means: Mapping[str, Tensor], nonfinite: Tensor, scale: Share) -> None:
        """Where `reduces`: sees the step's means by parameter, times the loss's `scale`, before the optimizer does.
        They are equal on all ranks; nothing is to be made of them where `nonfinite` (1,) is NaN."""

    @abstractmethod
    def decide(self, seen: Observation) -> Plan | Request | None:
        """What is to be done from `seen.next_step` on: follow another plan, find something out, or go on as it is."""

    def state_dict(self) -> dict[str, Tensor]:
        """All that the next decision depends on, equal on all ranks."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes over what `state_dict` returned."""
