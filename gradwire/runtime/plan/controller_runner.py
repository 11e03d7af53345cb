"""The controller's part of a step: its numbers are summed over the ranks, and its decision is in force on all at once.

    a step        every rank writes its numbers; one small message sums them while groups are under way
    its end       every rank decides from the sums; on a GPU from those of the step before, which are there by then
    the next step rank 0's message carries a fingerprint of its decision
    its end       every rank carries out rank 0's decision; a rank that decided otherwise reads it from the store

So all ranks change the plan at the same step, even where their arithmetic differs by a bit, and no step waits for that.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from gradwire.collective import REPLICA, Message, Sum
from gradwire.compressors import GroupContext
from gradwire.controllers import GroupView, Observation, StepView
from gradwire.controllers.requests import Change, ProfileRequest, change_from_json, change_to_json, fingerprint
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.sample import sampled
from gradwire.ops.vectors import Scalar
from gradwire.plans import Group, Plan
from gradwire.runtime.failures.job_errors import failing_in
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.plan.controller_state import (
    change_of,
    controller_state,
    load_controller,
    origin_of,
    plan_of,
    ranks_of,
    with_plans,
)
from gradwire.runtime.steps.pipeline import Pipeline
from gradwire.runtime.trace import Trace
from gradwire.runtime.worker.executor import Executor
from gradwire.schedule import Profile
from gradwire.slots import Slot
from gradwire.transports import Pending
from gradwire.transports.gathering import PATIENCE_S


@dataclass(frozen=True)
class Tracing:
    """A request for a profile while its steps are traced."""

    request: ProfileRequest
    trace: Trace
    due: int
    """The last of its steps."""
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    """A sample of each step's means."""


