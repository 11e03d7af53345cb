"""Steps, carried out on the worker: entries of the script, the verdict on the step, and what follows from it.

    begin       the verdict on the step before is read, if a GPU had it not ready; where ranks have weights, their sum
                is agreed; the script begins
    complete    a group is there: entries are carried out until one waits for another group's gradients
    _end_step   1. the groups' `nonfinite` is summed, also over the axes that reduce nothing: one verdict on all ranks
                2. with find_unused, one sum finds the slots that had a gradient on some rank
                3. elastic: the controller's sums are awaited, then one sum promises that all ranks have the step
                4. means of a step that does not count become NaN; the step is counted, or waits for a vote;
                   `Runtime._step_ended` puts the next plan in force, and only then completes what waits for the means
    settle      the verdict is read: on a CPU at once, on a GPU when the next step begins or the state is looked at
    take_back   the user skips the step: until the next one begins, its old state is whole
    close       the step can be taken back no more; state moves to where the next plan has it

Every rank comes to the same collectives in the same order, for the script, the options and the plan are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import RLock

import torch
from torch import Tensor

from gradwire.controllers import GroupView
from gradwire.ops.vectors import Scalar
from gradwire.ops.workspace import Workspace, scratch_on
from gradwire.plans import Plan
from gradwire.runtime.exchanges.exchange import GroupExchange, JobContext
from gradwire.runtime.exchanges.float_residuals import FloatResiduals
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.exchanges.plan_exchanges import exchanges_for
from gradwire.runtime.exchanges.recordings import Recordings
from gradwire.runtime.failures.raised import raised
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.plan.controller_runner import ControllerRunner
from gradwire.runtime.state.store import Store
from gradwire.runtime.steps.machine import Machine
from gradwire.runtime.steps.pipeline import Pipeline
from gradwire.runtime.steps.step_verdict import StepVerdict
from gradwire.runtime.steps.used_slots import UsedSlots
from gradwire.runtime.steps.weights import Weights
from gradwire.runtime.worker.events import EPOCH, Event
from gradwire.runtime.worker.executor import Executor
from gradwire.script import Entry


class Steps:
    """The steps of a job, one after another. Everything here runs on the worker, or while it is idle. `number` and
    `counted` go on from a checkpoint; `current` and `last_counted` are of this job, like `GradientCollector.opened`."""

    number: int
    """All steps, including those before a resume."""
    counted: int
    """The steps that counted. Compressors' draws and periods follow it; for fragments, how often they were sent."""
    current: int
    """The step that the worker is in."""
    skipped: int
    """Steps that no rank took, since the job began."""
    skip_reason: str
    """The reason of the last skip, for status; with the group that was not finite."""
    last_arrival: Event
    """When the last group of the step was complete."""
    moved: Event
    """When state was last moved, or loaded, on the worker's stream."""
    members: list[tuple[int, ...]]
    """The slots of each group, from the next step on."""
    used: UsedSlots
    """The slots that some rank had a gradient for in the last step."""
    promised: bool
    """This rank has confirmed that it has all of a step, and has not counted it: until the vote, if there is one."""
    stopped: bool
    """No step counts any more: the job has failed, or the rank has left."""
    last_counted: int
    """The last step that counted on this rank."""
    changing: RLock
    """Held while a step is counted, taken back or arranged, and by other threads while they look at the state."""

    def __init__(
        self, store: Store, pipeline: Pipeline, executor: Executor, control: ControllerRunner, options: JobOptions,
        step_ended: Callable[[], None],
    ) -> None:  # fmt: skip
        self.store, self.pipeline = store, pipeline
        self.executor, self.control = executor, control
        self.machine, self.changing = Machine(), RLock()
        self.number = self.counted = self.current = self.skipped = self.last_counted = self._draws_step = 0
        self.skip_reason, self.members, self._step_ended = "", [], step_ended
        self.last_arrival = self.moved = EPOCH
        # of all groups; and of those in the step under way, which stay until its verdict is read
        self.exchanges, self._in_step = list[GroupExchange](), list[GroupExchange]()
        self._scale, self.elastic, self.voted = options.scale, options.elastic, options.voted
        self.promised = self.stopped = self._given_up = False
        self.job = JobContext(pipeline.mesh, options.seed, Workspace(executor.device), encode_hook=control.encode_hook)
        self.recordings = Recordings(executor, lambda: control.looks)
        self.float_residuals, self.kernels = FloatResiduals(executor.device), Workspace(executor.device)
        self.used = UsedSlots(len(store.slots), pipeline, executor, options.find_unused)
        self._promise_sum = torch.zeros(1, dtype=torch.float32, device=executor.device)
        self._weights, self._verdict = Weights(pipeline, executor), StepVerdict(pipeline, executor)
        # what each group of the step under way brings; and the next step's plan, where that is another one
        self._inputs: dict[int, GroupInput] = {}
        self._next_plan: Plan | None = None
        # the groups of the last step: empty where it did not count, None where it cannot be taken back
        self._last_groups: Sequence[GroupExchange] | None = None

    def install(self, plan: Plan) -> None:
        """Puts a plan in force from the next step on. Until that begins, state stays where it is."""
        self._next_plan, members = plan, self.store.members(plan)
        if members != self.members:  # for `GradientCollector` the same list means the same groups
            self.members = members

    def close(self) -> None:
        """Makes the last step final, and moves state to where the next step's plan has it."""
        with self.changing:
            self.settle()
            self.store.close()
            plan, self._next_plan, self._last_groups = self._next_plan, None, None
            if plan:
                self._arrange(plan)

    def last_counts(self) -> bool:
        """Whether the last step counts, and so may be taken back. Raises ValueError where there is none."""
        with self.changing:
            self.settle()
            if self.promised:  # it waits for a vote, without which it counts for no rank
                return False
            if self._last_groups is None:
                raise ValueError("skip() takes back the last step, and there is none; call it after backward()")
            return bool(self._last_groups)

    def take_back(self) -> None:
        """Takes back the last step, which counts: all state, draws and turns are what they were before."""
        with self.changing:
            for exchange in self._last_groups or ():
                exchange.take_back()
            self._last_groups = ()
            self.counted -= 1
            self._skipped("by skip()")

    def _arrange(self, plan: Plan) -> None:
        # move state, then make the groups' exchanges over it; views of where it lay are void
        self.store.arrange(plan)
        self.moved = self.executor.record_event()
        self.exchanges = exchanges_for(plan, self.store, self.job)
        self.kernels = scratch_on(self.executor.device)
        self.kernels.forget_views()
        self.float_residuals.follow(self.exchanges)
        self.recordings.follow(self.exchanges)
        if not self.exchanges:  # only what memories hold is kept
            self._in_step = []
            self.job.scratch.clear()
            self.kernels.clear()

    def forget_addresses(self) -> None:
        """Forgets where gradients lie."""
        for stored in self.store.groups:
            stored.fixed = None
        self.recordings.clear()

    def record(self) -> None:
        """Records the turns that are due; between two steps, while the thread that trains waits."""
        with self.changing:
            self.settle()
            if self._next_plan is None and not self.promised:
                self.recordings.record()

    def native_step_ended(self, opened: int) -> None:
        """Counts a step that the framework has reduced by itself; none before it can be taken back any more."""
        with self.changing:
            self.settle()
            self.number, self.counted = self.number + 1, self.counted + 1
            self.last_counted = opened
            self._last_groups = None

    def give_up(self) -> None:
        """Marks the step that is under way, or begins next, as one that no rank takes."""
        self._given_up = True

    def begin(self, groups: Sequence[int], opened: int, weight: Scalar | None, times_sent: int | None) -> None:
        """Begins a step of these groups; `opened` is its number. `weight` is this rank's in the mean, None if ranks
        have no weights. `times_sent` is how often the groups were sent, None if every step sends them."""
        # settle the step before, and arrange the plan, before anything of this one is written
        with self.changing:
            self.close()
            if self.promised:  # the vote on the step before did not come
                for exchange in self._in_step:
                    exchange.forget()
                self.control.drop_numbers()
                self.promised = False
        self.current, self._in_step = opened, [self.exchanges[group] for group in groups]
        self._draws_step = self.counted if times_sent is None else times_sent
        self.float_residuals.begin(groups)
        self.executor.waits.step_begins()
        self.pipeline.recorder.step_begins(self.control.times)
        self._weights.agree(weight)  # on their sum, which every payload needs
        self.machine.begin(groups, [exchange.rounds for exchange in self.exchanges])

    def complete(
        self, group: int, tensors: Sequence[Tensor] | None, absent: Sequence[int], fixed: bool, arrival: Event
    ) -> None:
        """Takes a complete group's gradients, in the order of its slots; `absent` ones are zeros. Without `tensors`
        they lie where they lay when they were `fixed`. `arrival` is when the step's last group was complete."""
        # the group's input: where its gradients lie, and the loss scale that they have
        self.last_arrival, stored = arrival, self.store.groups[group]
        if tensors is not None:
            self.executor.keep(tensors)
        gradients, residual = stored.gradients(tensors, fixed), self.float_residuals.of(group)
        self._inputs[group] = GroupInput(
            gradients, absent, self._scale(), self._given_up, self._weights.share, float_residual=residual
        )
        self.machine.complete(group)
        # walk the script as far as groups are there, until the step is over
        while (entry := self.machine.next()) is not None:
            self._carry_out(entry)
        if self.machine.end():
            self._end_step()

    def settle(self) -> None:
        """Reads the last step's verdict, and commits or forgets. Waits for a GPU, which is long done."""
        if (read := self._verdict.read()) is None:
            return
        whole, *each = read
        for exchange in self._in_step:
            exchange.commit() if whole else exchange.forget()
        self._last_groups = self._in_step if whole else ()
        if whole:
            self.counted, self.last_counted = self.counted + 1, self.current
        else:
            bad = next((str(one) for one, good in zip(self._in_step, each, strict=True) if not good), "another shard")
            self._skipped(raised(self.pipeline.mesh, self.current) or f"for {bad} not being finite")

    def _skipped(self, why: str) -> None:
        self.skipped += 1
        self.skip_reason = f"{self.skipped} skipped, the last step {self.number - 1} {why}"

    def _carry_out(self, entry: Entry) -> None:
        exchange = self.exchanges[entry.group]
        # a later turn: the collective before is awaited
        if entry.turn:
            return self.pipeline.advance(entry.group)
        # the first turn: add up, encode, start the first collective
        self.pipeline.start(exchange, self.recordings.run(exchange, self._inputs.pop(entry.group), self._draws_step))
        # behind the last group's first turn, the controller's numbers travel while groups are decoded
        if exchange is self._in_step[-1]:
            views = [GroupView(each.group, each.context, each.nonfinite) for each in self._in_step if each.compresses]
            self.control.send(self.number, self.counted, views, self.recordings.are_to_come)

    def _end_step(self) -> None:
        """Ends the step when all groups are reduced: it counts for all of them, on all ranks, or for none."""
        # agree on one verdict
        votes, self._given_up = self.voted and not self._given_up, False
        self._verdict.agree(self._in_step)
        # find the slots that no rank used
        used = self.used.agree(self._in_step)
        for exchange in self._in_step:
            exchange.keep_absent(used)
        # on a GPU: drop what collectives that were aborted have left
        nonfinite = self._verdict.add_abort()
        # elastic: confirm that all ranks have all of the step
        if self.elastic:
            self._promise()
        # show the means to the controller, and make them NaN where the step does not count
        self.control.reduced(self._means, nonfinite, 1.0 if (scale := self._scale()) is None else scale)
        self._verdict.poison(self._in_step)
        self.recordings.step_ended(self._in_step)
        for exchange in self._in_step:
            exchange.drop_gradients()
        # count the step, or wait for the vote; then the threads that wait for the means go on
        if votes or self.count():
            self._step_ended()

    def count(self, last: bool = False) -> bool:
        """Counts the reduced step; returns False where steps are `stopped`, unless this is the `last` step to count."""
        with self.changing:  # a state_dict() of another thread has the step before or this one
            if self.stopped and not last:
                return False
            self.promised = False
            self._verdict.fetch()
            self.number += 1
            if self.executor.is_immediate:
                self.settle()
            return True

    def stop(self) -> None:
        """Counts no step any more, as the job has failed: from here on `last_counted` stays as it is."""
        with self.changing:
            self.stopped = True
            self.settle()

    def _promise(self) -> None:
        """Returns when all ranks have all of the step. From then on each can count it without the others, even if some
        are lost meanwhile."""
        # the controller's sums first: they are part of the step
        self.control.collect()
        self.promised = True
        # a rank takes part once it has all of the step: so a rank that has the sum knows that all have it
        self.pipeline.sum(self._promise_sum)
        self.pipeline.together(self.executor.synchronize)  # the optimizer is not to run before this is known

    def _means(self) -> Mapping[str, Tensor]:
        """The step's means by parameter."""
        return {name: mean for exchange in self._in_step for name, mean in exchange.means().items()}
