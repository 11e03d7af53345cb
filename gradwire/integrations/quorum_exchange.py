"""The exchange of replicas under torchft: quorum, reduction and vote.

On all replicas that are in the quorum together, all on the thread that trains. Where a replica has several ranks, each
exchanges its shard with the same shard's ranks, over a group of their own, and no more: that all ranks of a replica
come, heal and count a step together, or none of them, is what torchft's quorum and vote are for.

    begin       the quorum of replicas. A replica that is behind loads what one further ahead has, its model included.
                Where the quorum is another one, memories are kept, a group is made anew, and all go on from there
    a step      gradients become means. At its end each promises the others that it has all of the step
    vote        Yes: the step counts for the memories as well. No: the exchange ends; memories are kept as they were
                before the step, and as they are after it, for other replicas may have said yes

The next quorum says after which step all go on, and so which of the two it is. Others may have gone further, without
this replica; what its memory holds, they have yet to get.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gradwire.checkpoint import StateDict, unpack
from gradwire.frontends import Handle
from gradwire.frontends.checkpoints.elastic_resume import go_on, memories_alone, without_memories
from gradwire.frontends.front_end import FrontEnd
from gradwire.frontends.null_job import NullFrontEnd
from gradwire.integrations.framework import check_fits
from gradwire.runtime.failures.job_errors import PeerFailed
from gradwire.runtime.meeting import Disagreement
from gradwire.runtime.runtime import Runtime
from gradwire.transports import Mesh, ProcessGroup


class QuorumExchange:
    """The exchange of gradients in one quorum after another. `make` gives the runtime of a group and its front end,
    `least` the minimum over a replica's ranks. `state` is this replica's `state()` from a checkpoint, which `has` some
    keys beside. `runtime` is None while no step can count."""

    def __init__(
        self,
        manager: Any,
        make: Callable[[Mesh], tuple[Runtime, FrontEnd]],
        least: Callable[[int], int],
        state: Mapping[str, Any] | None,
        has: Collection[str] = (),
    ) -> None:
        check_fits(_refusals(manager))
        self._manager = manager
        self._make = make
        self._least = least
        self.handle = Handle(None, NullFrontEnd())
        self.runtime: Runtime | None = None
        self._quorum, self._has_met = -1, False
        # by step: the states from which this replica may have to go on
        self._states: dict[int, StateDict] = {}
        # a checkpoint's memories count until the first quorum
        if state is not None:
            _check(state, {"step", "shard", "memories", *has}, manager)
            if memories := state["memories"]:
                unpack(memories)
                self._states[state["step"]] = memories
        self._healed: StateDict = {}
        # torchft sends a replica that is behind what `_shared` returns, and calls `_heal` with it
        manager.register_state_dict_fn("gradwire", self._heal, self._shared)

    def begin(self) -> None:
        """Begins a step with the replicas of the quorum."""
        # quorum
        step = self._manager.current_step()
        self._manager.start_quorum()
        if self._manager._quorum_id == self._quorum:
            if not self.runtime:
                self._manager.report_error(RuntimeError("this rank's exchange has ended in this quorum"))
            return
        # another quorum: leave the old group, heal, make a new one
        self._leave(step)
        self._quorum = self._manager._quorum_id
        if not self._healed_whole() or self._manager.errored():
            return
        # a replica was lost meanwhile, or a new one differs, which ends alone: no replica takes this step
        passing = (RuntimeError, Disagreement) if self._has_met else (RuntimeError,)
        try:
            self._meet()
        except passing as error:
            self.handle.leave()
            self._manager.report_error(error)

    def _healed_whole(self) -> bool:
        """Whether all ranks of this replica are after the same step. They are not where some could not heal because the
        rank with the state was lost: then the replica goes on from the least of their steps, and all of them heal
        again."""
        step = self._manager.current_step()
        least = self._least(step)
        # the ranks of this replica go on from the least, as if all of them had failed to heal
        if least != step:
            self._manager.load_state_dict(self._manager.state_dict() | {"step": least})
            self._manager.report_error(RuntimeError("another rank of this replica has not healed"))
        return least == step

    def vote(self) -> bool:
        """Votes; returns whether the step counts."""
        step = self._manager.current_step()
        # no: the group is given up, with the state before this step and the one after it
        if not self._manager.should_commit():
            self._leave(step)
            return False
        # yes: the step counts for the memories, too, which have all of it even where another replica has left meanwhile
        assert self.runtime
        try:
            self.runtime.commit()
        except PeerFailed:
            self._leave(step, counts=True)
        return True

    def state(self) -> dict[str, Any]:
        """This replica's part of a checkpoint, after the last step that counts."""
        return {"step": self._manager.current_step(), "shard": _shard(self._manager), "memories": self._own()}

    def _own(self) -> StateDict | None:
        """This replica's state after the last step in which it took part; None before the first quorum."""
        # in a quorum: the state of the running exchange
        if self.runtime:
            return self.handle.state_dict()
        # between two: what was kept after this step; of an older one only the memories are this replica's own
        now = self._manager.current_step()
        if not (known := [step for step in self._states if step <= now]):
            return None
        own = self._states[last := max(known)]
        return own if last == now else memories_alone(own)

    def _leave(self, step: int, counts: bool = False) -> None:
        """Ends the exchange, after so many steps and the one that was voted on, if it `counts`; the others' collectives
        end as well."""
        if self.runtime:
            self.runtime = None
            # the state before the step that was voted on, unless it is counted already, and the one after it
            states = self.handle.leave()
            first = step + 2 - len(states) if counts else step
            self._states = {first + more: state for more, state in enumerate(states)}

    def _meet(self) -> None:
        """All replicas of the quorum make a group, compare what must be equal, and load what each has kept."""
        # a group beside torchft's, over the same store
        mesh = Mesh.of(ProcessGroup.beside(self._manager._pg.parent))
        runtime, front_end = self._make(mesh)
        self.handle = Handle(runtime, front_end)
        # what is equal on all comes from the first replica, for controllers may differ by a step where an exchange has
        # ended within a vote; the memories are each one's own
        shared = self.handle.from_first(self._shared() or without_memories(self.handle.state_dict()))
        go_on(self.handle, shared, self._own(), mesh.rank, mesh.ranks)
        # this quorum's exchange goes on from here
        self.runtime = runtime
        self._states = {}
        self._healed = {}
        self._has_met = True

    def _shared(self) -> StateDict:
        """The state that all replicas share after the last step that counts; empty before the first quorum. Called on
        torchft's thread, while the training thread waits, or on that."""
        if self._healed:
            return self._healed
        own = self._own()
        return without_memories(own) if own else {}

    def _heal(self, state: StateDict) -> None:
        """Takes over the state of a replica further ahead. A checkpoint's memories are then older than what this
        replica has sent since."""
        self._healed = state
        if not self._has_met:
            self._states = {}


