"""A step on the thread that trains: gradients come one by one, and complete groups go to the worker.

    open, submit         training thread: slots are counted; the last one of a group posts the group to the worker
    Steps.complete       worker: carries out the script as far as groups are there; it alone starts their collectives
    Runtime._step_ended  worker: the plan of the next step is in force, and only then are futures completed
    Runtime.finish       training thread: behind all that was posted; raises what any thread has left in `error`

The executor's queue orders the two threads.
"""

import weakref
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwire.runtime.failures.first_error import FirstError
from gradwire.runtime.failures.job_errors import BETWEEN
from gradwire.runtime.failures.raised import note_raised
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.plan.active_plan import ActivePlan
from gradwire.runtime.steps.machine import NO_GROUP, Arrivals
from gradwire.runtime.steps.steps import Steps
from gradwire.runtime.steps.weights import weight_reader
from gradwire.runtime.worker.events import EPOCH
from gradwire.runtime.worker.executor import Fence

NOT_HERE = "sparse gradients are not exchanged here; use Embedding(sparse=False)"
NOT_FOUND = (
    "there is no nn.Embedding(sparse=True) that it is the weight of in the model that was passed; pass the model, or "
    "use sparse=False"
)
"""Why a sparse gradient is refused, where the front end exchanges none, or has not found it."""


class StepFence(NamedTuple):
    """A fence behind some steps."""

    fence: Fence
    """In the worker's queue."""
    step: int
    """The last of these steps, as `GradientCollector.opened` counts."""


