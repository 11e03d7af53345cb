"""Options of a job's runtime, beside the plan."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gradwire.controllers import Controller
from gradwire.controllers.requests import ProfileRequest
from gradwire.ops.vectors import Scalar
from gradwire.plans import Plan
from gradwire.runtime.state.row_memory import PLAIN_ROWS, RowScheme
from gradwire.runtime.trace import Trace
from gradwire.schedule import Profile
from gradwire.slots import Slot
from gradwire.transports import Mesh

Profiler = Callable[[ProfileRequest, Trace, Sequence[Mapping[str, Tensor]]], Profile]
"""Answers a controller's request from its traced steps, with a sample of each one's means; all ranks together."""

NO_NATIVE = "a native plan leaves reducing to DDP, and here there is none; use FP32() instead"
"""Why front ends refuse a native plan that have nothing underneath that reduces."""
ONLY_SPARSE = (
    "all gradients are sparse, and there is nothing to compress; train a dense parameter as well, or leave the model "
    "to DDP alone"
)
"""The refusal of a job whose plan would have no group."""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options of a job's runtime, as its front end sets them."""

    seed: int = 0
    controller: Controller | None = None
    profiler: Profiler | None = None
    follow_order: bool = False
    """The plan is made again for slots in the order in which rank 0's gradients become ready, once that is known."""
    find_unused: bool = False
    """After each step, ranks find out which slots had a gradient on no rank."""
    no_native: str = NO_NATIVE
    """Why the framework cannot reduce by itself; "" where it can."""
    scale: Callable[[], Scalar | None] = lambda: None
    """The factor that losses are multiplied by."""
    weight: Callable[[], object] | None = None
    """The weight of this rank's gradients in a step's mean, asked when a step opens; None where all have the same."""
    others: Collection[str] = ()
    """The model's parameters that are not reduced; a state may have them."""
    shard: str = ""
    """Which shard of a model all of the job's ranks have, where tensor parallelism has cut it; "" where it is whole."""
    values: Mapping[str, str] = field(default_factory=dict)
    """By name the type and shape of each parameter and buffer that ranks share before the first step."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """All else that must be equal on all ranks, by the name that errors call it."""
    owns_mesh: bool = True
    """The mesh is this job's alone, and is closed with it."""
    planned: Sequence[Slot] | None = None
    """The slots that plans are made for, where a rank's shards differ in size from others'."""
    trained: Collection[str] | None = None
    """The parameters that are trained at first, of all that have slots; by default all."""
    plan_for: Callable[[list[Slot]], Plan] | None = None
    """Makes the user's plan for the parameters that are trained."""
    sparse: Collection[str] = ()
    """Parameters whose gradients are sparse. No plan has them: their rows travel beside it."""
    finds_sparse: bool = False
    """The front end looks for such parameters; otherwise it exchanges no sparse gradients."""
    rows: RowScheme = PLAIN_ROWS
    """How these rows are sent."""
    elastic: bool = False
    """Ranks confirm at the end of each step that they have all of it: it counts on all that are left, or on none."""
    rounds: bool = False
    """Steps are rounds of local steps, without a forward or backward pass of their own."""
    voted: bool = False
    """A step then counts when `Runtime.commit` is called."""
    fits: Callable[[Plan], None] = lambda plan: None
    """Raises ValueError for a plan that the front end cannot follow."""

    def first_plan(self, make: Callable[[], Plan], slots: Sequence[Slot], mesh: Mesh) -> Plan:
        """Takes the mesh and the controller for this job, hands the controller the slots, and returns the plan that
        `make` makes then."""
        mesh.take(self.controller)
        if self.controller:
            self.controller.meet(slots, mesh.replica.world)
        return make()

    def check(self, plan: Plan, trained: Sequence[Slot]) -> None:
        """Raises ValueError for a plan that the `trained` slots or the front end cannot follow."""
        plan.check(trained)
        self.fits(plan)
        if plan.native and self.no_native:
            raise ValueError(self.no_native if trained else ONLY_SPARSE)
