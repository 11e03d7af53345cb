"""State dicts of a job: saved, gathered from all ranks, and loaded."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradwire import checkpoint
from gradwire.checkpoint import GROUP, SHARDED, StateDict, Unpacked, each_tensor, is_small, pack, sum_of
from gradwire.collective import HOST, REPLICA, SHARD
from gradwire.compressors import COMMON
from gradwire.compressors.context import SHARED
from gradwire.options import dtype_name, dtype_of
from gradwire.plans import Plan
from gradwire.runtime.agreement import Agreement
from gradwire.runtime.failures.job_errors import AbsentRanks
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.plan.active_plan import ActivePlan
from gradwire.runtime.state.store import Exported, Held
from gradwire.runtime.steps.steps import Steps
from gradwire.slots import Slot
from gradwire.transports import Mesh


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
        kept = json.dumps(_kept(own, self._slots))
        facts = self._agreement.gather("load_state_dict()", {"common": json.dumps(_common(own)), "kept": kept})
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
        return replace(own, exported=exported), _held({its["kept"] for its in facts}, self._slots)

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


PIECE = 1 << 22
"""Elements that are gathered at a time, so that a GPU needs little scratch memory."""


def check(mesh: Mesh, shard: str) -> None:
    """Raises ValueError where ranks keep different shards, or all of them one `shard` of several."""
    if other := mesh.axes.keys() - {REPLICA, HOST}:
        raise ValueError(f"along {min(other)!r} {SHARDED}")
    if shard:
        raise ValueError(f"this job has {shard}, and other {SHARDED}")


def gather(own: Unpacked, slots: Sequence[Slot], mesh: Mesh, agreement: Agreement, device: torch.device) -> StateDict:
    """The state of all ranks, on rank 0; the others get the part that is equal on all. All ranks call this together,
    with their `own`."""
    # over the store: which state each rank has, and which small tensors
    kept, small = json.dumps(_kept(own, slots)), json.dumps(_small(own))
    facts = agreement.gather("state_dict(all_ranks=True)", {"kept": kept, "small": small})
    held = _held({its["kept"] for its in facts}, slots)
    # what is equal on all ranks is this rank's own
    exported = {
        name: {key: t.cpu() for key, t in tensors.items() if key.startswith(SHARED)}
        for name, tensors in own.exported.items()
    }
    _gather_flat(own, slots, held, mesh, device, exported)
    _gather_small(own, [json.loads(its["small"]) for its in facts], mesh, device, exported)
    job = {name: tensor.cpu() for name, tensor in own.job.items()}
    return pack(exported, job, own.step, replace(own.about, gathered=True))


def _common(own: Unpacked) -> list[tuple[str, str, str]]:
    """By parameter and name the checksums of what ranks that reduce a group together have in common."""
    everything = each_tensor(own.exported)
    return [(name, key, sum_of(tensor)) for name, key, tensor in everything if key.startswith(GROUP + COMMON)]


def _kept(own: Unpacked, slots: Sequence[Slot]) -> dict[str, str]:
    """By kind of state of gradient size a 1 or 0 for each slot: whether this rank has it."""
    kinds = sorted({key for _, key, _ in each_tensor(own.exported) if not is_small(key)})
    return {kind: "".join("01"[kind in own.exported.get(slot.name, {})] for slot in slots) for kind in kinds}


def _held(kept: Collection[str], slots: Sequence[Slot]) -> Held:
    """What some rank has, of all that ranks have said by `_kept`."""
    ranks = [json.loads(each) for each in kept]
    return {
        slot.name: {kind for own in ranks for kind, has in own.items() if has[i] == "1"} for i, slot in enumerate(slots)
    }


def _gather_flat(
    own: Unpacked, slots: Sequence[Slot], held: Held, mesh: Mesh, device: torch.device, exported: Exported
) -> None:
    """Adds the state of gradient size to rank 0's `exported`: all ranks' rows of what some rank has."""
    wanted = [(slot, kind) for slot in slots for kind in sorted(held[slot.name])]
    for slot, kind in wanted:
        # a rank that has none sends zeros
        mine = own.exported.get(slot.name, {}).get(kind)
        rows = _rows(torch.zeros(slot.numel, dtype=torch.float32, device=device) if mine is None else mine, slot, mesh)
        if mesh.rank == 0:
            exported.setdefault(slot.name, {})[kind] = rows


def _rows(mine: Tensor, slot: Slot, mesh: Mesh) -> Tensor:
    """Every rank's tensor of a slot, (ranks, *shape)."""
    pieces = [mesh.gather(piece).cpu() for piece in mine.reshape(-1).split(PIECE)]
    return torch.cat(pieces, 1).view(mesh.ranks, *slot.shape)


Small = Sequence[tuple[str, str, str, Sequence[int]]]
"""For each small tensor of a rank parameter, name, type and shape."""


def _small(own: Unpacked) -> Small:
    """The small tensors that this rank keeps."""
    return [
        (name, key, dtype_name(tensor.dtype), [*tensor.shape])
        for name, key, tensor in each_tensor(own.exported)
        if key.startswith(GROUP)
    ]


def _gather_small(own: Unpacked, small: Sequence[Small], mesh: Mesh, device: torch.device, exported: Exported) -> None:
    """Adds to rank 0's `exported` a row per rank of what some rank has; a rank that has none gets another's."""
    # of each the type and shape of the first rank that has it
    likes = {(name, key): (dtype, shape) for its in reversed(small) for name, key, dtype, shape in its}
    for name, key, *kind in (each for its in small for each in its):
        if kind != [*likes[name, key]]:
            raise ValueError(
                f"ranks keep {key!r} of {name!r} in different shapes; save handle.state_dict() of each rank"
            )
    if not likes:
        return
    # the bytes of all of them, in an order that all ranks know: one collective
    empty = {
        at: torch.zeros(shape, dtype=dtype_of(dtype), device=device) for at, (dtype, shape) in sorted(likes.items())
    }
    parts = [own.exported.get(name, {}).get(key, like).to(device) for (name, key), like in empty.items()]
    parts = [part.reshape(-1).view(torch.uint8) for part in parts]
    rows = mesh.gather(torch.cat(parts)).cpu().split([part.numel() for part in parts], 1)
    if mesh.rank == 0:
        have = [{(name, key) for name, key, _, _ in its} for its in small]
        for ((name, key), like), part in zip(empty.items(), rows, strict=True):
            first = next(rank for rank, its in enumerate(have) if (name, key) in its)
            chosen = part[[rank if (name, key) in its else first for rank, its in enumerate(have)]]
            exported.setdefault(name, {})[key] = chosen.view(like.dtype).view(mesh.ranks, *like.shape)
