"""One group's state: its parts of the state buffers, its small tensors, and its scratch buffers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gradwire.compressors import DoubleBuffer, GroupState, SlotState
from gradwire.memories import RESIDUAL
from gradwire.ops.gradients import Gradients, GradientSplit
from gradwire.ops.workspace import Workspace
from gradwire.plans import Group
from gradwire.runtime.state.row_memory import RowMemory
from gradwire.runtime.state.state_buffers import BufferPart
from gradwire.slots import Layout


@dataclass(eq=False)
class StoredGroup:
    """One group's state: its parts of the state buffers, its small tensors, and its scratch buffers."""

    slots: tuple[int, ...]
    """The numbers of its slots."""
    split: GradientSplit
    """Its slots as parts of one vector, with views that steps use."""
    group: Group
    """Itself, in the plan."""
    kinds: tuple[str, ...]
    """The kinds of state of gradient size that its steps write."""
    parts: Mapping[str, BufferPart]
    """Its parts of the state buffers, by kind."""
    slot_state: SlotState
    """The small tensors of its slots, such as a low-rank basis."""
    group_state: GroupState
    """Its own small tensors, such as a threshold."""
    buffers: Workspace
    """Scratch that it keeps from step to step."""
    leader_of: dict[str, int] = field(default_factory=dict)
    """By kind of state, the one rank of the host that has it; a kind that several ranks may have is missing."""
    fixed: Gradients | None = None
    """Its gradients, where they lie in the same place at every step."""
    rows: RowMemory | None = None
    """The residuals of sparse gradients, of their group."""

    @property
    def layout(self) -> Layout:
        return self.split.layout

    @property
    def flat(self) -> dict[str, DoubleBuffer]:
        """The double buffers of every kind that its steps write, and of the residual where there is one."""
        return {kind: part.double_buffer for kind, part in self.parts.items()}

    @property
    def sides(self) -> tuple[int, ...]:
        """Which half of each double buffer is the present state, by one of two numbers each."""
        small = (id(now) for now, _ in self.slot_state.buffers.values())
        return (*(part.side for part in self.parts.values()), *small)

    @property
    def pending(self) -> bool:
        """Whether an earlier plan left a residual, to be sent with the next gradient, and this one has no memory."""
        return RESIDUAL not in self.kinds and RESIDUAL in self.parts and self.parts[RESIDUAL].used

    def commit(self) -> None:
        """Makes what the step wrote the state: it was good."""
        for kind in self.kinds:
            self.parts[kind].commit(used=True)
        self.slot_state.commit()
        self.group_state.commit()

    def gradients(self, tensors: Sequence[Tensor] | None, fixed: bool) -> Gradients:
        """Its gradients in these tensors, by slot; None stands for the tensors that were `fixed`. With `fixed` they lie
        there from now on, and buffers that are not needed any more are dropped."""
        if tensors is None:
            assert self.fixed is not None
            return self.fixed
        if not fixed:
            return Gradients(self.split, tensors)
        self.fixed = Gradients.merged(self.layout, tensors)
        self.split = GradientSplit.by_slot(self.layout)
        self.buffers.clear()
        return self.fixed

    def forget_views(self) -> None:
        """Drops views of state and buffers, which may lie elsewhere from now on."""
        self.buffers.forget_views()
        self.split.forget_views()
        if self.fixed:
            self.fixed.split.forget_views()

    def drop_pending_residual(self, whole: bool) -> None:
        """Drops the pending residual, which a good step has sent; but for absent slots, if it was not sent `whole`."""
        self.parts[RESIDUAL].commit(used=not whole)

    def take_back(self) -> None:
        """Undoes the last commit; only until the next step writes."""
        for part in self.parts.values():
            part.take_back()
        self.slot_state.take_back()
        self.group_state.take_back()

    def forget(self) -> None:
        """Drops what the step wrote: it was bad."""
        self.slot_state.forget()
        self.group_state.forget()