class GradientCollector:
    """Counts arriving gradients, and posts a group to the worker when its last one is there: with the places of its
    gradients, unless those are fixed.

    The worker's part of a step begins with its first complete group. It may still be at an earlier step, for a step can
    be opened once all gradients of the one before have arrived.
    """

    opened: int
    """Steps that were opened, in this job."""
    reduced: int
    """Of these, the steps whose means are in place."""
    groups: Sequence[int]
    """The groups of the open step."""
    first_group_at: float
    """When the first group of the open step was complete; 0 before."""
    step_s: float
    """Seconds from the last step's beginning to that of the open one; 0 in the first."""
    doing: str
    """Where the training thread is before a step's first gradient, for errors."""

    def __init__(self, steps: Steps, active: ActivePlan, options: JobOptions, first_error: FirstError) -> None:
        self.opened = self.reduced = 0
        self._ask_weight = weight_reader(options.weight, first_error)
        self._weight = None
        self._times_sent = None
        self._no_rows = NOT_FOUND if options.finds_sparse else NOT_HERE
        self.groups: Sequence[int] = ()
        self.step_s, self._opened_at, self.doing = 0.0, float("inf"), BETWEEN
        self.arrivals = Arrivals(partial(GradientCollector._complete, weakref.proxy(self)))
        self._steps = steps
        self._active = active
        self._executor = steps.executor
        self._recorder = steps.pipeline.recorder
        self.slots = steps.store.slots
        # by the plan in force: slots of each group; and the gradients of this step, by slot
        self._members: list[tuple[int, ...]] = []
        self._tensors: list[Any] = [None] * len(self.slots)
        self.first_group_at = 0.0
        self._fixed = False
        self._places_sent: set[int] = set()
        # whether the step's last group is posted when the backward pass is over; that group, with its absent slots
        self._holds_back, self._held_back = False, list[tuple[int, Sequence[int]]]()

    def is_reduced(self, slot: int) -> bool:
        """Whether the slot's parameter is trained, and so belongs to a group."""
        return self.arrivals.group_of(slot) != NO_GROUP

    @property
    def is_native(self) -> bool:
        """Whether the framework reduces by itself."""
        return self._active.plan.native

    @property
    def unfinished(self) -> bool:
        """Whether gradients of the open step are missing, or its backward pass is not over. Asked between two passes:
        whether the last one failed."""
        return bool(self._held_back) or not self.arrivals.all_there(self.groups)

    def missing(self) -> list[int]:
        """The slots of the open step whose gradients have neither arrived nor are known to be absent."""
        return self.arrivals.missing(self.groups)

    def open(self, groups: Sequence[int] | None, times_sent: int | None, until_backward_ends: bool = False) -> None:
        """Opens a step of these groups, or of all; `times_sent` is how often they were sent. Turns that are due are
        recorded first. With `until_backward_ends` the last group is held back until `backward_done`, so that no rank
        takes the step if the backward pass still fails after its last gradient."""
        self._executor.refuse_recording()
        # the weight first: the user's function may fail
        self._weight, self._times_sent = self._ask_weight(), times_sent
        # record turns while nothing is under way: the training thread waits for that
        if self._steps.recordings.due:
            self._executor.call(self._steps.record)
        # another plan: its groups are counted from now on
        if self._members is not self._steps.members:
            self._members = self._steps.members
            self._places_sent.clear()
            self.arrivals.follow(self._members, len(self.slots))
        # a traced step has the plan that is in force now
        if self._recorder.traces:
            self._recorder.follow(self._steps.store.with_sparse_group(self._active.plan))
        # count the gradients of this step
        self.arrivals.begin()
        self.groups = range(len(self._members)) if groups is None else groups
        self._holds_back = until_backward_ends
        self.opened += 1
        now = monotonic()
        self.step_s, self._opened_at = max(0.0, now - self._opened_at), now
        self.first_group_at, self.doing = 0.0, BETWEEN

    def native_begins(self) -> None:
        """The framework reduces by itself from now on. Where gradients lay is forgotten, for it takes other memory."""
        self._tensors = [None] * len(self.slots)
        self._executor.post(self._steps.close)

    def native_step_ended(self) -> None:
        """Counts a step that the framework has reduced by itself."""
        self.opened += 1
        self.reduced, self.doing = self.opened, BETWEEN

    def submit(self, slot: int, gradient: Tensor) -> None:
        """Takes a slot's gradient, which the mean replaces in place. Raises ValueError for one that is sparse and was
        not expected to be."""
        if gradient.is_sparse and slot not in self._steps.store.sparse:
            raise ValueError(f"parameter {self.slots[slot].name!r} has a sparse gradient, and {self._no_rows}")
        # the tensor first: the worker may take it as soon as the slot has arrived
        self._tensors[slot] = gradient
        self.arrivals.mark_ready(slot)

    def submit_absent(self, slot: int, zeros: Tensor) -> None:
        """Takes the tensor to reduce for a slot that has no gradient on this rank: zeros, or the gradient that an
        earlier pass left. The mean replaces it, too."""
        self._tensors[slot] = zeros
        self.arrivals.mark_absent(slot)

    def became_ready(self, slot: int) -> None:
        """Notes that backward has made a slot's gradient, which arrives now or later. Needed while
        `wants_readiness`."""
        if self._active.follows_order:
            self._active.order.became_ready(slot)
        if self._recorder.traces:
            self._recorder.gradient_ready(self.slots[slot].name, self.arrivals.group_of(slot))

    def forward_begins(self) -> None:
        """Notes the beginning of a forward pass."""
        self.doing = "in forward"
        self._recorder.forward_begins(self._steps.store.with_sparse_group(self._active.plan))

    def forward_ends(self) -> None:
        """Notes the end of a forward pass."""
        self.doing = "between forward and its first gradients"
        self._recorder.forward_ends()

    def wants_readiness(self) -> bool:
        """Whether the moments when gradients become ready are needed, for the plan's order or a trace."""
        return self._active.follows_order or self._recorder.traces

    def fix_addresses(self, fixed: bool) -> None:
        """Says whether gradients lie, from now on, where they were last submitted, so that slots just arrive."""
        self._fixed = fixed
        self._places_sent.clear()
        self._executor.post(self._steps.forget_addresses)

    def fence(self) -> StepFence:
        """A fence behind all steps that were opened so far."""
        return StepFence(self._executor.fence(), self.opened)

    def backward_done(self) -> None:
        """Notes that the backward pass of a step can fail no more, and all its gradients are there."""
        self._holds_back = False
        while self._held_back:
            self._post(*self._held_back.pop())
        # the worker has them: the user may clear gradients that lie elsewhere in the next step
        if not self._fixed:
            self._tensors = [None] * len(self.slots)

    def give_up(self) -> None:
        """Completes an open step with zeros, so that all ranks come to its end; none takes it."""
        # the note first, so that all ranks find the reason when the step's end says that it counts for none
        note_raised(self._steps.pipeline.mesh, self.opened)
        self._executor.post(self._steps.give_up)
        # then zeros for what is missing, which complete its groups: in this step alone, for no gradient lies there
        places = self._tensors.copy()
        fixed = self._fixed
        self._fixed = False
        for slot in self.arrivals.missing(self.groups):
            zeros = torch.zeros(self.slots[slot].numel, dtype=torch.float32, device=self._executor.device)
            self.submit_absent(slot, self.slots[slot].view(zeros))
        self.backward_done()
        self._fixed = fixed
        if fixed:
            self._tensors = places

    def _complete(self, group: int, absent: Sequence[int]) -> None:
        if self._holds_back and self.arrivals.all_there(self.groups):
            self._held_back.append((group, absent))
        else:
            self._post(group, absent)

    def _post(self, group: int, absent: Sequence[int]) -> None:
        # the first complete group: the worker begins the step
        if not self.first_group_at:
            self.first_group_at = monotonic()
            begin = partial(self._steps.begin, self.groups, self.opened, self._weight, self._times_sent)
            self._executor.post(begin)
        members, tensors = self._members[group], None
        # a sparse gradient is another tensor in each step
        fixed = self._fixed and members[0] not in self._steps.store.sparse
        # places are sent along until the worker knows them
        if group not in self._places_sent:
            tensors = [self._tensors[slot] for slot in members]
            if fixed:
                self._places_sent.add(group)
        # to the worker, in the order in which groups are complete
        missing = [members.index(slot) for slot in absent]
        arrival = self._recorder.record_event() if self.arrivals.all_there(self.groups) else EPOCH
        self._executor.post(partial(self._steps.complete, group, tensors, missing, fixed, arrival))
