"""The interface of controllers: numbers that are summed over all ranks, and the plan that follows from the sums."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import ClassVar, Protocol

from torch import Tensor

from gradwire.compressors import Compressor, GroupContext
from gradwire.controllers.recompress import Defaults
from gradwire.controllers.requests import Request
from gradwire.ops.gradients import Scalar
from gradwire.ops.lazy_sum import LazySum
from gradwire.options import Options, one_line
from gradwire.plans import Group, Plan
from gradwire.schedule import Profile
from gradwire.slots import Slot

MESSAGE_NUMBERS = 16
"""The most float32 values that travel for a controller, per rank and step."""
RATE_DROP = 0.5
"""A learning rate that falls to so much of what it was has dropped."""


class Scheduler(Protocol):
    """An optimizer's learning rate scheduler."""

    def get_last_lr(self) -> Sequence[float | Tensor]: ...


def check_scheduler(scheduler: object) -> None:
    """Raises ValueError for what has no learning rate to tell."""
    # not by the protocol, which from Python 3.12 on does not see what a wrapper hands on by __getattr__
    if scheduler is not None and not callable(getattr(scheduler, "get_last_lr", None)):
        raise ValueError(
            f"scheduler={one_line(scheduler)} has no get_last_lr(); pass torch.optim.lr_scheduler.StepLR(optimizer, 30)"
        )


def rate_dropped(rate: float, before: float) -> bool:
    """Whether the learning rate has fallen to half of what it was, or below; rounding aside. A rate that falls from
    step to step drops now and then, not all the time."""
    return rate <= RATE_DROP * before * (1 + 1e-6) and before > 0


@dataclass(frozen=True)
class GroupView:
    """A group that this rank has just encoded."""

    group: Group
    context: GroupContext
    nonfinite: Tensor
    """(1,) NaN where a gradient was not finite, else 0."""


@dataclass(frozen=True)
class StepView:
    """This rank's view of a step whose groups are all encoded."""

    step: int
    groups: Sequence[GroupView]
    """The groups that this rank compresses."""
    wire_bytes: int
    """Sent since the job began."""
    wire_s: float
    """Seconds of collectives since the job began; on a GPU an estimate, from one step of 16, unless the controller
    `times` every step."""
    unrecorded: bool = False
    """On a GPU: some group is still to be recorded, so that later steps will take less time."""


@dataclass(frozen=True)
class Observation:
    """The input of a controller's decision after a step."""

    step: int
    next_step: int
    """The first step with the new plan."""
    plan: Plan
    """In force in the step."""
    slots: Sequence[Slot]
    """Of the model, or of this rank's shards."""
    rank: int
    """Of this process."""
    ranks: int
    """Of the job."""
    replicas: int
    """Ranks that compress among each other."""
    sums: Tensor
    """Of the controller's numbers over all ranks, (numbers,) float32 on the CPU."""
    can_be_native: bool = False
    """The framework can reduce by itself: see `NATIVE`."""
    seconds: float = 0.0
    """Of the median step where the framework reduced by itself."""
    answer: Profile | None = None
    """To a request; the plan has not changed meanwhile."""
    taken: int = 0
    """The steps before it that count: `GroupContext.step`, as `look` saw it. A step that no rank takes has the number
    of the next one."""


@dataclass(frozen=True)
class Decision:
    """Record of a controller's decision after `step` steps."""

    step: int
    decision: str
    factor: float | None = None
    """How many times fewer elements were sent since the decision before."""
    gain: float | None = None
    throughput: float | None = None
    """Gain per second."""


