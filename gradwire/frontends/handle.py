"""What `attach` returns."""

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from gradwire.checkpoint import StateDict
from gradwire.plans import Plan
from gradwire.runtime.runtime import Runtime
from gradwire.runtime.stats import Stats
from gradwire.runtime.trace import Trace


class FrontEnd(Protocol):
    """Between a framework and the runtime: it hands gradients over, and has the framework reduce by itself where the
    plan is native."""

    def unhook(self) -> None:
        """Hands nothing over any more."""
        ...

    def accumulate(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the next one outside reduces the sum."""
        ...


class Handle:
    """Looks into a job's runtime, saves its state, and ends it."""

    def __init__(self, runtime: Runtime | None, front_end: FrontEnd) -> None:
        self._runtime = runtime
        self._front_end: FrontEnd | None = front_end

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None with one rank, where nothing is sent."""
        return self._runtime.plan if self._runtime else None

    def stats(self) -> Stats:
        """Bytes, ratios and seconds so far, of this rank."""
        return self._runtime.stats() if self._runtime else Stats(0, 0, 0, 0, 0, 0, 0)

    def accumulate(self) -> AbstractContextManager[None]:
        """For all micro-batches but the last: backward passes inside only accumulate, the next one outside reduces the
        sum. Raises ValueError after `detach()`."""
        if self._front_end is None:
            raise ValueError("detach() ended the exchange of gradients; attach() again")
        return self._front_end.accumulate()

    def trace(self, steps: int = 1) -> Trace:
        """Records the next `steps` whole steps; `timelines()` of what this returns are there once the forward pass
        after them has begun. Raises ValueError where nothing is reduced here."""
        if not self._runtime or self._runtime.plan.native:
            why = "DDP reduces by itself now" if self._runtime else "there is one rank"
            raise ValueError(f"{why}, and nothing to trace; use torch.profiler")
        return self._runtime.trace(steps)

    def state_dict(self) -> StateDict:
        """This rank's memories and other compressor state: tensors only. Save one per rank; to resume with
        another number of ranks see `checkpoint.reshard`."""
        return self._runtime.state_dict() if self._runtime else {"step": torch.tensor(0)}

    def load_state_dict(self, state: StateDict) -> None:
        """Takes over what `state_dict` returned on this rank, whatever the plan was then. All ranks do this together.

        Raises ValueError, on all ranks, for what is no such state."""
        if self._runtime:
            self._runtime.load_state_dict(state)

    def replan(self, plan: Plan) -> None:
        """Puts `plan` in force from the next step on; all ranks must do so after the same step. Every parameter keeps
        its state. Raises ValueError where the plan does not fit the model or the other ranks' plans."""
        if self._runtime:
            self._runtime.install(plan)

    def detach(self) -> None:
        """DDP reduces dense again; a `DistributedOptimizer`, without which nobody reduces, takes no step any more. What
        memories hold is in `state_dict()` before, if you want it."""
        runtime, self._runtime = self._runtime, None
        front_end, self._front_end = self._front_end, None
        if front_end:
            front_end.unhook()
        if runtime:
            runtime.close()