def _refusals(manager: Any) -> Mapping[str, bool]:
    """Error messages for managers that Gradwire cannot follow, and whether each applies to this one."""
    # torchft's, by name: this module does without it
    kinds = {kind.__name__ for kind in type(manager._pg).__mro__}
    return {
        "replicas must be equal before the forward pass; pass Manager(use_async_quorum=False)": (
            manager._use_async_quorum
        ),
        "means are those of all replicas, without spares; leave out Manager(world_size_mode=...)": (
            manager._replica_world_size_mode.name != "DYNAMIC"
        ),
        "replicas meet beside a process group of this process, not "
        f"{type(manager._pg).__name__}; pass Manager(pg=ProcessGroupGloo()), or ProcessGroupNCCL()": (
            not kinds & {"ProcessGroupGloo", "ProcessGroupNCCL"}
        ),
    }


def _shard(manager: Any) -> str:
    """The name of this rank's shard."""
    return f"{manager._group_rank} of {manager._group_world_size}"


def _check(state: Mapping[str, Any], keys: set[str], manager: Any) -> None:
    """Raises ValueError where a state lacks some of its keys, is another shard's, or another step's than the one from
    which the manager goes on."""
    if keys - state.keys():
        raise ValueError(f"the state lacks {min(keys - state.keys())!r}; pass what exchange_state() returned")
    # the shard that this rank has, after the step from which the manager goes on
    if state["shard"] != _shard(manager):
        raise ValueError(f"the state is that of shard {state['shard']}; this rank has {_shard(manager)}: load its own")
    if state["step"] != manager.current_step():
        raise ValueError(
            f"the state was saved after step {state['step']}, and the manager goes on from step "
            f"{manager.current_step()}; call manager.load_state_dict() with what was saved beside it, before this"
        )
