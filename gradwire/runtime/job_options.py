"""What a job is told beside its plan."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gradwire.controllers import Controller
from gradwire.controllers.requests import Profiled, ProfileRequest
from gradwire.ops.vectors import Share
from gradwire.plans import Plan
from gradwire.runtime.trace import Trace
from gradwire.slots import Slot

Profiler = Callable[[ProfileRequest, Trace, Sequence[Mapping[str, Tensor]]], Profiled]
"""Carries out a controller's request when its steps are traced, on all ranks together, with a sample of each step's
mean gradients."""


def _unscaled() -> Share | None:
    return None


def _any_plan(plan: Plan) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """`follow_order(slots)` makes the plan for slots that became ready in that order; rank 0's, once seen, is used by
    all. `find_unused` finds out after each step which slots had a gradient on no rank at all. `scale` is what the loss
    is multiplied by. `can_be_native` says that the framework can reduce by itself. `others` are names of the model's
    parameters that are not reduced, such as frozen ones; states may have them. `values` are the types and shapes, by
    name, of all that ranks share before the first step, and `words` further things that must be equal on all ranks, by
    what they are called. `owns_mesh`: nobody else uses it, and it is closed in the end.
    `planned` are the slots that plans are made for, where those of a rank are shards of another size than others'.
    `trained` are the parameters that are trained at first, of all that have slots, by default all; `plan_for(slots)`
    makes the plan when others are.
    `elastic`: the ranks tell each other at the end of each step that they have all of it, so that it counts on all that
    are left, or on none, whenever one is lost. `voted`: and then it counts when `Runtime.commit` is called. `fits`
    raises ValueError for a plan that the front end cannot follow.
    """

    seed: int = 0
    controller: Controller | None = None
    profiler: Profiler | None = None
    follow_order: Callable[[list[Slot]], Plan] | None = None
    find_unused: bool = False
    can_be_native: bool = False
    scale: Callable[[], Share | None] = _unscaled
    others: Collection[str] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    owns_mesh: bool = True
    planned: Sequence[Slot] | None = None
    trained: Collection[str] | None = None
    plan_for: Callable[[list[Slot]], Plan] | None = None
    elastic: bool = False
    voted: bool = False
    fits: Callable[[Plan], None] = _any_plan
