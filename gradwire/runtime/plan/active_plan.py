"""The plan in force, and how it becomes another one.

    a user's, or for other parameters   the thread that trains: the ranks compare what each has made, by `agreed`,
                                        `agreed_replan`, `agreed_for`; then the worker: `work_with`, `replan`, `follow`
    a controller's                      worker, `step_ended` or `native_ended`: all ranks have what rank 0 decided
    the first one, made again           worker, `step_ended`: once all ranks have the order of rank 0's gradients
    a checkpoint's                      `check`, while the ranks compare their states; then the worker: `load`

State moves when the next step begins, in `Steps.close`.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median

from torch import Tensor

from gradwire import checkpoint
from gradwire.controllers import Controller
from gradwire.controllers.requests import Change, NativeRequest, ProfileRequest
from gradwire.plans import NATIVE, Plan
from gradwire.runtime.agreement import Agreement
from gradwire.runtime.failures.job_errors import AbsentRanks, failing_in
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.plan.controller_state import begin, change_of, difference, origin_of, own_part
from gradwire.runtime.plan.gradient_order import GradientOrder
from gradwire.runtime.state.momenta import Momenta
from gradwire.runtime.steps.steps import Steps
from gradwire.slots import Slot

_log = logging.getLogger("gradwire")


class ActivePlan:
    """The plan in force of one job. `agreed` and `agreed_for` are for the thread that trains; everything else runs on
    the worker."""

    plan: Plan
    origin: Plan
    """The plan from which the controller made it."""
    native_steps: int | None
    """The steps that the framework has yet to reduce by itself, where the plan is native and that number is known."""
    order: GradientOrder
    """The order in which slots' gradients become ready."""
    follows_order: bool
    """The plan is to be made again at the end of this step, in the order of gradients, which `order` records."""
    trained: list[Slot]
    """The slots of the parameters that are trained now: the plan's. State of all others is kept."""

    def __init__(self, make: Callable[[], Plan], agreement: Agreement, options: JobOptions, slots: list[Slot]) -> None:
        self._agreement, self._options, self._slots = agreement, options, slots
        self._train({slot.name for slot in slots} if options.trained is None else options.trained)
        # what a user has put in force since the job began
        self._chosen: Plan | None = None
        # the controller's part of a loaded state, for the next state_dict(), where this job has no controller
        self._kept_controller: Mapping[str, Tensor] = {}
        self.native_steps = None
        self.plan = self.origin = NATIVE
        self._native: NativeRequest | None = None
        self.momenta, self.order = Momenta(slots), GradientOrder(slots)
        # all ranks meet here: they begin with equal plans, or none begins
        self.first = self.agreed(make)
        self.follows_order = options.follow_order

    def work_with(self, steps: Steps) -> None:
        """Puts the first plan in force."""
        # these three need the first plan themselves, so they come after it
        self._steps, self._control, self._pipeline = steps, steps.control, steps.pipeline
        self._control.paused = self.follows_order
        steps.store.train(self._names)
        self._install(self.first)
        # the controller's state at the beginning, to go back to when a state without a controller's part is loaded
        self._fresh = {name: tensor.detach().clone() for name, tensor in self.export().items()}
        steps.close()

    def agreed(self, make: Callable[[], Plan], asked: Plan | None = None, call: str = "attach() or replan()") -> Plan:
        """The plan with which the controller begins from what `make` returns, once all ranks have the same; a user has
        `asked` for it. Raises ValueError, on all, where they do not."""
        # in this order: `origin` is the user's plan once the controller has begun
        return self._agreement.on_plan(lambda: (self._begin(make(), asked), self.origin), self._names, call)

    def agreed_replan(self, asked: Plan) -> Plan:
        """`agreed` for a plan that a user asks for; where it is refused, the controller goes on from the one before."""
        before, origin = self.export(), self.origin
        try:
            return self.agreed(lambda: asked, asked)
        except (ValueError, AbsentRanks):
            self.origin = origin
            self.restore(before)
            raise

    def _train(self, names: Collection[str]) -> None:
        self._names = set(names)
        sparse = self._options.sparse
        self.trained = [slot for slot in self._slots if slot.name in names and slot.name not in sparse]

    @property
    def _remakes(self) -> bool:
        """Whether the plan follows the order of gradients: it is the job's own, and none that a user asked for."""
        return self._options.follow_order and self._chosen is None

    def replan(self, agreed: Plan, asked: Plan) -> None:
        """Puts `agreed` in force, which the ranks have made of the plan that a user `asked` for."""
        self._chosen = asked
        # what the controller has decided or asked for is of the plan before
        self._control.restart(self.trained)
        self._put_in_force(agreed)

    def agreed_for(self, trained: Collection[str]) -> Plan:
        """The plan for newly chosen parameters, once all ranks have the same. Raises ValueError, on all of them, naming
        a parameter that some ranks train and others do not."""
        # the ranks meet, with the parameters that are trained now
        changed = min(self._names ^ set(trained))
        self._train(trained)
        # a rank whose requires_grad did not change does not come: name the parameter, too
        call = "a step after requires_grad has changed"
        try:
            return self.agreed(lambda: self._made_for(self.trained), call=call)
        except AbsentRanks as error:
            why = f"requires_grad of {changed!r} has changed on some ranks alone, or sooner than on others: {error}"
            raise AbsentRanks(call, why, error.ranks) from error

    def follow(self, plan: Plan) -> None:
        """Puts a plan in force for the parameters that are trained now."""
        self._steps.store.train(self._names)
        # the controller begins anew, with slots of which it has seen nothing
        self._control.restart(self.trained)
        self._install(plan)

    def _made_for(self, trained: Sequence[Slot], asked: Plan | None = None) -> Plan:
        """The plan that the user asks for now, or else has asked for last; parameters that it lacks, or all where there
        is none, are planned by the job's options."""
        assert self._options.plan_for is not None
        made, chosen = self._options.plan_for(self.order.sorted(trained)), asked or self._chosen
        # a plan that a user installed keeps its groups; slots that it lacks get more, unless the framework reduces
        if chosen is None:
            return made
        if chosen.native:
            return chosen
        missing = {slot.name for slot in trained} - set(chosen.names)
        return Plan((*chosen.groups, *made.only(missing).groups))

    def step_ended(self) -> None:
        """Puts in force the plan that follows from the step."""
        self.momenta.step_ended()
        # the order of gradients is known now: the plan is made again, once
        if self.follows_order:
            self.order.agree(self._pipeline, self._steps.store.device)
            self._put_in_force(self._begin(self._made_for(self.trained)))
        else:
            self._apply(self._control.end(self._steps.number - 1, self.plan))

    def native_step_ended(self) -> int | None:
        """Counts a step that the framework has reduced by itself; returns how many follow, where that is known."""
        if self.native_steps is not None:
            self.native_steps -= 1
        return self.native_steps

    def native_ended(self, seconds: Sequence[float]) -> None:
        """Ends the framework's own steps, each of which took so long; a state that was loaded may ask for more."""
        if self._native and self.native_steps == 0:
            median_s = median(seconds[self._native.settle - self._native.steps :])
            self._apply(self._control.native_ended(self._steps.number - 1, self.plan, median_s))

    def export(self) -> dict[str, Tensor]:
        """The part of a checkpoint about plans and the controller; without one what a state had that was loaded."""
        if not self._options.controller:
            return dict(self._kept_controller)
        return self._control.export(self.plan, self.origin, self._native)

    def check(self, read: checkpoint.Unpacked) -> Plan | None:
        """Raises ValueError where this job cannot go on from a state. To find out, the controller loads it, whose plan
        this returns; where the state is not taken after all, the caller brings back its own by `restore`."""
        if not (controller := self._options.controller):
            return self.momenta.check(self.plan, self.momenta.of_state(read))
        try:
            plan = self._load_controller(own_part(controller, read.job))[0]
            self._options.check(plan, self.trained)
            self.momenta.check(plan, self.momenta.of_state(read))
            return plan
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            name = type(controller).__name__
            raise ValueError(f"{name} cannot go on from this state ({error}); load what this job saved") from error

    def restore(self, job: Mapping[str, Tensor]) -> None:
        """Brings the controller back to an `export`."""
        if self._options.controller:
            self._load_saved(job)

    def load(self, read: checkpoint.Unpacked) -> None:
        """Goes on from a state; a plan that was made from slots in their order is made again in the state's order."""
        self.order.names, self._kept_controller = read.about.order or self.order.names, read.job
        self.momenta.load(read, self.plan)
        if self._options.controller:
            self._load_with_controller(self._options.controller, read)
        elif self._remakes and read.about.order:
            self._put_in_force(self._begin(self._made_for(self.trained)))

    def _load_with_controller(self, controller: Controller, read: checkpoint.Unpacked) -> None:
        plan, native = self._load_controller(own_part(controller, read.job))
        self._control.forget_sums()
        # before the first step the order of gradients is yet to come
        known = read.about.order or read.job
        self._put_in_force(plan, self._remakes if not read.step else self.follows_order and not known)
        # the steps that the controller had asked for are made again, all of them
        self._apply(native)
        # say it where the user's controller or compressor is another one than in the state
        if self._pipeline.mesh.rank == 0 and (why := difference(controller, read.job, self.origin)):
            _log.warning("%s", why)

    def _load_controller(self, job: Mapping[str, Tensor]) -> tuple[Plan, Change | None]:
        """Loads the controller; returns the plan that follows, and the request by which it is native. Without a state
        it begins anew."""
        own = self._made_for(self.trained).only({slot.name for slot in self.trained})
        origin = origin_of(job or self._fresh)
        same = set(origin.names) == set(own.names) and not self._control.changed(origin, own)
        # default communicators follow from the number of ranks
        if same:
            job = self._control.for_these_ranks(job, own)
        saved = self._load_saved(job or self._fresh)
        if job and (origin.native or same):
            return saved, change_of(job, "native")
        # the user names another compressor, or trains other parameters: as after a replan
        self._control.forget_decision()
        return self._begin(own), None

    def _load_saved(self, job: Mapping[str, Tensor]) -> Plan:
        """Brings the controller back to an `export`, with the slots that it had; returns the plan that was in force."""
        controller = self._options.controller
        assert controller is not None
        # some may be frozen now, or not be reduced any more, but the model has them
        self.origin = origin_of(job)
        named = set(self.origin.names) - set(self._options.others)
        self.origin.only(named).check([slot for slot in self._slots if slot.name in named])
        controller.begin(self.origin)
        plan = self._control.load(job)
        why = self._options.no_native
        if why and (plan.native or isinstance(self._control.decided, NativeRequest)):
            raise ValueError(why)
        return plan

    def _put_in_force(self, plan: Plan, follows_order: bool = False) -> None:
        """Puts a plan in force that no controller decided on. With `follows_order` it is made again once the order of
        gradients is known."""
        self.follows_order = self._control.paused = follows_order
        self._install(plan)

    def _begin(self, plan: Plan, asked: Plan | None = None) -> Plan:
        """Begins with this plan, which a user may have `asked` for: `origin` is its part for the parameters that are
        trained. Returns the plan with which the controller begins; without one `origin`."""
        self.momenta.check(plan, self.momenta.made_by)
        # frozen parameters' slots leave the plan
        controller = self._options.controller
        waiting = {slot.name for slot in self._slots} - {slot.name for slot in self.trained}
        plan = plan.only(set(plan.names) - waiting)
        # the model, the front end and the controller each refuse what they cannot follow
        self._options.check(plan, self.trained)
        if controller and not plan.native:
            controller.check(self._with_frozen(plan, asked))
        # the controller may begin with another plan than the user's
        self.origin = plan
        self._options.check(first := begin(controller, plan) if controller else plan, self.trained)
        return first

    def _with_frozen(self, plan: Plan, asked: Plan | None) -> Plan:
        """The plan, with groups for frozen parameters too: a controller may be for those alone."""
        every = [slot for slot in self._slots if slot.name not in self._options.sparse]
        return plan if every == self.trained else self._made_for(every, asked)

    def _install(self, plan: Plan) -> None:
        self._agreement.check(plan)
        self._steps.install(plan)
        self.plan, self._native, self.native_steps = plan, None, None
        self.momenta.follow(plan)

    def _apply(self, change: Change | None) -> None:
        """Carries out a controller's decision."""
        match change:
            case Plan():
                self._install_decided(change)
            case ProfileRequest():
                # steps with a plan that are traced, and costs measured between two of them
                self._install_decided(change.plan)
                self._control.begin_tracing(change, self._pipeline.recorder.trace(change.steps), self._steps.number)
            case NativeRequest():
                # steps that the framework reduces, for their time
                self._install_decided(NATIVE)
                self._native, self.native_steps = change, change.steps
            case None:
                pass

    def _install_decided(self, plan: Plan) -> None:
        """Raises ReductionError, which names the controller, for a plan that cannot be put in force."""
        with failing_in(self._options.controller, "decide", self._pipeline.mesh.rank):
            self._options.check(plan, self.trained)
            self.momenta.check(plan, self.momenta.made_by)
        self._install(plan)