class ControllerRunner:
    """Runs a job's controller, if there is one. Everything here runs on the worker."""

    slots: Sequence[Slot]
    """The plan's slots."""
    decided: Change | None
    """A decision that is not carried out yet."""
    paused: bool
    """The controller sees nothing."""

    def __init__(self, options: JobOptions, slots: Sequence[Slot], pipeline: Pipeline, executor: Executor) -> None:
        self.controller = options.controller
        self._pipeline = pipeline
        self._executor = executor
        self.slots = slots
        self._mesh = pipeline.mesh
        self._profiler = options.profiler
        self._can_be_native = not options.no_native
        self.forget_decision()
        self.paused = False
        self._tracing: Tracing | None = None
        count = self.controller.numbers + 1 if self.controller else 1
        self._numbers = torch.zeros(count, dtype=torch.float32, device=executor.device)
        # this step's numbers under way; then sums that were not read yet, each with its step and the steps counted then
        self._under_way: Pending | None = None
        self._collected, self._taken = False, 0
        self._sums: deque[tuple[int, int, Callable[[], Tensor]]] = deque()
        # steps between the end of a step and its sums: a GPU has them one step later
        self._lag = 0 if executor.is_immediate else 1
        # decisions carried out so far, by which the store has them
        self._changes = 0

    def restart(self, slots: Sequence[Slot]) -> None:
        """Begins anew for other slots; sums and decisions for those before are dropped."""
        self.slots = slots
        self.forget_decision()
        self.forget_sums()

    def forget_decision(self) -> None:
        """Forgets the decision; default communicators of the plan are those of this number of ranks."""
        self.decided, self._ranks_of_defaults = None, self._mesh.replica.world

    def forget_sums(self) -> None:
        """Drops sums and traces of the last steps, whose plan or state is no longer in force."""
        self._tracing = None
        self._sums.clear()

    def drop_numbers(self) -> None:
        """Drops the numbers of a step that was reduced and does not count."""
        self._numbers.zero_()
        self._collected = False

    @property
    def looks(self) -> bool:
        """Whether the controller looks at what is encoded."""
        return self.controller is not None and self.controller.looks and not self.paused

    @property
    def times(self) -> bool:
        """Whether every step is to be timed."""
        return self.controller is not None and self.controller.times

    @property
    def encode_hook(self) -> Callable[[GroupContext, LazySum], None] | None:
        """`look` if the controller looks at groups, else None. In a pause it is still called, and does nothing."""
        return self.look if self.controller is not None and self.controller.looks else None

    def look(self, context: GroupContext, vector: LazySum) -> None:
        """Shows the controller a group that is about to be encoded."""
        if self.looks:
            assert self.controller is not None
            with failing_in(self.controller, "look", self._mesh.rank):
                self.controller.look(context, vector, self._numbers[:-1])

    def send(self, step: int, taken: int, groups: Sequence[GroupView], unrecorded: bool) -> None:
        """Sends this rank's numbers, once all groups of the step are encoded; `taken` steps before it have counted."""
        if not self.controller or self.paused:
            return
        self._taken = taken
        wire_s = self._pipeline.recorder.so_far("wire")
        seen = StepView(step, groups, self._pipeline.wire_bytes, wire_s, unrecorded)
        with failing_in(self.controller, "observe", self._mesh.rank):
            self.controller.observe(seen, self._numbers[:-1])
        # rank 0's decision of an earlier step, if there is one, as a fingerprint
        if self.decided is not None and self._mesh.rank == 0:
            self._numbers[-1] = fingerprint(self.decided)
        # one small message, under way while groups are decoded
        self._under_way = self._pipeline.together(partial(self._pipeline.send, Sum(Message.plain(self._numbers))))

    def reduced(self, means: Callable[[], Mapping[str, Tensor]], nonfinite: Tensor, scale: Scalar) -> None:
        """Shows the controller the step's means, which are times the loss's `scale`."""
        if self.controller and self.controller.reduces and not self.paused:
            with failing_in(self.controller, "reduced", self._mesh.rank):
                self.controller.reduced(means(), nonfinite, scale)
        if self._tracing:
            self._tracing.gradients.append({name: part / scale for name, part in sampled(means()).items()})

    def collect(self) -> None:
        """Waits for the sums of the step's numbers."""
        if self._under_way is not None:
            self._pipeline.together(partial(self._mesh.wait, self._under_way))
            # they are sums along the axis "replica"; then come the others
            self._pipeline.sum(self._numbers, self._mesh.axes.keys() - {REPLICA})
            self._under_way, self._collected = None, True

    def end(self, step: int, plan: Plan) -> Change | None:
        """Ends a step; returns the change to make before the next one."""
        # the sums are this rank's from here on
        self.collect()
        if not self._collected:
            return None
        self._collected = False
        self._sums.append((step, self._taken, self._executor.on_host(self._numbers)))
        self._numbers.zero_()
        # a profile was asked for, and its steps are over
        if self._tracing and step >= self._tracing.due:
            return self._answer(step, plan)
        # on a GPU the sums of this step are not there yet: read those of the step before
        if len(self._sums) <= self._lag:
            return None
        seen, taken, value = self._sums.popleft()
        numbers = value()
        # rank 0 has announced a decision in these sums: it is carried out now, on all ranks
        if numbers[-1]:
            return self._agreed_change(float(numbers[-1]))
        # else decide, from sums that are the same on all ranks
        if self.decided is None and self._tracing is None:
            self._decide(self._observation(seen, step + 2 + self._lag, plan, numbers[:-1], taken=taken))
        return None

    def begin_tracing(self, request: ProfileRequest, trace: Trace, step: int) -> None:
        """Traces the steps from `step` on, for a request."""
        self._tracing = Tracing(request, trace, step + request.steps)

    def native_ended(self, step: int, plan: Plan, seconds: float) -> Change | None:
        """Ends the framework's own steps, whose median took so many seconds; returns the change to make before the next
        step. Ranks exchange messages while training waits, which is rare."""
        if not self.controller:
            return None
        # the ranks' mean of their medians
        numbers = torch.tensor([seconds], dtype=torch.float32, device=self._executor.device)
        self._pipeline.sum(numbers)
        nothing = torch.zeros(self.controller.numbers, dtype=torch.float32, device="cpu")
        self._decide(self._observation(step, step + 1, plan, nothing, seconds=float(numbers) / self._mesh.ranks))
        # all carry out rank 0's decision at once
        mark = fingerprint(self.decided) if self.decided is not None and self._mesh.rank == 0 else 0.0
        self._pipeline.sum(numbers.fill_(mark))
        return self._agreed_change(float(numbers)) if numbers else None

    def export(self, plan: Plan, origin: Plan, native: Change | None) -> dict[str, Tensor]:
        """The controller's part of a state: with the plan in force, and `origin`, of which the controller made it."""
        assert self.controller is not None
        # a decision of the last step is not in force yet: it is kept too
        return controller_state(self.controller, plan, origin, self._ranks_of_defaults, native, self.decided)

    def load(self, state: Mapping[str, Tensor]) -> Plan:
        """Takes over what `export` returned, once the controller has begun with its `origin_of`; returns the plan that
        was in force."""
        assert self.controller is not None
        load_controller(self.controller, state)
        self.decided, self._ranks_of_defaults = change_of(state, "decided"), ranks_of(state) or self._mesh.replica.world
        # a rank that decides otherwise after the resume reads rank 0's decision from here
        if self.decided is not None and self._mesh.rank == 0:
            self._mesh.store.set(self._key(), change_to_json(self.decided))
        return plan_of(state)

    def changed(self, before: Plan, plan: Plan) -> Mapping[str, tuple[Group, Group]]:
        """By name the groups, in both plans, of parameters that the user sends in another way in `plan`."""
        assert self.controller is not None
        return self.controller.changed(before, plan)

    def for_these_ranks(self, state: Mapping[str, Tensor], own: Plan) -> Mapping[str, Tensor]:
        """An exported state, adapted to the number of ranks here: in its plans, what was the default communicator where
        it was saved becomes the default here. The user's plan here is `own`, in which nothing has `changed`."""
        assert self.controller is not None
        here = self._mesh.replica.world
        ranks = ranks_of(state) or here
        if ranks == here:
            return state
        return with_plans(state, self.controller.for_these_ranks(ranks, origin_of(state), own), here)

    def _answer(self, step: int, plan: Plan) -> None:
        """Hands the controller the profile that it asked for."""
        assert self._tracing is not None
        assert self._profiler is not None
        profiled = self._profiler(self._tracing.request, self._tracing.trace, self._tracing.gradients)
        self.forget_sums()
        nothing = torch.zeros(self._numbers.numel() - 1, dtype=torch.float32, device="cpu")
        self._decide(self._observation(step, step + 2 + self._lag, plan, nothing, answer=profiled))

    def _observation(
        self,
        step: int,
        next_step: int,
        plan: Plan,
        sums: Tensor,
        *,
        seconds: float = 0.0,
        answer: Profile | None = None,
        taken: int = 0,
    ) -> Observation:
        return Observation(
            step, next_step, plan, self.slots, self._mesh.rank, self._mesh.ranks, self._mesh.replica.world, sums,
            self._can_be_native, seconds, answer, taken,
        )  # fmt: skip

    def _decide(self, seen: Observation) -> None:
        assert self.controller is not None
        with failing_in(self.controller, "decide", self._mesh.rank):
            self.decided = self.controller.decide(seen)
            text = None if self.decided is None else change_to_json(self.decided)
        if text and self._mesh.rank == 0:
            self._mesh.store.set(self._key(), text)

    def _agreed_change(self, announced: float) -> Change:
        """Rank 0's decision: this rank's own, unless its arithmetic differs."""
        # sums that were on their way belong to the plan before
        change, self.decided = self.decided, None
        self._sums.clear()
        # this rank's decision is another one: rank 0's is read from the store
        if change is None or fingerprint(change) != announced:
            patience_s = min(PATIENCE_S, self._mesh.timeout_s)
            text = self._mesh.store.get(self._key(), patience_s)
            if text is None:
                raise RuntimeError(f"rank 0's decision did not come within {patience_s:.0f} s")
            change = change_from_json(text)
        self._changes += 1
        return change

    def _key(self) -> str:
        """Rank 0's decision in the store. Two keys are enough: when it writes under one again, it has announced another
        decision since, by a sum of all ranks, which had read this one before."""
        return f"change/{self._changes % 2}"