class Controller(Options, ABC):
    """Changes the plan between steps, by numbers that are summed over the ranks.

    On every rank `look` and `observe` write that rank's numbers, and `decide` makes a plan from their sums. Rank 0's
    decision holds for all ranks from the same step on; the controller does not see the step or
    few that pass meanwhile. So ranks whose arithmetic differs by a bit stay together.

    All but `report`, and methods like it, run on the runtime's thread. `look` and `decide` may wait for a GPU in a few
    steps, which then take longer; nothing else may.
    """

    numbers: ClassVar[int] = 0
    """How many float32 values travel for it per rank and step, at most 16 (64 bytes)."""
    looks: ClassVar[bool] = False
    """`look` is called."""
    reduces: ClassVar[bool] = False
    """`reduced` is called."""
    times: ClassVar[bool] = False
    """`StepView.wire_s` is measured in every step."""
    chosen: ClassVar[bool] = True
    """It has settled on a plan, as one that searches for none always has."""
    _defaults = Defaults()

    def meet(self, slots: Sequence[Slot], replicas: int) -> None:
        """Called once for each job, before all else, with the slots that plans are for and the number of ranks that
        compress among each other, from which default communicators follow."""
        # not before its first job
        if "_defaults" in vars(self):
            self.restart()
            vars(self).pop("decisions", None)
        self._defaults = Defaults(slots, replicas)

    def restart(self) -> None:
        """Forgets all of a job before. A dataclass is made again by its options; a class that is none, or that keeps
        more than these, overrides it. Raises ValueError where its options do not suffice."""
        if is_dataclass(self):
            # by the dataclass's own __init__, for a subclass may have another
            made = next(cls for cls in type(self).__mro__ if "__dataclass_fields__" in vars(cls))
            options = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
            try:
                made.__init__(self, **options)
            except TypeError as error:
                name, why = type(self).__name__, f"by its fields for another job ({error})"
                raise ValueError(f"{name} cannot be made again {why}; make a new one, or override restart()") from error

    def changed(self, before: Plan, plan: Plan) -> dict[str, tuple[Group, Group]]:
        """By name the groups, in both plans, of parameters that the user sends in another way in `plan`."""
        return self._defaults.changed(before, plan)

    def for_these_ranks(self, ranks: int, origin: Plan, own: Plan) -> Callable[[Plan], Plan]:
        """A function that adapts plans to the number of ranks here. They were made from `origin` for `ranks` ranks; a
        communicator that was the default there becomes the default here. The user's plan here is `own`, in which
        nothing has `changed` from `origin`."""
        return self._defaults.for_these_ranks(ranks, origin, own)

    def check(self, plan: Plan) -> None:
        """Raises ValueError, naming the call that works, where the plan's compressors do not fit this controller."""

    def describe(self) -> str:
        """Its class and settings, the same on all ranks; without fields that are code, such as a scheduler."""
        known = fields(self) if is_dataclass(self) else ()
        plain = [field.name for field in known if "code" not in field.metadata]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in plain)})"

    def begin(self, plan: Plan) -> Plan:
        """The plan to start with, instead of the user's `plan`; called once more when the order of gradients is known,
        where a user replans or resumes, and for other parameters: what was measured was of the plan before."""
        return plan

    def may_send(self) -> Iterable[Compressor]:
        """What its plans may have after `begin`, beside the compressors of the user's plan and of the first one. Ranks
        whose arithmetic would part them are refused by all of these before the first step."""
        return ()

    @property
    def status(self) -> str:
        """Its present activity in a few words, or ""."""
        return ""

    @property
    def account(self) -> str:
        """An account of how it has chosen the plan, in lines, or ""."""
        return ""

    @cached_property
    def decisions(self) -> list[Decision]:
        """All decisions of this job so far, or since they were last removed; not part of the state. A quorum, or an
        elastic job that meets anew, begins another job."""
        return []

    def report(self, loss: float | Tensor) -> None:
        """Notes a step's training loss, where the training loop gives it."""

    def look(self, context: GroupContext, vector: LazySum, numbers: Tensor) -> None:
        """Called with each group before it is encoded, if `looks`: gradient and residual are x (n,) = `vector.total()`,
        which costs a pass over memory that encoding would spare."""

    def observe(self, seen: StepView, numbers: Tensor) -> None:
        """Writes this rank's `numbers` (numbers,), or adds to what `look` has written."""

    def reduced(self, means: Mapping[str, Tensor], nonfinite: Tensor, scale: Scalar) -> None:
        """Called with the step's means by parameter, times the loss's `scale`, before the optimizer, if `reduces`. They
        are equal on all ranks, and do not count where `nonfinite` (1,) is NaN."""

    @abstractmethod
    def decide(self, seen: Observation) -> Plan | Request | None:
        """The plan or request for `seen.next_step` and after; None to go on as before."""

    def state_dict(self) -> dict[str, Tensor]:
        """The state that the next decision depends on, equal on all ranks; not under Gradwire's own names: "plan",
        "origin", "replicas", "native" and "decided"."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Loads what `state_dict` returned."""


def check_numbers(controller: Controller | None) -> None:
    """Raises ValueError where more numbers are to travel for a controller than its message holds."""
    if controller and not 0 <= controller.numbers <= MESSAGE_NUMBERS:
        raise ValueError(
            f"{type(controller).__name__} sends numbers={controller.numbers} per step, and 0 to {MESSAGE_NUMBERS} fit "
            "its message; add up on each rank first, as look() and observe() can"
        )
