"""Which plan is in force, and how it becomes another one: a user's, a controller's, a checkpoint's, or the first plan
over again once the order of gradients is known."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from gradwire import checkpoint
from gradwire.controllers.requests import Change, NativeRequest, ProfileRequest
from gradwire.plans import NATIVE, Plan
from gradwire.runtime.control import Control, origin_of
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.meeting import AbsentRanks, Agreement
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.steps import Steps
from gradwire.slots import Slot


class ActivePlan:
    """`plan` is in force; `origin` is what the controller made it from. Where it is native, the framework reduces by
    itself, for `native_steps` more steps if that is a number. `order` are the slots as they became ready, once known.
    Of all slots a plan has those whose parameters are `trained` now; the other ones' state waits.

    `agreed` and `agreed_for` are for the thread that trains; everything else runs on the worker.
    """

    def __init__(self, make: Callable[[], Plan], agreement: Agreement, options: JobOptions, slots: list[Slot]) -> None:
        self._agreement, self._options, self._slots = agreement, options, slots
        self.trained = [slot for slot in slots if options.trained is None or slot.name in options.trained]
        self._chosen: Plan | None = None
        self.native_steps: int | None = None
        self.plan = self.origin = NATIVE
        self.first = self.agreed(make)
        self._remake = self._follow_order = options.follow_order
        self._seen: list[int] = []
        self.order: tuple[str, ...] = ()

    def work_with(self, steps: Steps, control: Control, pipeline: Pipeline) -> None:
        """Puts the first plan in force."""
        self._steps, self._control, self._pipeline = steps, control, pipeline
        control.paused = self.follows_order
        self._install(self.first)
        steps.close()

    def agreed(self, make: Callable[[], Plan]) -> Plan:
        """What `make` returns, once all ranks have the same. Raises ValueError on all of them where they do not."""
        trained = [slot.name for slot in self.trained]
        return self._agreement.on_plan(lambda: self._begin(make()), self._options.controller, trained)

    @property
    def follows_order(self) -> bool:
        """Whether the plan is to be made anew from the order of gradients, of which `became_ready` tells."""
        return self._follow_order is not None

    def became_ready(self, slot: int) -> None:
        """Backward has made a slot's gradient; on the thread that trains."""
        self._seen.append(slot)

    def replace(self, agreed: Plan, asked: Plan) -> None:
        """Puts in force what ranks agreed on of the plan that a user asked for."""
        self._remake, self._chosen = None, asked
        self._replace(agreed)

    def agreed_for(self, trained: Collection[str]) -> Plan:
        """The plan for other parameters than before, once all ranks have the same. Raises ValueError on all of them,
        naming a parameter, where some ranks train it and others do not."""
        changed = min({slot.name for slot in self.trained} ^ set(trained))
        self.trained = [slot for slot in self._slots if slot.name in trained]
        try:
            return self._agreement.on_plan(
                lambda: self._begin(self._made_for(self.trained)), self._options.controller, trained,
                "a step after requires_grad has changed",
            )  # fmt: skip
        except AbsentRanks as error:
            raise AbsentRanks(f"requires_grad of {changed!r} has changed on some ranks alone: {error}") from error

    def follow(self, plan: Plan) -> None:
        """Puts a plan in force for what is trained now."""
        self._control.restart(self.trained)
        self.native_steps = None
        self._install(plan)

    def _made_for(self, trained: Sequence[Slot]) -> Plan:
        """The user's plan, with what that lacks as it would have been planned at first."""
        assert self._options.plan_for is not None
        made = self._options.plan_for(self._in_order(trained))
        if self._chosen is None:
            return made
        known = {name for group in self._chosen.groups for name in group.slots}
        return Plan((*self._chosen.groups, *made.only({slot.name for slot in trained} - known).groups))

    def step_ended(self) -> None:
        """Puts in force what follows from the step."""
        if self._follow_order:
            self.order = self._first_come()
            self._replace(self._begin(self._follow_order(self._in_order(self.trained))))
        else:
            self._apply(self._control.end(self._steps.number - 1, self.plan))

    def native_step_ended(self) -> None:
        """The framework has reduced a step by itself."""
        if self.native_steps is not None:
            self.native_steps -= 1

    def native_ended(self, median_s: float) -> None:
        """The framework has reduced as many steps as it was to, whose median took so long."""
        self._apply(self._control.native_ended(self._steps.number - 1, self.plan, median_s))

    def export(self) -> dict[str, Tensor]:
        """What a checkpoint says of plans and of the controller."""
        return self._control.export(self.plan, self.origin)

    def check(self, read: checkpoint.Unpacked) -> None:
        """Raises ValueError where this job cannot go on from what was read. The controller has then tried: what it was
        before comes back by `restore`."""
        if not (read.job and self._options.controller):
            return
        try:
            self._load_controller(read.job).check(self.trained)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            name = type(self._options.controller).__name__
            raise ValueError(f"{name} cannot go on from this state ({error}); load what this job saved") from error

    def restore(self, job: Mapping[str, Tensor]) -> None:
        """The controller is what it was when `export` returned this."""
        if job:
            self._load_controller(job)

    def load(self, read: checkpoint.Unpacked) -> None:
        """Goes on as `export` said; a plan that was made from slots in their order is made from the state's."""
        self.order = read.about.order or self.order
        if read.job and self._options.controller:
            plan = self._load_controller(read.job)
            self._replace(plan)
            self.native_steps = 1 if plan.native else None  # the controller is asked after the next step
        elif self._remake and read.about.order:
            self._replace(self._begin(self._remake(self._in_order(self.trained))))

    def _load_controller(self, job: Mapping[str, Tensor]) -> Plan:
        """The plan that was in force."""
        self._begin(origin_of(job))
        return self._control.load(job)

    def _replace(self, plan: Plan) -> None:
        """Puts a plan in force that is not a controller's decision."""
        self._follow_order, self._control.paused, self.native_steps = None, False, None
        self._install(plan)

    def _begin(self, plan: Plan) -> Plan:
        """What the controller makes of a plan that it is to change."""
        controller = self._options.controller
        waiting = {slot.name for slot in self._slots} - {slot.name for slot in self.trained}
        planned = {name for group in plan.groups for name in group.slots}
        plan = plan.only(planned - waiting)
        plan.check(self.trained)
        self._options.fits(plan)
        if plan.native and not self._options.can_be_native:
            raise ValueError("a native plan leaves reducing to DDP, and here nobody else reduces; use FP32() instead")
        if controller and not plan.native:
            controller.check(plan)
        self.origin = plan
        return controller.begin(plan) if controller else plan

    def _install(self, plan: Plan) -> None:
        self._steps.install(plan)
        self.plan = plan

    def _apply(self, change: Change | None) -> None:
        """Does what a controller has decided."""
        match change:
            case Plan():
                self._install(change)
            case ProfileRequest():
                self._install(change.plan)
                self._control.begin_tracing(change, self._pipeline.recorder.trace(change.steps), self._steps.number)
            case NativeRequest():
                self._install(NATIVE)
                self.native_steps = change.steps
            case None:
                pass

    def _in_order(self, slots: Sequence[Slot]) -> list[Slot]:
        """The slots in the order that is known, and then the others."""
        place = {name: place for place, name in enumerate(self.order)}
        return sorted(slots, key=lambda slot: place.get(slot.name, len(place)))

    def _first_come(self) -> tuple[str, ...]:
        """The slots as rank 0's gradients became ready in the first step."""
        seen = dict.fromkeys([*self._seen, *range(len(self._slots))])
        order = torch.tensor(list(seen), dtype=torch.int64, device=self._steps.store.device)
        self._pipeline.agree(partial(self._pipeline.mesh.share, [order], order.device))
        return tuple(self._slots[slot].name for slot in order.tolist())
