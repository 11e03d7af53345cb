"""The runtime of a job, all that front ends see of it: gradients in, means out, in their place."""

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar

import torch

from gradwire import checkpoint
from gradwire.plans import Plan
from gradwire.runtime.agreement import Agreement
from gradwire.runtime.failures.failure_verdict import FailureVerdict
from gradwire.runtime.failures.first_error import FirstError
from gradwire.runtime.failures.job_end import close_all, end_job
from gradwire.runtime.failures.job_errors import RankLeft
from gradwire.runtime.failures.monitor import Monitor
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.plan.active_plan import ActivePlan
from gradwire.runtime.plan.controller_runner import ControllerRunner
from gradwire.runtime.state.states import States
from gradwire.runtime.state.store import Store
from gradwire.runtime.stats import DenseTraffic, Stats
from gradwire.runtime.steps.gradient_collector import GradientCollector
from gradwire.runtime.steps.pipeline import Pipeline
from gradwire.runtime.steps.rank_progress import RankProgress
from gradwire.runtime.steps.step_lock import RunOnAll, StepLock
from gradwire.runtime.steps.step_results import StepResults
from gradwire.runtime.steps.steps import Steps
from gradwire.runtime.trace import Recorder, Trace
from gradwire.runtime.worker.executor import Executor
from gradwire.slots import Slot
from gradwire.transports import Mesh, forked

T = TypeVar("T")


