"""What replicas under torchft exchange, with whom, and whether it counts.

On all replicas that are in the quorum together, all on the thread that trains. Where a replica has several ranks, each
exchanges its shard with the same shard's ranks, over a group of their own, and no more: that all ranks of a replica
come, heal and count a step together, or none of them, is what torchft's quorum and vote are for.

    begin       the quorum: who is there. A replica that is behind loads what one further ahead has, its model included.
                Where the quorum is another one, memories are kept, a group is made anew, and all go on from there
    a step      gradients become means. At its end each promises the others that it has all of the step
    vote        Yes: the step counts for the memories as well. No: the exchange ends; memories are kept as they were
                before the step, and as they are after it, for other replicas may have said yes

The next quorum says after which step all go on, and so which of the two it is.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gradwire.checkpoint import StateDict, unpack
from gradwire.frontends import Handle
from gradwire.frontends.handing_on import go_on, without_memories
from gradwire.frontends.handle import FrontEnd
from gradwire.frontends.idle import Nothing
from gradwire.runtime.runtime import Runtime
from gradwire.transports import Mesh, ProcessGroup


class Exchange:
    """What replicas exchange in one quorum after another. `make` gives the runtime of a group, and its front end;
    `state` is this replica's `state()` from a checkpoint, which `has` some keys beside. `runtime` is there while its
    steps can count."""

    def __init__(
        self,
        manager: Any,
        make: Callable[[Mesh], tuple[Runtime, FrontEnd]],
        state: Mapping[str, Any] | None,
        has: Collection[str] = (),
    ) -> None:
        if manager._use_async_quorum:
            raise ValueError("replicas must be alike before the forward pass; pass Manager(use_async_quorum=False)")
        self._manager, self._make = manager, make
        self.handle = Handle(None, Nothing())
        self.runtime: Runtime | None = None
        self._quorum = -1
        self._states: dict[int, StateDict] = {}
        if state is not None:
            _check(state, {"step", "memories", *has}, manager.current_step())
            if memories := state["memories"]:
                unpack(memories)
                self._states[state["step"]] = memories
        self._healed: StateDict = {}
        manager.register_state_dict_fn("gradwire", self._heal, self._alike)

    def begin(self) -> None:
        """A step begins, with whoever is there."""
        step = self._manager.current_step()
        self._manager.start_quorum()
        if self.runtime and self._manager._quorum_id == self._quorum:
            return
        self._leave(step)
        if self._manager.errored():
            return
        try:
            self._meet()
        except RuntimeError as error:  # a replica was lost meanwhile: nobody takes this step
            self.handle.leave()
            self._manager.report_error(error)

    def vote(self) -> bool:
        """Whether the step counts."""
        step = self._manager.current_step()
        if not self._manager.should_commit():
            self._leave(step)
            return False
        assert self.runtime
        self.runtime.commit()
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint takes of this replica, after the last step that counts."""
        return {"step": self._manager.current_step(), "memories": self._own()}

    def _own(self) -> StateDict | None:
        """This replica's state after that step; None before the first quorum."""
        return self.handle.state_dict() if self.runtime else self._states.get(self._manager.current_step())

    def _leave(self, step: int) -> None:
        """Ends the exchange, after so many steps; the others' collectives end as well."""
        if self.runtime:
            self.runtime = None
            self._states = {step + more: state for more, state in enumerate(self.handle.leave())}

    def _meet(self) -> None:
        """All replicas of the quorum make a group, compare what must be alike, and load what each has kept."""
        self._quorum = self._manager._quorum_id
        mesh = Mesh.of(ProcessGroup.beside(self._manager._pg.parent))
        runtime, front_end = self._make(mesh)
        self.handle = Handle(runtime, front_end)
        alike = self._alike() or without_memories(unpack(self.handle.state_dict()))
        go_on(self.handle, alike, self._states.get(self._manager.current_step()), mesh.rank, mesh.ranks)
        self.runtime, self._states, self._healed = runtime, {}, {}

    def _alike(self) -> StateDict:
        """What all replicas have alike after the last step that counts; nothing before the first quorum. On torchft's
        thread, while that which trains waits, or on that."""
        if self._healed:
            return self._healed
        own = self._own()
        return without_memories(unpack(own)) if own else {}

    def _heal(self, state: StateDict) -> None:
        """Takes over what a replica further ahead has."""
        self._healed = state


def _check(state: Mapping[str, Any], keys: set[str], step: int) -> None:
    """Raises ValueError where a state lacks some of its keys, and where the manager goes on from another `step`."""
    if keys - state.keys():
        raise ValueError(f"the state lacks {min(keys - state.keys())!r}; pass what exchange_state() returned")
    if state["step"] != step:
        raise ValueError(
            f"the state was saved after step {state['step']}, and the manager goes on from step {step}; call "
            "manager.load_state_dict() with what was saved beside it, before this"
        )
