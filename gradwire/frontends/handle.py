"""`Handle`: a user's access to a job's runtime."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, cast

from torch.distributed.checkpoint.storage import StorageReader

from gradwire.checkpoint import StateDict
from gradwire.frontends.checkpoints.distributed_checkpoint import DistributedState, job_of, saved_in
from gradwire.frontends.front_end import FrontEnd
from gradwire.frontends.null_job import ENDED, NOTHING, EndedRuntime, NullRuntime
from gradwire.frontends.summary import table
from gradwire.options import check_type
from gradwire.plans import Plan
from gradwire.runtime.replicas import differences, from_first, mend
from gradwire.runtime.runtime import Runtime
from gradwire.runtime.stats import OwnTime, Stats, Straggler, stragglers
from gradwire.runtime.trace import Trace
from gradwire.transports import forked


class Handle:
    """A job's handle: statistics, state, plan, and end.

    Calls that all ranks make together come between backward passes, before or after a forward pass, and what they
    change is in force from the next gradient on. Inside a backward pass, as from a hook, and where ranks have begun
    different steps, as calls of another thread may find them, they raise ValueError on all ranks, and nothing has
    changed. Calls of one rank may come at any moment, from any thread.
    """

    def __init__(
        self, runtime: Runtime | NullRuntime | None, front_end: FrontEnd, waits: bool = True,
        remark: Callable[[], str] = str, inner_steps: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        self._runtime: Runtime | NullRuntime = runtime or NullRuntime()
        self._front_end: FrontEnd | None = front_end
        self._own_time = OwnTime()
        self._waits = waits
        self._remark = remark
        self._inner_steps = inner_steps
        self._last_table = ""
        forked.register(self)

    def after_fork(self) -> None:
        """In a forked child, where every call raises RuntimeError: the job is the parent's."""
        self._runtime = self._front_end = cast(Any, forked.Elsewhere())

    @property
    def _attached(self) -> FrontEnd:
        """The front end. Raises ValueError after `detach()`."""
        if self._front_end is None:
            raise ValueError(ENDED)
        return self._front_end

    @property
    def detached(self) -> bool:
        """Whether `detach()` has ended the job."""
        return self._front_end is None

    @property
    def ended(self) -> bool:
        """Whether the job has ended, by `detach()` or with its DDP."""
        return self.detached or self._runtime.closed

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None with one rank, where nothing is sent."""
        return self._runtime.plan

    @property
    def origin(self) -> Plan | None:
        """The plan of the options, or of `replan`, of which a controller makes that in force; None with one rank."""
        return self._runtime.origin

    @property
    def elastic(self) -> bool:
        """Whether the job can lose ranks, and get new ones: see `gradwire.Rendezvous`."""
        return self._runtime.elastic

    @property
    def controlled(self) -> bool:
        """Whether a controller changes the plan."""
        return self._runtime.controlled

    def stats(self) -> Stats:
        """Bytes, ratios and seconds so far, of this rank, until `detach()`; of local steps, a step is an inner one. At
        any moment."""
        stats = self._runtime.stats()
        return stats if self._inner_steps is None else stats.over(self._inner_steps())

    def accumulate(self) -> AbstractContextManager[None]:
        """For all micro-batches but the last: backward passes inside only accumulate, the next one outside reduces the
        sum. Raises ValueError after `detach()`."""
        return self._attached.accumulate()

    def paused(self) -> AbstractContextManager[None]:
        """A context for backward passes whose gradients of this model are thrown away (of a `DistributedOptimizer`: of
        the parameters that it holds), as a generator's loss makes them in the critic. Inside, `p.grad` is this rank's
        own, and nothing is sent or remembered; afterwards it is what it was before. Forward and backward both belong
        inside. Raises ValueError after `detach()`."""
        return self._attached.paused()

    def skip(self) -> None:
        """Takes back the last step, where you leave out the optimizer's: memories, bases, thresholds and random draws
        are bit for bit what they were before its backward pass. Otherwise the part of them that error feedback
        keeps would come back in later steps, though you threw the gradients away.

        All ranks call this, after the same backward pass and before the next one, as they decide by what is the same on
        all of them, such as the norm of `p.grad`; where some do not, all end with an error that names them. To skip a
        step twice is to skip it once, and one that was not finite is skipped already. Controllers have seen the step.
        Raises ValueError inside a backward pass, before the first one, after passes that only accumulated, after
        `detach()`, and for local steps."""
        self._attached.skip()

    def status(self) -> str:
        """The job's status in one line: choosing a plan, running, or why it ended; and which parameters it leaves
        alone, though they need a gradient. At any moment."""
        return ", ".join(filter(None, (self._runtime.status(), self._remark())))

    def summary(self) -> str:
        """A table of the plan's groups, and what a step sent and where its time went; of an automatic plan also what
        dense took, what was tried, and why this one was chosen; at any moment."""
        groups = self._table()
        return f"{self._in_short()}\n{groups}" if groups else repr(self)

    def _table(self) -> str:
        own = self._runtime
        if own.plan is None:
            return self._last_table
        numel = {slot.name: slot.numel for slot in own.slots}
        return table(own.plan, numel, self.stats(), own.sparse, own.rows)

    def __repr__(self) -> str:
        return self._in_short(f"; {self.plan.describe() if self.plan else 'no plan'}")

    def _in_short(self, plan: str = "") -> str:
        stats = self.stats()
        sent = f", {stats.ratio:.1f} times fewer bytes" if isfinite(stats.ratio) else ""
        return f"<Handle {self.status()}{plan}; {stats.steps} steps{sent}>"

    def trace(self, steps: int = 1) -> Trace:
        """Records the next `steps` whole steps that Gradwire exchanges, asked for at any moment; `timelines()` of what
        this returns are there once the forward pass after them has begun. Raises ValueError where nothing is reduced
        here, and for local steps."""
        check_type("steps", steps, (int,), "1", optional=False)
        if steps < 1:
            raise ValueError(f"steps={steps} records nothing; use 1 or more")
        return self._runtime.trace(steps)

    def state_dict(self, all_ranks: bool = False) -> StateDict:
        """Memories and other compressor state after the last whole step, as tensors only.

        This rank's own by default, at any moment, from any thread: save one per rank, and see `gradwire.reshard` for
        another number of ranks. With `all_ranks`, which all of them call together, between backward passes, rank 0 gets
        that of all, on the CPU, for frameworks that save rank 0's state alone; any number of ranks can load it. Raises
        ValueError after `detach()`, with which memories are gone."""
        return self._runtime.state_dict(all_ranks)

    def load_state_dict(self, state: StateDict) -> None:
        """Takes over what `state_dict` returned, on this rank or of all ranks, whatever the plan was then; parameters
        that the state lacks have no memory from here on. All ranks do this together, between backward passes; the next
        gradient finds what was loaded.

        Raises ValueError, on all ranks and before anything has changed, for what is no whole state of this model,
        another rank's or another number of ranks', for states that were not saved together, and after `detach()`."""
        self._runtime.load_state_dict(state)

    def stateful(self, saved: str | Path | StorageReader | None = None, key: str | None = None) -> DistributedState:
        """The state of all ranks, for torch.distributed.checkpoint: `dcp.save({"gradwire": handle.stateful()}, ...)`
        keeps everything once, and any number of replicas and shards can load it, with what memories keep adding up to
        the same, when the checkpoint's path or reader is given as `saved`:
        `dcp.load({"gradwire": handle.stateful(path)}, checkpoint_id=path)`. Of several in one checkpoint, as of a
        GAN's two models, it is the one that was saved under `key`.

        Raises ValueError after `detach()`, where the checkpoint has no such state, and for a key without `saved`."""
        placed = self._attached.placed()
        return DistributedState(self._runtime, placed, saved_in(saved, key, job_of(placed)))

    def leave(self) -> list[StateDict]:
        """Ends the job at once, in whatever step it is; the other ranks' calls raise. For `gradwire.Rendezvous`.
        Returns the state after the last whole step; then that after the next one, where only the others know whether it
        counts."""
        # the state is taken before hooks go, while the step is as it was left
        states = self._runtime.leave()
        self._end()
        return states

    def _end(self) -> None:
        """Keeps the job's figures, where they can be had, and nothing else of it."""
        front_end, last = self._front_end, NOTHING
        with suppress(Exception):  # memories, which the caller has, matter more
            self._last_table, last = self._table(), self.stats()
        self._runtime, self._front_end = EndedRuntime(last), None
        self._remark, self._inner_steps = str, None
        if front_end:
            front_end.unhook()

    def from_first(self, state: Any) -> Any:
        """Rank 0's `state`, on all ranks, which ask together, between backward passes. Raises ValueError where it has
        something else than tensors, numbers and texts."""
        with self._runtime.between_steps("from_first()") as together:
            shared, refusal = together(partial(from_first, state), (state, ""))
        # all ranks refuse it, and their job goes on
        if refusal:
            raise ValueError(refusal)
        return shared

    def verify(self, heal: bool = False) -> list[str]:
        """Compares a checksum of every parameter, of local steps of every shared one, between replicas, not within one.
        All ranks call this together, between backward passes, every so many steps of an optimizer; of another thread
        only while none changes parameters, nor runs a sharded model.

        Raises RuntimeError, on all ranks, naming the first parameter that differs and where. With `heal`, ranks take
        what most of them have, and this returns the names of what differed; it raises where there is no majority.
        Buffers and the optimizer's state are neither compared nor mended. Raises ValueError after `detach()`."""
        front_end = self._attached
        # all ranks are between the same two steps while this context is open
        with self._runtime.between_steps("verify()", heal=heal) as together:
            held = front_end.held()
            # compare checksums; every rank gets the same list
            found = together(partial(differences, held), [])
            if found and not heal:
                raise RuntimeError(f"replicas differ: {found[0]}; verify(heal=True), or load a checkpoint on all ranks")
            if undecided := [each for each in found if each.source is None]:
                raise RuntimeError(f"replicas differ: {undecided[0]}, no majority; load a checkpoint on all ranks")
            # the ranks that differ take the majority's values
            if found:
                front_end.healed(together(partial(mend, held, found), []))
        return list(dict.fromkeys(each.name for each in found))

    def stragglers(self, factor: float = 1.2) -> list[Straggler]:
        """The ranks that the others wait for, the slowest first: whose own part of a step takes more than `factor`
        times the median of all ranks, in the mean since this was last called. All ranks call this together, between
        backward passes, every so many of them, and get the same; print one to read it.

        A rank's own part is all but the time from its last gradient to the means: it includes loading data, evaluating,
        and waits in collectives of your own, which hide a straggler. Where DDP reduces by itself, as under
        `gradwire.plans.NATIVE`, no wait is known, and no rank is named. Raises ValueError for a factor below 1, for
        local steps with `delay` or `eager`, which do not wait for each other, and after `detach()`."""
        if not factor >= 1:
            raise ValueError(f"factor={factor}: give 1 or more, of what the ranks' median takes")
        if not self._waits:
            raise ValueError("local steps with delay or eager do not wait for each other: there are no stragglers")
        stats = self.stats()
        own_s = self._own_time.per_step(stats.steps, stats.wait_s)
        # compare the ranks' own times, which all get
        with self._runtime.between_steps("stragglers()", factor=factor) as together:
            found = together(partial(stragglers, own_s, factor, self._runtime.hosts()), [])
        self._own_time.begin(stats.steps, stats.wait_s)
        return found

    def replan(self, plan: Plan) -> None:
        """Puts `plan` in force, from the next gradient on, for every parameter with the state that it has. All ranks
        do this together, between backward passes. Raises ValueError, on all of them, where the plan does not fit the
        model, the front end or the other ranks' plans, or after `detach()`. With one rank, which sends nothing, it
        does nothing."""
        check_type("plan", plan, (Plan,), 'gw.Plan.load("plan.json")', optional=False)
        self._runtime.install(plan)

    def detach(self) -> None:
        """Ends the job: DDP reduces dense again, by our hook, beside which it takes no other; a `DistributedOptimizer`,
        without which nothing is reduced, takes no more steps. Take `state_dict()` before if you want what memories
        hold. Raises ValueError, on the rank that calls, inside a backward pass."""
        runtime = self._runtime
        runtime.detach()
        # no step is under way: unhook, then close what belongs to the job
        try:
            self._end()
        finally:
            runtime.close()
