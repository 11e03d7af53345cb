"""The store: all state of a job, by slot, independent of the plan.

State of gradient size lies in state buffers; a group's part is a slice of them. A plan that changes ratios or
compressors moves nothing; one that groups or orders slots anew moves them once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

import torch
from torch import Tensor

from gradwire.checkpoint import GROUP
from gradwire.communicators import AllGather
from gradwire.compressors import GroupState, SlotState
from gradwire.compressors.context import SHARED
from gradwire.memories import RESIDUAL
from gradwire.ops.gradients import GradientSplit
from gradwire.ops.workspace import Workspace
from gradwire.plans import Group, Plan
from gradwire.runtime.state.row_memory import PLAIN_ROWS, RowMemory, RowScheme
from gradwire.runtime.state.state_buffers import BufferPart, StateBuffers, dtypes_of, kinds_of
from gradwire.runtime.state.stored_group import StoredGroup
from gradwire.slots import Layout, Slot

Exported = dict[str, dict[str, Tensor]]
"""By parameter and name: "residual" and others of gradient size, float32 in the parameter's shape, which may be views;
small tensors of a slot are "shared/...", those of a group "group/..."."""

Held = Mapping[str, Collection[str]]
"""By parameter, the kinds of state of gradient size that at least one rank has."""


class Store:
    """The state of all `slots`, arranged for the `groups` of a plan. It belongs to the worker; any other thread holds
    `Steps.changing` while it looks."""

    def __init__(
        self, slots: Sequence[Slot], device: torch.device, sparse: Collection[str] = (), rows: RowScheme = PLAIN_ROWS,
        rounds: bool = False,
    ) -> None:  # fmt: skip
        self.slots, self.device = list(slots), device
        # slots with sparse gradients, of which plans know nothing; the trained ones; how their rows are sent
        self.sparse = {i for i, slot in enumerate(slots) if slot.name in sparse}
        self._rows: tuple[int, ...] = ()
        self._row_way, self.rows = rows, RowMemory(slots, device)
        self.groups: list[StoredGroup] = []
        # whether any rank may have state of gradient size; the same on all, which have the same plans and load together
        self.keeps_state = rounds  # of local steps: anchors and outer momentum
        # by slot: the kinds of state of gradient size that a plan has written or a rank loaded; on all ranks alike
        self._index, self._written = {slot.name: i for i, slot in enumerate(slots)}, [set[str]() for _ in slots]
        self._buffers = StateBuffers(self.slots, device)
        # small state of earlier plans: by slot, and by slot that of the slot's group
        self._slot_tensors: list[dict[str, Tensor]] = [{} for _ in slots]
        self._group_tensors: list[dict[str, Tensor]] = [{} for _ in slots]

    @property
    def nbytes(self) -> int:
        """Bytes of all state and scratch of the groups."""
        others = sum(stored.slot_state.nbytes + stored.buffers.nbytes for stored in self.groups)
        return self._buffers.nbytes + self.rows.nbytes + others

    def train(self, names: Collection[str]) -> None:
        """Has the sparse gradients of these parameters alone take part in steps, from the next `arrange` on."""
        self._rows = tuple(i for i in sorted(self.sparse) if self.slots[i].name in names)

    def with_sparse_group(self, plan: Plan) -> Plan:
        """The plan, with one more group of all sparse gradients, if there are any."""
        if plan.native or not self._rows:
            return plan
        names = tuple(self.slots[i].name for i in self._rows)
        return Plan((*plan.groups, Group(names, *self._row_way, AllGather())))

    def members(self, plan: Plan) -> list[tuple[int, ...]]:
        """The slots of each of these groups."""
        return [tuple(self._index[name] for name in group.slots) for group in self.with_sparse_group(plan).groups]

    def arrange(self, plan: Plan) -> None:
        """Arranges the state for a plan's groups; every slot keeps its own. Without groups all stays where it is."""
        members = self.members(plan)
        # small tensors go back to their slots; state of gradient size moves, or stays
        self._write_back()
        before = {stored.slots: stored for stored in self.groups}
        if members:
            self._buffers.follow(members[: len(plan.groups)])
        # buffers of kinds that this plan needs for the first time, or in another type
        for kind, dtype in (dtypes := dtypes_of(plan)).items():
            self._buffers.need(kind, dtype)
        self.keeps_state |= bool(dtypes) or (bool(self._rows) and self._row_way[1].error_feedback)
        # groups with the same slots as before keep their scratch
        groups = zip(self.with_sparse_group(plan).groups, members, strict=True)
        self.groups = [self._stored(group, own, before.get(own)) for group, own in groups]

    def export(self, padded: bool = False) -> Exported:
        """All state, as views where it is float32; if `padded`, with zeros for state that only other ranks have."""
        # what groups have changed and not written back
        now = {
            i: (stored.kinds, small, stored.group_state.changed)
            for stored in self.groups
            for i, small in zip(stored.slots, stored.slot_state.slots, strict=True)
        }
        return {slot.name: self._export_slot(i, padded, *now.get(i, ((), {}, {}))) for i, slot in enumerate(self.slots)}

    def load(self, exported: Exported, held: Held) -> None:
        """Takes over what `export` returned. What it lacks begins anew: memories at zero, small tensors as a compressor
        makes them. A small tensor of another size takes the rows that both have. `held` is what any rank loads."""
        self.keeps_state = True
        loaded = [self._load_rows(i, exported.get(slot.name, {})) for i, slot in enumerate(self.slots)]
        for slot, written in zip(self.slots, self._written, strict=True):
            written.update(held.get(slot.name, ()))
        # places and buffers for all that some rank has
        kinds = [set(held.get(slot.name, ())) for slot in self.slots]
        for i in self.sparse:  # whose residual is a memory of rows
            kinds[i].discard(RESIDUAL)
        self._buffers.hold([i for i, own in enumerate(kinds) if own])
        for kind in {kind for own in kinds for kind in own}:
            self._buffers.need(kind)
        for i, tensors in enumerate(loaded):
            self._load_slot(i, tensors)
        # groups see the loaded state
        for stored in self.groups:
            stored.parts, stored.leader_of = self._parts(stored.kinds, stored.slots), {}
            stored.slot_state.load([self._init_slot(i, stored.group) for i in stored.slots])
            stored.group_state.load(self._group_tensors[stored.slots[0]])

    def close(self) -> None:
        """The last step can be taken back no more."""
        self.rows.close()
        for part in (part for stored in self.groups for part in stored.parts.values()):
            part.close()

    def _stored(self, group: Group, members: tuple[int, ...], before: StoredGroup | None) -> StoredGroup:
        """A group's state, with the buffers and views of the group that had the same slots before."""
        kinds = () if members == self._rows else kinds_of(group)
        parts, small = self._parts(kinds, members), SlotState([self._init_slot(i, group) for i in members])
        own = GroupState(group.compressor.init_group() | group.communicator.init_group())
        own.load(self._group_tensors[members[0]])
        if before:  # the same slots
            before.forget_views()
            # what another compressor or communicator needs is not this one's
            old, new = before.group.compressor, group.compressor
            alike = old == new or (new.shares_buffers and type(old) is type(new))
            if not alike or before.group.communicator != group.communicator:
                before.buffers.clear()
            return replace(before, group=group, kinds=kinds, parts=parts, slot_state=small, group_state=own)
        split = GradientSplit.by_slot(Layout(tuple(self.slots[i] for i in members)))
        rows = self.rows if members == self._rows else None
        return StoredGroup(members, split, group, kinds, parts, small, own, Workspace(self.device), rows=rows)

    def _parts(self, kinds: tuple[str, ...], members: Sequence[int]) -> dict[str, BufferPart]:
        # rows have a memory of their own
        wanted = [kind for kind in self._buffers.kinds if kind in (*kinds, RESIDUAL) and members != self._rows]
        return {kind: self._buffers.part(kind, members) for kind in wanted}

    def _init_slot(self, i: int, group: Group) -> dict[str, Tensor]:
        """The small tensors of a slot in this group; those of other plans wait."""
        slot, tensors = self.slots[i], self._slot_tensors[i]
        self._written[i].update(kinds_of(group))
        # draws follow the parameter's name alone, so all ranks and plans start with the same
        wanted = group.compressor.init_slot(*slot.matrix, torch.Generator().manual_seed(crc32(slot.name.encode())))
        # what the compressor wants now; another shape takes the rows that both have
        for name, fresh in wanted.items():
            old = tensors.get(name)
            if old is None or old.shape != fresh.shape:
                tensors[name] = fresh.to(self.device)
                if old is not None:
                    _copy_rows(tensors[name], old)
        return {name: tensors[name] for name in wanted}

    def _write_back(self) -> None:
        """Copies the small tensors of each group to its slots."""
        for stored in self.groups:
            for name, tensor in stored.group_state.changed.items():
                # each slot keeps its group's state, for the groups of the next plan
                for i in stored.slots:
                    self._group_tensors[i][name] = tensor.clone()
            for i, own in zip(stored.slots, stored.slot_state.slots, strict=True):
                self._slot_tensors[i] |= own

    def _export_slot(
        self, i: int, padded: bool, written: Sequence[str], small: Mapping[str, Tensor], changed: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """A slot's state; its group writes these kinds, and has these small tensors for the slot and for itself."""
        tensors = {SHARED + name: tensor for name, tensor in {**self._slot_tensors[i], **small}.items()}
        tensors |= {GROUP + name: tensor for name, tensor in {**self._group_tensors[i], **changed}.items()}
        wanted, sparse = set(self._written[i] if padded else written), i in self.sparse
        if (residual := self.rows.export(i, sparse and RESIDUAL in wanted)) is not None:
            tensors[RESIDUAL] = residual
        if sparse:
            wanted.discard(RESIDUAL)
        kept = [kind for kind in self._buffers.kinds if kind in wanted or self._buffers.used(kind, i)]
        return tensors | {kind: self._buffers.read(kind, i).float() for kind in kept}

    def _load_rows(self, i: int, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Takes over the residual of a sparse gradient; returns the rest of a slot's state."""
        if i not in self.sparse:
            return tensors
        self.rows.load(i, tensors.get(RESIDUAL))
        return {key: tensor for key, tensor in tensors.items() if key != RESIDUAL}

    def _load_slot(self, i: int, tensors: Mapping[str, Tensor]) -> None:
        # what the state lacks starts anew
        for kind in self._buffers.kinds.keys() - tensors.keys():
            self._buffers.clear(kind, i)
        self._slot_tensors[i], self._group_tensors[i] = {}, {}
        for key, tensor in tensors.items():
            if key.startswith(SHARED):
                self._slot_tensors[i][key.removeprefix(SHARED)] = tensor.to(self.device, copy=True)
            elif key.startswith(GROUP):
                self._group_tensors[i][key.removeprefix(GROUP)] = tensor.clone()
            else:
                self._buffers.write(key, i, tensor)


def _copy_rows(mine: Tensor, other: Tensor) -> None:
    """Copies the rows that both have, where these are equally long."""
    if mine.shape[1:] == other.shape[1:]:
        rows = min(len(mine), len(other))
        mine[:rows].copy_(other[:rows])
