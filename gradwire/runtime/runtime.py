"""The runtime: gradients in, means out, in their place. What front ends see of all that runs underneath."""

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import NoReturn, TypeVar

import torch
from torch import Tensor
from torch.futures import Future

from gradwire import checkpoint
from gradwire.plans import Plan
from gradwire.runtime.active_plan import ActivePlan
from gradwire.runtime.control import Control
from gradwire.runtime.executor import Executor, Point
from gradwire.runtime.failures import Ending, Left, forget_frames
from gradwire.runtime.intake import Intake, Waiting
from gradwire.runtime.meeting import Agreement
from gradwire.runtime.monitor import Monitor, end
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.runtime_options import RuntimeOptions
from gradwire.runtime.states import States, check
from gradwire.runtime.stats import Reduced, Stats
from gradwire.runtime.steps import Steps
from gradwire.runtime.store import Store
from gradwire.runtime.trace import Recorder, Trace
from gradwire.runtime.turns import Together, Turns
from gradwire.slots import Slot
from gradwire.transports import Mesh, forked

T = TypeVar("T")


class Runtime:
    """Reduces `slots` as a plan says, on a thread (and a CUDA stream) of its own.

    A front end opens a step, says of each slot where its gradient lies as backward makes it, all on the thread that
    trains, and finds the means there when it has waited. Groups start in the plan's order as soon as they are complete,
    and go on as the step's script says, so that the sequence of collectives depends on the plan alone. A step counts
    for all its groups or for none. `error` is what went wrong; every call raises it after that, but those that look at
    the state. `numel` are the elements of each parameter, `hosts()` the ranks' hosts; `elastic`: all left count a step.
    Raises ValueError, on all ranks, where ranks have different plans or options, and RuntimeError where one is lost.
    """

    def __init__(
        self,
        plan: Callable[[], Plan],
        slots: Sequence[Slot],
        mesh: Mesh,
        device: torch.device,
        options: RuntimeOptions,
    ) -> None:
        self.slots, self.mesh, self._options = list(slots), mesh.for_job(), options
        self.numel, self.elastic = {slot.name: slot.numel for slot in slots}, options.elastic
        self.error: BaseException | None = None
        self._failing, self._waiting, self._reduced = Lock(), Waiting(), Reduced(self.slots, mesh.averaged)
        planned = self.slots if options.planned is None else list(options.planned)
        words = {"seed": str(options.seed), **options.words}
        self._agreement = Agreement(self.mesh, planned, device, words, options.values)
        self.hosts, own_mesh = self._agreement.hosts, mesh if options.owns_mesh else None
        try:
            self._plans = ActivePlan(plan, self._agreement, options, planned)
        except BaseException:
            if own_mesh:
                own_mesh.close()
            raise
        self.executor = Executor(device)
        self.executor.fail = partial(_fail, weakref.ref(self))
        monitor = Monitor(self.mesh, self.executor) if mesh.silent else None
        self.recorder = Recorder(self.executor.mark, mesh.rank)
        self._pipeline = Pipeline(self.mesh, self.recorder)
        control = Control(options, planned, self._pipeline, self.executor)
        self._steps = Steps(Store(self.slots, device), self._pipeline, self.executor, control, options)
        self._steps.ended = partial(Runtime._step_ended, weakref.proxy(self))
        self._states = States(self._steps, self._plans, self._agreement, options)
        self._intake = Intake(self._steps, self._plans, self.executor, self.recorder)
        looks = self._intake.step_s, monitor.paused_s if monitor else float, self._intake.place
        self._ending = Ending(self.mesh, self.hosts, *looks)
        self._end = forked.finalize(self, end, self._ending, monitor, self.executor, own_mesh)
        forked.register(self)
        self.submit, self.submit_absent = self._intake.submit, self._intake.submit_absent
        self.fix_places, self.arrivals = self._intake.fix_places, self._intake.arrivals
        self.became_ready, self.wants_readiness = self._intake.became_ready, self._intake.wants_readiness
        self.arrive, self.native_begins = self.arrivals.arrive, partial(self.executor.post, self._steps.close)
        self._turns = turns = Turns(weakref.proxy(self), self._intake)
        self.open_step, self.reduce, self.give_up, self.detach = turns.open_step, turns.reduce, turns.give_up, turns.end
        self._reduced.follow(self._plans.trained)
        self.executor.call(partial(self._plans.work_with, self._steps, control, self._pipeline))

    # A step, on the thread that trains

    def missing(self) -> list[int]:
        """The slots of the open step of which nothing is known yet."""
        return self.arrivals.missing(self._intake.groups)

    def watch(self, buffer: Tensor) -> Future[Tensor]:
        """A future of `buffer`, complete when the step's means are in place."""
        future: Future[Tensor] = Future(devices=self.executor.future_devices())  # pyright: ignore[reportArgumentType]
        self._waiting.add(self._intake.step, future, buffer)
        self.executor.post(self._serve) if self.error is None else self._serve()
        return future.then(Future.value)  # where `future` fails, only this way does DDP raise the error itself

    def finish(self, point: Point | None = None) -> None:
        """Returns when the means of all steps, or of those up to `point`, are in place; raises what went wrong."""
        self.executor.flush(point)
        self.raise_error()
        self.executor.order_behind(point)

    def commit(self) -> None:
        """Counts the step whose means are in place; where steps are `voted` on, none counts without."""
        self._call(self._steps.count)
        self._call(self._plans.step_ended)

    def skip(self) -> None:
        """Takes back the last step, on all ranks together. Raises ValueError inside a backward pass, and where there is
        no step."""
        with self._turns.own("skip()"):
            if self.error is None:
                self.finish()
            taken_back = self._steps.take_back()  # as on other ranks, whether or not the job goes on
            self.raise_error()
            if taken_back:
                with self._telling():
                    self._agreement.on(lambda: {"step that skip() takes back": str(self._steps.number - 1)}, "skip()")

    def used(self, slot: int) -> bool:
        """Whether any rank had a gradient for the slot in the last step."""
        used = self._steps.used
        return used is None or bool(used()[slot])

    # Between steps

    @contextmanager
    def between_steps(self, call: str, **words: object) -> Iterator[Together]:
        """All ranks make this call together, on any thread; no step is under way or begins inside. Yields a function
        that has them carry out a task. Raises ValueError, on all ranks, where one of them is inside a backward pass, or
        has begun other steps, or they have other `words`."""
        with ExitStack() as turn:
            with self._telling():
                turn.enter_context(self._turns.call(call, words, self._agreement.on))
            yield self._together

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._plans.plan

    @property
    def native_steps(self) -> int | None:
        """For how many more steps the framework is to reduce by itself, where that is known."""
        return self._plans.native_steps

    def install(self, plan: Plan) -> None:
        """Puts `plan` in force; every parameter keeps its state. Raises ValueError where plan and model, or the ranks'
        plans, do not fit."""
        with self.between_steps("replan()"), self._telling():
            agreed = self._plans.agreed(lambda: plan)
            self._call(partial(self._plans.replace, agreed, plan))

    def follow(self, trained: Collection[str]) -> None:
        """From the next step on, which is opened after this, these parameters are reduced; what is kept for the others
        waits. All ranks do this after the same step; where they differ, the job ends on all of them."""
        with self._turns.turn():
            self.finish()
            with self._telling(Exception):
                agreed = self._plans.agreed_for(trained)
            self._call(partial(self._plans.follow, agreed))
            self._reduced.follow(self._plans.trained)

    def native_step_ended(self) -> None:
        """The framework has reduced a step by itself."""
        self._intake.native_step_ended()
        self._steps.native_step_ended()
        self._reduced.count()
        self._pipeline.wire_bytes += self._reduced.step_bytes
        self._plans.native_step_ended()

    def native_ended(self, median_s: float) -> None:
        """The framework has reduced as many steps as it was to, whose median took so long; what follows is in force."""
        self._call(partial(self._plans.native_ended, median_s))

    def state_dict(self, all_ranks: bool = False) -> checkpoint.StateDict:
        """A copy of the state after the last whole step, at any time, from any thread. That of `all_ranks` they ask for
        together, and rank 0 gets it, on the CPU. Raises ValueError where these keep different shards."""
        if not all_ranks:
            return self._states.save()
        check(self.mesh)
        with self.between_steps("state_dict(all_ranks=True)"):
            return self._call(partial(self._pipeline.agree, self._states.gather))

    def load_state_dict(self, state: checkpoint.StateDict) -> None:
        """Takes over what `state_dict` returned; parameters that it lacks keep theirs. Raises ValueError, on all ranks,
        for what is no such state, another model's, another rank's, or not saved with those of the others."""
        with self.between_steps("load_state_dict()"), self._telling():
            read = self._states.read(state)
            self._call(partial(self._states.take, read))

    def leave(self) -> list[checkpoint.StateDict]:
        """Ends the job at once, and tells the others: the state after the last whole step; then that after the next
        one, if it is the others who know whether that counts."""
        self.fail(Left(f"rank {self.mesh.rank} has left the job"))
        self.executor.order_behind()
        states = self._states.last()  # on this thread: the worker may be in a collective that only the timeout ends
        self.close()
        return states

    def trace(self, steps: int) -> Trace:
        """Records the next `steps` whole steps. Raises ValueError where the framework reduces by itself."""
        if self.plan.native:
            raise ValueError("DDP reduces by itself now, and nothing to trace; use torch.profiler")
        return self.recorder.trace(steps)

    def status(self) -> str:
        """The job's status in a few words."""
        if self.error:
            return f"ended: {self.error}"
        doing = self._options.controller.status if self._options.controller else ""
        return ", ".join(filter(None, (f"rank {self.mesh.rank} of {self.mesh.ranks}", doing, self._steps.spoilt)))

    def stats(self) -> Stats:
        """What was sent, and where time went."""
        return Stats.of(self._reduced, self._pipeline.wire_bytes, self._steps.skipped, self.recorder.totals())

    def close(self) -> None:
        """Ends the thread, and the mesh if it is this job's own."""
        self._end()

    def after_fork(self) -> None:
        """In a child, where locks may be held by threads that are not there: all of it is the parent's."""
        self._failing, self.error = Lock(), RuntimeError(forked.FORKED)

    # Errors, on any thread

    def raise_error(self) -> None:
        """Raises what went wrong, if anything did."""
        with self._failing:  # until it is known who is to blame
            if self.error:
                raise self.error

    def refuse(self, reason: str) -> NoReturn:
        """Ends the job where the framework did what cannot be; raises RuntimeError, here and on the other ranks."""
        error = RuntimeError(reason)
        self.fail(error)
        raise error

    def fail(self, error: BaseException) -> None:
        """Ends the job: this rank's calls raise the error, and the other ranks are told."""
        with self._failing:  # on any thread: the first error counts
            if self.error:
                forget_frames(error)
                return
            self.error = error
            self._steps.machine.fail()  # the worker starts nothing more
            self._pipeline.drain()
            forget_frames(error)  # they hold messages under way, and those the connections that abort is to close
            self._ending.end(error)  # the others' collectives end, and so does most often the worker's wait for one
            self._waiting.serve(self._intake.ended, error)
            self.executor.give_up(error)

    def _together(self, task: Callable[[Mesh, torch.device], T], alone: T) -> T:
        """The result of `task`, which all ranks carry out together; `alone` where there is one rank."""
        return self._call(partial(self._pipeline.agree, partial(task, self.mesh, self.executor.device)))

    def _call(self, task: Callable[[], T]) -> T:
        """Has the worker do what all ranks do now; where this one cannot, the others are told."""
        with self._telling(BaseException):
            return self.executor.call(task)

    @contextmanager
    def _telling(self, kind: type[BaseException] = RuntimeError) -> Iterator[None]:
        """Such an error, by default of a meeting that did not come about, ends the job; the first one is raised."""
        try:
            yield
        except kind as error:
            self.fail(error)
            self.raise_error()

    # On the worker

    def _step_ended(self) -> None:
        """Before whoever waits for the means goes on: the next step may find another plan."""
        self._reduced.count()
        if not self._steps.promised:
            self._plans.step_ended()
        self.recorder.add("wait", self._steps.last_arrival)
        self._intake.ended = self._steps.opened
        self._serve()

    def _serve(self) -> None:
        with self._failing:  # until it is known who is to blame
            error = self.error
        self._waiting.serve(self._intake.ended, error)


def _fail(runtime: "weakref.ref[Runtime]", error: BaseException) -> None:
    if (alive := runtime()) is not None:
        alive.fail(error)
