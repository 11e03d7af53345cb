"""Steps, carried out on the worker: entries of the script, the verdict, and what follows from it.

    begin       the verdict of the step before is read, where a GPU had not yet said it; the script begins
    complete    a group is there: entries are carried out until one waits for another group's gradients
    _end        1. the groups' `nonfinite` is added up, and over the axes that reduce nothing: one verdict on all ranks
                2. with find_unused, one sum tells which slots had a gradient on some rank
                3. elastic: the controller's sums are waited for, then one sum promises that all ranks have the step
                4. means that are not to count become NaN; the step is counted, or waits for a vote; `ended` says so to
                   all who wait
    settle      the verdict is read: on a CPU at once, on a GPU when the next step begins or somebody looks at the state
    take_back   the user skips the step: until the next one begins, its old state is whole
    close       the step can be taken back no more; state moves to where the next plan wants it

Every rank comes to the same collectives in the same order, for the script, the options and the plan are the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import RLock

import torch
from torch import Tensor

from gradwire.collective import HOST, REPLICA, Message, Sum
from gradwire.controllers import GroupView
from gradwire.ops.gradients import Gradients
from gradwire.ops.host import to_device
from gradwire.ops.workspace import Workspace
from gradwire.plans import Plan
from gradwire.runtime.control import Control
from gradwire.runtime.exchange import Given, GroupExchange, JobContext, ReplicaExchange
from gradwire.runtime.executor import Executor, Mark
from gradwire.runtime.host_exchange import HostExchange
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.machine import Machine
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.store import Store
from gradwire.script import Entry


class Steps:
    """The steps of a job, one after another. Everything here runs on the executor's thread, or while that is idle.

    `number` counts them, those before a resume included, and `taken` those of them that count: draws and turns follow
    these. `members` are the slots of each group from the next step on. `used` tells which
    slots had a gradient on some rank in the last step, where that is to be found out. `promised` says that this rank
    has told the others that it has all of a step, and has not counted it yet; `over`, that none is to count any more.
    Whoever looks at the state from another thread holds `changing`. `skipped` counts the steps that no rank took, and
    `spoilt` says so in words, with the group that was not finite in the last one. `ended()` is called when a step's
    means are in place; what it does is over before whoever waits for them goes on. `last_arrival` is when the latest
    group of the step was complete.
    """

    def __init__(
        self, store: Store, pipeline: Pipeline, executor: Executor, control: Control, options: JobOptions
    ) -> None:
        self.store, self.pipeline, self.executor, self.control = store, pipeline, executor, control
        self.machine = Machine()
        self.changing = RLock()
        self.number = self.taken = self.opened = self.skipped = 0
        self.spoilt = ""
        self.last_arrival: Mark = 0.0
        self.members: list[tuple[int, ...]] = []
        self.exchanges: list[GroupExchange] = []
        self.used: Callable[[], Tensor] | None = None
        self.ended: Callable[[], None] = lambda: None
        self._find_unused, self._scale, self._elastic = options.find_unused, options.scale, options.elastic
        self._voted = options.voted
        self.promised = self.over = False
        self._job = JobContext(pipeline.mesh, options.seed, Workspace(executor.device), look=control.look)
        self._all_used = torch.ones(len(store.slots), dtype=torch.float32, device=executor.device)
        self._word = self._flags = torch.zeros(1, dtype=torch.float32, device=executor.device)
        self._active: list[GroupExchange] = []
        self._given: dict[int, Given] = {}
        self._lost = False
        self._verdict: Callable[[], Tensor] | None = None
        self._next: Plan | None = None
        self._last: Sequence[GroupExchange] | None = None

    def install(self, plan: Plan) -> None:
        """Puts a plan in force from the next step on. Until that begins, state stays where it is."""
        self._next = plan
        members = self.store.members(plan)
        if members != self.members:
            self.members = members

    def close(self) -> None:
        """The last step can be taken back no more; state moves to where the next step's plan wants it."""
        with self.changing:
            self.settle()
            self._last = None
            plan, self._next = self._next, None
            if plan:
                self._arrange(plan)

    def take_back(self) -> bool:
        """No rank has taken the last step: all that is kept is what it was before, and so are draws and turns. Returns
        whether it did count before. Raises ValueError where there is no last step."""
        with self.changing:
            self.settle()
            if self.promised:  # it waits for a vote, without which it counts for no rank
                return False
            if self._last is None:
                raise ValueError("skip() takes back the last step, and there is none; call it after backward()")
            last, self._last = self._last, ()
            for exchange in last:
                exchange.take_back()
            if last:
                self.taken -= 1
                self._skipped("by skip()")
            return bool(last)

    def _arrange(self, plan: Plan) -> None:
        self.store.arrange(plan)
        remembers = any(group.memory.remembers or group.compressor.flat_state for group in plan.groups)
        job = replace(self._job, remembers=remembers)
        kind = HostExchange if job.mesh.host else ReplicaExchange
        self.exchanges = [
            kind(group, index, stored, job)
            for index, (group, stored) in enumerate(zip(plan.groups, self.store.groups, strict=True))
        ]

    def forget_places(self) -> None:
        """Gradients may lie elsewhere from now on."""
        for stored in self.store.groups:
            stored.fixed = None

    def native_step_ended(self) -> None:
        """The framework has reduced a step by itself."""
        self.number += 1
        self.taken += 1

    def lose(self) -> None:
        """No rank is to take the step that is under way, or begins next."""
        self._lost = True

    def begin(self, groups: Sequence[int], opened: int) -> None:
        """A step of these groups begins, the thread that trains having `opened` so many."""
        self.opened = opened
        with self.changing:
            self.close()
            if self.promised:  # the vote on the step before did not come
                self._forget()
                self.promised = False
        self._active = [self.exchanges[group] for group in groups]
        self.machine.begin(groups, [exchange.rounds for exchange in self.exchanges])

    def complete(
        self, group: int, tensors: Sequence[Tensor] | None, absent: Sequence[int], fixed: bool, arrival: Mark
    ) -> None:
        """All gradients of a group are there since `arrival`, in the order of its slots; none for those that are
        `absent`. Without `tensors` they lie where they did when `fixed` was said of them."""
        self.last_arrival = arrival
        self._given[group] = Given(self._gradients(group, tensors, fixed), absent, self._scale(), self._lost)
        self.machine.complete(group)
        while (entry := self.machine.next()) is not None:
            self._carry_out(entry)
        if self.machine.end():
            self._end()

    def settle(self) -> None:
        """Has the last step's verdict known, and its outcome be the state. Waits for a GPU, which is long done."""
        verdict, self._verdict = self._verdict, None
        if verdict is None:
            return
        whole, *each = verdict().isfinite().tolist()
        if self.executor.aborted:
            self._forget()
            return
        for exchange in self._active:
            exchange.commit() if whole else exchange.forget()
        self._last = self._active if whole else ()
        if whole:
            self.taken += 1
        else:
            spoilt = [str(exchange) for exchange, finite in zip(self._active, each, strict=True) if not finite]
            self._skipped(f"for {spoilt[0] if spoilt else 'another shard'} not being finite")

    def _skipped(self, why: str) -> None:
        self.skipped += 1
        self.spoilt = f"{self.skipped} skipped, the last step {self.number - 1} {why}"

    def _forget(self) -> None:
        for exchange in self._active:
            exchange.forget()

    def _gradients(self, group: int, tensors: Sequence[Tensor] | None, fixed: bool) -> Gradients:
        stored = self.store.groups[group]
        if tensors is None:
            assert stored.fixed is not None
            return stored.fixed
        self.executor.keep(tensors)
        if not fixed:
            return Gradients(stored.pieces, tensors)
        stored.fix(tensors)
        assert stored.fixed is not None
        return stored.fixed

    def _carry_out(self, entry: Entry) -> None:
        exchange = self.exchanges[entry.group]
        if entry.turn:
            self.pipeline.advance(entry.group)
            return
        self.pipeline.start(exchange, self._given.pop(entry.group), self.taken)
        if exchange is self._active[-1]:
            views = [GroupView(each.group, each.context, each.nonfinite) for each in self._active if each.compresses]
            self.control.send(self.number, views)

    def _end(self) -> None:
        """All groups are reduced: the step counts for all of them, on all ranks, or for none."""
        each = torch.cat([exchange.nonfinite for exchange in self._active])
        nonfinite = each.sum(0, keepdim=True)
        votes, self._lost = self._voted and not self._lost, False
        for axis, transport in self.pipeline.mesh.axes.items():
            if axis not in (REPLICA, HOST):  # who takes no part in the reduction takes part in the verdict
                self.pipeline.agree(partial(transport.run, Sum(Message.plain(nonfinite), axis)))
        used = self._agree_used()
        for exchange in self._active:
            exchange.keep_absent(used)
        self._flags = torch.cat([nonfinite, each])
        if self._elastic:
            self._promise()
        self.control.reduced(self._means, nonfinite, self._scale() or 1.0)
        self._spoil(nonfinite)
        if not votes:
            self.count()
        self.ended()

    def count(self) -> None:
        """The step that was reduced is over."""
        with self.changing:  # state_dict() of another thread sees the step before or this one, nothing between
            if self.over:
                return
            self.promised = False
            self._verdict = self.executor.on_host(self._flags)
            self.number += 1
            if self.executor.is_immediate:
                self.settle()

    def _promise(self) -> None:
        """Returns when all ranks have all of the step. So if it returns on one of them, the others can count the step
        without it, whoever is lost meanwhile; and nothing that follows needs another rank."""
        self.control.collect()
        self.promised = True
        self.pipeline.agree(partial(self.pipeline.mesh.sum, self._word))
        self.executor.synchronize()  # the optimizer is not to run before this is known

    def _agree_used(self) -> Tensor:
        """1 for each slot of the job that had a gradient on some rank, else 0."""
        if not self._find_unused:
            return self._all_used
        used = torch.ones(len(self.store.slots), dtype=torch.float32, device="cpu")
        for exchange in self._active:
            assert exchange.given is not None
            for slot in exchange.given.absent:
                used[exchange.stored.slots[slot]] = 0
        used = to_device(used, self.executor.device)
        self.pipeline.agree(partial(self.pipeline.mesh.sum, used))
        used.clamp_(max=1)
        self.used = self.executor.on_host(used)
        return used

    def _spoil(self, nonfinite: Tensor) -> None:
        """Where the step is not to count, nobody is to use its means."""
        if self.executor.is_immediate and nonfinite.isfinite():
            return
        for exchange in self._active:
            assert exchange.given is not None
            if self.executor.is_immediate:
                exchange.given.gradients.spoil()
            else:
                exchange.given.gradients.spoil_where(nonfinite)

    def _means(self) -> Mapping[str, Tensor]:
        """The step's means by parameter."""
        means: dict[str, Tensor] = {}
        for exchange in self._active:
            assert exchange.given is not None
            for index, slot in enumerate(exchange.stored.layout.slots):
                means[slot.name] = exchange.given.gradients.slot(index)
        return means
