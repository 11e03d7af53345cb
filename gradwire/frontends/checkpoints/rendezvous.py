"""Rendezvous: ranks come and go, and those that are there go on together where the job was."""

import os
import sys
import traceback
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.checkpoint.stateful import Stateful

from gradwire.checkpoint import STEP, StateDict
from gradwire.frontends.checkpoints.elastic_resume import go_on, without_memories
from gradwire.frontends.handle import Handle
from gradwire.options import check_type
from gradwire.torch_private.process_groups import leave_default_group
from gradwire.transports.connections import Connections, drop_groups
from gradwire.transports.members import Generation, Members
from gradwire.transports.process_group import world_or

OFF = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_DUMP_ON_TIMEOUT")
"""By these torch's watchdog ends a process, 60 s after a rank was lost, whether or not its group was left since."""


class Rendezvous:
    """A meeting place of processes, where they meet again after every loss and arrival. `store` must outlive all of
    them: a TCPStore of a process of its own.

    A group is made when `at_least` so many have come, and none for `last_call_timeout` seconds; that should be longer
    than a step. A process of the job that comes later than that is a newcomer, and its memories are lost. `timeout`, a
    `datetime.timedelta`, is how long to wait for enough of them, and that of the group's collectives.
    """

    def __init__(
        self,
        store: Store,
        *,
        at_least: int = 2,
        last_call_timeout: float = 5.0,
        timeout: timedelta = timedelta(minutes=10),
        backend: str | None = None,
    ) -> None:
        check_type("store", store, (Store,), "torch.distributed.TCPStore(host, port)", optional=False)
        check_type("at_least", at_least, (int,), "2", optional=False)
        check_type("last_call_timeout", last_call_timeout, (float, int), "5.0", optional=False)
        check_type("timeout", timeout, (timedelta,), "timedelta(minutes=10)", optional=False)
        if at_least < 1 or last_call_timeout <= 0:
            given = f"at_least={at_least}, last_call_timeout={last_call_timeout}"
            raise ValueError(f"{given}: wait for a rank or more, and for some time")
        # the watchdog of NCCL would end the process while ranks are gone
        _check_watchdog(backend or ("nccl" if torch.cuda.is_available() else "gloo"))
        self._store = store
        self._timeout = timeout
        self._backend = backend
        self._members = Members(store, at_least, last_call_timeout, timeout.total_seconds())
        # the job that runs now, and what a rank hands on to the next one
        self._generation: Generation | None = None
        self._connections = Connections()
        self._resumed: Handle | None = None
        self._states: dict[int, StateDict] = {}
        self._steps = -1

    def meet(self, handle: Handle | None = None) -> None:
        """Makes torch.distributed of all processes that are there now: instead of `dist.init_process_group`, and again
        whenever training raised RuntimeError or there are `newcomers`. The group before, and `handle`'s exchange of
        gradients, in whatever step they were, are given up; make DDP or DistributedOptimizer and the handle anew. By
        default `handle` is the one that was resumed.

        Raises TimeoutError where too few come, RuntimeError where all that had the model are lost or the store does not
        answer, and ValueError where the handle was detached.
        """
        # leave the old group: the resumed handle's state is kept; the others' collectives end, and they come here, too
        for running in dict.fromkeys(filter(None, (handle, self._resumed))):
            self._leave(running)
        if error := sys.exception():
            # the frames' variables would keep the old group alive, and the group its connections
            traceback.clear_frames(error.__traceback__)
        if dist.is_initialized():
            self._connections.shut_down()
            held = [world_or(None)]
            leave_default_group()
            drop_groups(held)
        # over the store alone, for there is no group: the processes that are there; the furthest becomes rank 0
        self._generation = made = self._members.meet(self._steps)
        store = PrefixStore(f"gradwire/generation/{made.number}", self._store)
        with self._connections:
            dist.init_process_group(
                self._backend, store=store, rank=made.rank, world_size=len(made.claims), timeout=self._timeout
            )

    def resume(self, handle: Handle, *common: Stateful) -> int:
        """Has all ranks go on from the furthest one's state; returns its number of steps, 0 at the first beginning. All
        call this together, with a new `handle`; parameters and buffers are equal by then. `common` is all else that is
        equal on all ranks: optimizer, scheduler, scaler. Memories are those before the step that was given up, and
        newcomers begin with none.

        Raises ValueError where `handle` is not elastic, for a second handle, and where a state has something else than
        tensors and numbers."""
        if self._generation is None or not handle.elastic:
            raise ValueError("call meet() first, and resume() with a handle that was made with elastic=True")
        if self._resumed not in (None, handle):
            raise ValueError(
                "a Rendezvous keeps the state of one handle, and another was resumed since meet(); put both models "
                "into one module, and that into one DDP"
            )
        claims = self._generation.claims
        # the first rank has come furthest; from the very beginning there is nothing to go on from
        newest = claims[0]
        if newest.steps >= 0:
            # memories: each rank's own, where it was in the last generation: if others went on without it, void
            stayed = claims[self._generation.rank].generation == newest.generation
            self._go_on(handle, self._states.get(newest.steps) if stayed else None)
            # parameters' companions: where some rank is behind, all take the first one's
            if any(claim != newest for claim in claims):
                self._share(handle, common)
        self._resumed = handle
        self._steps = max(newest.steps, 0)
        self._states = {}
        self._members.begun()
        return self._steps

    def newcomers(self) -> bool:
        """Whether a process waits to join: then `meet` again. It is enough that one rank asks, now and then, and meets;
        the others' calls raise, as after a loss."""
        return self._members.newcomers()

    def _go_on(self, handle: Handle, own: StateDict | None) -> None:
        """Goes on from rank 0's small state, and from this rank's `own` memories."""
        assert self._generation is not None
        # all ranks: rank 0's small state is broadcast, each loads it beside its own memories, then comes rank 0's plan
        first = handle.from_first(without_memories(own) if own else {})
        go_on(handle, first, own, self._generation.rank, len(self._generation.claims))

    def _share(self, handle: Handle, common: Iterable[Stateful]) -> None:
        assert self._generation is not None
        # all ranks in the same order: optimizer, scheduler, ... of rank 0
        for each in common:
            state = handle.from_first(each.state_dict())
            if self._generation.rank:
                each.load_state_dict(state)

    def _leave(self, handle: Handle) -> None:
        """Keeps this process's last whole states. A handle that has not resumed has none that counts."""
        detached, states = handle.detached, handle.leave()
        # the last whole state, and the one after it, where only the others know whether that step counts
        if handle is self._resumed:
            if detached:
                raise ValueError("the handle was detached, and its state is gone; call meet(handle), not detach()")
            if not states:
                raise ValueError("nothing counted the steps of a model without DDP; wrap it before others can join")
            self._states = {int(state[STEP]): state for state in states}
            self._steps, self._resumed = min(self._states), None


def _check_watchdog(backend: str) -> None:
    """Raises ValueError where torch would end the processes that are to go on."""
    if "nccl" in backend and any(os.environ.get(name) != "0" for name in OFF):
        raise ValueError(
            f"on NCCL torch ends a process a minute after another one was lost; set {' and '.join(OFF)} to 0 before "
            "Python starts, on all ranks"
        )