class Runtime:
    """Reduces `slots` as a plan says, on a thread (and a CUDA stream) of its own.

    On the thread that trains, a front end opens a step, submits each slot's gradient as backward makes it, and finds
    the means in their place when it has waited. Groups start in the plan's order, and go on as the step's script says:
    the sequence of collectives depends on the plan alone. A step counts for all its groups or for none.
    Raises ValueError, on all ranks, where ranks have different plans or options, and RuntimeError where one is lost.
    """

    closed = False
    owned: dict[torch.Tensor, str]
    """The parameters that this job averages, with what users call it: see `frontends.owners`."""
    is_immediate: bool
    """Whether means are there when `finish` returns: on a CPU. On a GPU `found_abort()` is 1 () if it was aborted."""
    arrived: bytearray
    """For each slot, whether its gradient of the open step has arrived or is known to be absent."""

    def __init__(
        self, plan: Callable[[], Plan], slots: Sequence[Slot], mesh: Mesh, device: torch.device, options: JobOptions
    ) -> None:
        self.slots, self.mesh = list(slots), mesh.for_job()
        self._options, self.owned = options, {}
        self.sparse, self.rows = options.sparse, options.rows
        self.elastic, self.controlled = options.elastic, options.controller is not None
        # the error and counters, which are needed from the beginning
        self._first_error = first_error = FirstError(weakref.WeakMethod(self._end_job))
        self.fail = first_error.fail
        self.raise_error = first_error.raise_error
        self.refuse = first_error.refuse
        self._dense_traffic = DenseTraffic(self.slots, mesh)
        planned = self.slots if options.planned is None else list(options.planned)
        self._agreement = Agreement(self.mesh, planned, device, options)
        self.hosts, own_mesh = self._agreement.hosts, mesh if options.owns_mesh else None
        # the ranks meet over the store, before any thread or connection is made
        try:
            first = partial(options.first_plan, plan, planned, self.mesh)
            self._active = ActivePlan(first, self._agreement, options, planned)
        except BaseException:
            self.mesh.release()
            if own_mesh:
                own_mesh.close()
            raise
        # the worker, and the thread that watches for lost ranks
        self._executor = Executor(device)
        self._executor.fail = first_error.fail
        watch = Monitor(self.mesh, self._executor) if mesh.needs_polling else None
        # a step's parts, by thread; then the job's end: a finalizer holds it, so no part of it refers to the job
        self._make_parts()
        paused_s, progress = watch.paused_s if watch else lambda _: 0.0, weakref.ref(self._progress)
        self._failure = FailureVerdict(self.mesh, self.hosts, paused_s, progress)
        self._end = forked.finalize(self, close_all, self._failure, watch, self._executor, self.mesh, own_mesh)
        forked.register(first_error)
        self._hand_on_calls()
        # the first plan is in force; then connections, which all ranks make together
        self._dense_traffic.follow(self._active.trained)
        self._call(partial(self._active.work_with, self._steps))
        self._call(partial(self._pipeline.open, device))
        self._agreement.patient = options.rounds and not options.voted

    def _make_parts(self) -> None:
        """Makes the parts of a step."""
        options, executor = self._options, self._executor
        # on the worker
        self._recorder = Recorder(executor, self.mesh.rank)
        self._pipeline = Pipeline(self.mesh, self._recorder)
        control = ControllerRunner(options, self._active.trained, self._pipeline, executor)
        store = Store(self.slots, executor.device, options.sparse, options.rows, options.rounds)
        step_ended = partial(Runtime._step_ended, weakref.proxy(self))
        self._steps = Steps(store, self._pipeline, executor, control, options, step_ended)
        # on the thread that trains
        self._states = States(self._steps, self._active, self._agreement, options)
        self._collector = GradientCollector(self._steps, self._active, options, self._first_error)
        self._progress = RankProgress(self._collector, self._steps)
        self._results = StepResults(self._steps, self._collector, self._first_error)
        self._step_lock = StepLock(self._collector, self._results, self._first_error)

    def _hand_on_calls(self) -> None:
        """Makes the parts' methods this runtime's own: forwarding would cost as much again at each gradient."""
        collector, lock, results, executor = self._collector, self._step_lock, self._results, self._executor
        # a step is opened, given up, and no other follows
        self.open_step = lock.open_step
        self.reduce = lock.reduce
        self.give_up = lock.give_up
        self.backward_failed = lock.backward_failed
        self.detach = lock.detach
        # its gradients come
        self.is_reduced = collector.is_reduced
        self.fix_addresses = collector.fix_addresses
        self.submit = collector.submit
        self.submit_absent = collector.submit_absent
        self.missing = collector.missing
        self.arrived = collector.arrivals.arrived
        self.mark_ready = collector.arrivals.mark_ready
        self.mark_absent = collector.arrivals.mark_absent
        self.backward_done = collector.backward_done
        self.native_begins = collector.native_begins
        # for the plan's order and for traces
        self.wants_readiness = collector.wants_readiness
        self.became_ready = collector.became_ready
        self.forward_begins = collector.forward_begins
        self.forward_ends = collector.forward_ends
        self.record_event = executor.record_event
        # its end
        self.watch = results.watch
        self.finish = results.finish
        self.wait_for_means = results.wait_for_means
        self.check_whole = results.check_whole
        self.is_immediate = executor.is_immediate
        self.fence = collector.fence
        self.found_abort = executor.found_abort
        self.used = self._steps.used.has

    # A step, on the thread that trains

    def commit(self) -> None:
        """Counts the step whose means are in place, where steps are `voted` on; raises the job's error, if any."""
        self._call(lambda: self._steps.count() and self._active.step_ended())
        self.raise_error()

    def skip(self, refusal: str = "") -> None:
        """Takes back the last step, on all ranks together. Raises ValueError in backward, where there is no step, and
        on all ranks where one of them has a `refusal`, the reason why it cannot."""
        with self._step_lock.local_call("skip()"):
            if self.error is None:
                self.finish()
            counts = self._steps.last_counts()
            if counts and self.error is None:
                own = {"error": refusal} if refusal else {"step that skip() takes back": str(self._steps.number - 1)}
                try:
                    self._agreement.on(lambda: own, "skip()")
                except RuntimeError as error:
                    self.fail(error)
            # where a rank is lost, all others take the step back, so that their states agree
            if counts and not refusal:
                self._steps.take_back()
            self.raise_error()

    # Between steps

    @contextmanager
    def between_steps(self, call: str, /, **facts: object) -> Iterator[RunOnAll]:
        """Holds all ranks between two steps, on any thread. Yields a function that runs a task on all. Raises
        ValueError, on all, where one is in backward, began other steps, or has other `facts`."""
        with ExitStack() as turn:
            with self._first_error.fail_job_on():
                turn.enter_context(self._step_lock.collective_call(call, facts, self._agreement.on))
            yield lambda task, alone: self._call(
                partial(self._pipeline.together, partial(task, self.mesh, self._executor.device))
            )

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._active.plan

    @property
    def origin(self) -> Plan:
        """The plan from which a controller made it."""
        return self._active.origin

    def install(self, plan: Plan) -> None:
        """Puts `plan` in force; all state stays. Raises ValueError where it does not fit the model or other ranks'."""
        with self.between_steps("replan()"), self._first_error.fail_job_on():
            agreed = self._active.agreed_replan(plan)
            self._call(partial(self._active.replan, agreed, plan))

    def follow(self, trained: Collection[str]) -> None:
        """Reduces these parameters from the next step on; state of all others is kept. All ranks call this after the
        same step; where they differ, the job ends on all of them."""
        # no call of all ranks comes in between
        with self._step_lock.hold():
            self.finish()
            with self._first_error.fail_job_on(Exception):
                agreed = self._active.agreed_for(trained)
            self._call(partial(self._active.follow, agreed))
            self._dense_traffic.follow(self._active.trained)

    def native_step_ended(self) -> int | None:
        """Counts a step that the framework has reduced by itself; returns how many follow, where that is known."""
        self._collector.native_step_ended()
        self._steps.native_step_ended(self._collector.opened)
        self._pipeline.wire_bytes += self._dense_traffic.count(())
        return self._active.native_step_ended()

    def native_ended(self, seconds: Sequence[float]) -> None:
        """Ends the framework's own steps, each of which took so long, and puts in force what follows."""
        self._call(partial(self._active.native_ended, seconds))

    def state_dict(self, all_ranks: bool = False, padded: bool = False) -> checkpoint.StateDict:
        """A copy of the state after the last whole step, at any time, from any thread; `padded` as in `Store.export`.
        With `all_ranks`, which they call together, rank 0 gets all, on the CPU; raises ValueError for shards."""
        if not all_ranks:
            return self._states.save(padded)
        self._states.check_whole()
        with self.between_steps("state_dict(all_ranks=True)"):
            return self._call(partial(self._pipeline.together, self._states.gather))

    def load_state_dict(self, state: checkpoint.StateDict, more_facts: Callable[[], Mapping[str, str]] = dict) -> None:
        """Takes over what `state_dict` returned; what it lacks begins anew. Raises ValueError, on all ranks, for what
        is no state, for another model's or rank's, for states that were not saved together, and where `more_facts`
        raises it or differs between ranks."""
        with self.between_steps("load_state_dict()"), self._first_error.fail_job_on():
            read = self._states.read(state, more_facts)
            self._call(partial(self._states.take, *read))

    def leave(self) -> list[checkpoint.StateDict]:
        """Ends the job at once, on all ranks. Returns the state after the last whole step; and the state after the next
        one, where this rank has confirmed that step and cannot know whether the others counted it."""
        self.fail(RankLeft(f"rank {self.mesh.rank} has left the job"))
        self._executor.order_behind()
        states = self._states.last()  # on this thread: the worker may be in a collective that only the timeout ends
        self.close()
        return states

    def trace(self, steps: int) -> Trace:
        """Records the next `steps` whole steps. Raises ValueError where the framework reduces by itself, and for rounds
        of local steps."""
        if self._options.rounds:
            raise ValueError("local steps send nothing in backward to trace; use handle.summary() or torch.profiler")
        if self.plan.native:
            raise ValueError("DDP reduces by itself now, so there is nothing to trace; use torch.profiler")
        return self._recorder.trace(steps)

    def status(self) -> str:
        """The job's status in a few words."""
        if self.error:
            return f"ended: {self.error}"
        doing = self._options.controller.status if self._options.controller else ""
        return ", ".join(filter(None, (f"rank {self.mesh.rank} of {self.mesh.ranks}", doing, self._steps.skip_reason)))

    def stats(self) -> Stats:
        """Bytes, seconds and counts so far."""
        return Stats.of(self._dense_traffic, self._pipeline.wire_bytes, self._steps, self._recorder.totals())

    def close(self) -> None:
        """Ends the thread, and the mesh if it is this job's own."""
        self.closed = self._step_lock.closed = True
        self._end()

    # Errors, on any thread

    @property
    def error(self) -> BaseException | None:
        """The job's first error. Every later call raises it, except those that only read the state."""
        return self._first_error.first

    def _end_job(self, error: BaseException) -> None:
        end_job(error, self._steps, self._results, self._failure)

    def _call(self, task: Callable[[], T]) -> T:
        """Runs a task on the worker, as all ranks do now. An error in it ends the job on all of them."""
        with self._first_error.fail_job_on(BaseException):
            return self._executor.call(task)

    def _step_ended(self) -> None:
        """Puts the next step's plan in force, then completes the futures that wait for the means. On the worker."""
        self._dense_traffic.count(self._steps.exchanges)
        if not self._steps.promised:
            self._active.step_ended()
        self._recorder.waited(self._steps.last_arrival)
        self._collector.reduced = self._steps.current
        self._results.complete()
