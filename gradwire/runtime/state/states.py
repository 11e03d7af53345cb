"""State dicts of a job: saved, and loaded."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from gradwire import checkpoint
from gradwire.checkpoint import GROUP, SHARDED, each_tensor, sum_of
from gradwire.collective import HOST, REPLICA, SHARD
from gradwire.compressors import COMMON
from gradwire.plans import Plan
from gradwire.runtime.agreement import Agreement
from gradwire.runtime.failures.job_errors import AbsentRanks
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.plan.active_plan import ActivePlan
from gradwire.runtime.state.gathered_state import gather, held_by_some, kept_by
from gradwire.runtime.state.store import Held
from gradwire.runtime.steps.steps import Steps


class States:
    """The state dicts of a job. `read` is for the thread that trains, while the worker is idle, `gather` and `take` for
    the worker, `save` and `last` for any thread."""

    def __init__(self, steps: Steps, plans: ActivePlan, agreement: Agreement, options: JobOptions) -> None:
        self._steps = steps
        self._plans = plans
        self._agreement = agreement
        self._options = options
        self._mesh, self._slots = steps.pipeline.mesh, steps.store.slots
        # that of a loaded state, once one is loaded
        self._training = agreement.training

    def save(self, padded: bool = False) -> checkpoint.StateDict:
        """A copy of this rank's state after the last whole step, as `Store.export` has it."""
        steps = self._steps
        plans = self._plans
        mesh = self._mesh
        # the worker counts no step meanwhile: memories and step number belong together
        with steps.changing:
            steps.settle()
            # on a GPU: state that was moved is there
            steps.moved.synchronize()
            # residuals of rows are written in place: the copies wait for the worker's stream
            if steps.store.rows.nbytes:
                steps.executor.order_behind()
            skipped = steps.number - steps.counted
            shards = mesh.ranks // mesh.averaged
            plan, momenta = plans.plan.to_json(), plans.momenta.made_by
            order = plans.order.names
            about = checkpoint.About(
                mesh.rank, mesh.ranks, plan, order, skipped, shards=shards, momenta=momenta, training=self._training,
                shard=self._options.shard,
            )  # fmt: skip
            return checkpoint.pack(steps.store.export(padded), plans.export(), steps.number, about)

    def last(self) -> list[checkpoint.StateDict]:
        """The state after the last whole step of a job that is over; then that after the next one, if the others may
        have counted it."""
        with self._steps.changing:
            states = [self.save()]
            # this rank has promised the step: the others may have counted it already
            if self._steps.promised:
                self._steps.count(last=True)
                states.append(self.save())
        return states

    def check_whole(self) -> None:
        """Raises ValueError where ranks keep different shards, or all of them one shard of several: `gather` would have
        rank 0's alone."""
        if other := self._mesh.axes.keys() - {REPLICA, HOST}:
            raise ValueError(f"along {min(other)!r} {SHARDED}")
        if self._options.shard:
            raise ValueError(f"this job has {self._options.shard}, and other {SHARDED}")

    def gather(self) -> checkpoint.StateDict:
        """The state of all ranks, on rank 0; all of them call this together."""
        own = checkpoint.unpack(self.save())
        return gather(own, self._slots, self._mesh, self._agreement, self._steps.executor.device)

    def read(
        self, state: checkpoint.StateDict, more_facts: Callable[[], Mapping[str, str]]
    ) -> tuple[checkpoint.Unpacked, Held]:
        """This rank's part of a state that all ranks load together, and what any of them loads; changes nothing yet.
        Raises ValueError, on all ranks, where one of them cannot load it, or `more_facts` raises it, or where their
        states do not belong together, also by these facts."""
        # loading is tried: a controller that has loaded is put back where ranks disagree
        before, read, plans = self._plans.export(), list[checkpoint.Unpacked](), list[Plan | None]()

        def facts() -> Mapping[str, str]:
            others = more_facts()
            whole = checkpoint.unpack(state)
            own, here = whole.of_rank(self._mesh.rank, self._mesh.ranks, self._options.rounds), self._options.shard
            if own.about.shard not in ("", here):
                raise ValueError(f"this is {whole.about}, and here is {here or 'a whole model'}; load each rank's own")
            own.check(self._slots, self._options.others)
            plans.append(self._plans.check(own))
            read.append(own)
            return {**whole.facts(sharded=SHARD in self._mesh.axes), **others}

        try:
            # all ranks meet here, and load all or none
            self._agreement.on(facts, "load_state_dict()")
            # a controller's state may go on with what this job's plan does not have
            if plan := plans[0]:
                self._agreement.on_arithmetic((group.compressor for group in plan.groups), "load_state_dict()")
            return self._alike(read[0])
        except (ValueError, AbsentRanks):
            self._plans.restore(before)
            raise

    def _alike(self, own: checkpoint.Unpacked) -> tuple[checkpoint.Unpacked, Held]:
        """This rank's part, without those `COMMON` tensors that are not equal on all ranks that reduce a group
        together, as when other ranks lead the hosts than did before. All these ranks begin such a tensor anew."""
        everything = each_tensor(own.exported)
        common = [(name, key, sum_of(tensor)) for name, key, tensor in everything if key.startswith(GROUP + COMMON)]
        own_facts = {"common": json.dumps(common), **kept_by(own, self._slots)}
        facts = self._agreement.gather("load_state_dict()", own_facts)
        # the ranks that differ in their place on the axis "replica" alone
        places = [self._mesh.place(rank) | {REPLICA: 0} for rank in range(self._mesh.ranks)]
        mine = places[self._mesh.rank]
        peers = [its for its, place in zip(facts, places, strict=True) if place == mine]
        held = [set(map(tuple, json.loads(its["common"]))) for its in peers]
        unlike = {(name, key) for name, key, _ in set.union(*held) - set.intersection(*held)}
        exported = {
            name: {key: tensor for key, tensor in tensors.items() if (name, key) not in unlike}
            for name, tensors in own.exported.items()
        }
        return replace(own, exported=exported), held_by_some(facts, self._slots)

    def take(self, read: checkpoint.Unpacked, held: Held) -> None:
        """Loads the state that was read."""
        self._plans.load(read)
        self._training = read.about.training or self._training
        with self._steps.changing:
            # the last step is final, and counted, before its number goes: nothing of it comes into the loaded state
            self._steps.close()
            self._steps.number, self._steps.counted = read.step, read.step - read.about.skipped
            self._steps.store.load(read.exported, held)
            self._steps.moved = self._steps.executor.record_event()
            self._steps.recordings.clear()
