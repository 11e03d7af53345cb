"""Gradwire under torchft: an `Optimizer` in place of torchft's, on a plain model in place of torchft's DDP.

What happens in a step, on all replicas that are in the quorum together:

    zero_grad   the quorum: who is there. A replica that is behind loads what one further ahead has, its model included.
                Where the quorum is another one, memories are kept, a group is made anew, and all go on from there
    backward    gradients become means. At its end each promises the others that it has all of the step
    step        the vote. Yes: the step counts for the memories as well. No: the exchange ends; memories are kept as
                they were before the step, and as they are after it, for other replicas may have said yes

The next quorum says after which step all go on, and so which of the two it is.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from gradwire.checkpoint import StateDict, unpack
from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.frontends.handing_on import go_on, without_memories
from gradwire.frontends.hooks import GradientHooks, Whole
from gradwire.frontends.job import Choices, parameters_of, runtime_of, slots_of
from gradwire.plans import Plan
from gradwire.runtime.ending import Interrupted
from gradwire.runtime.runtime import Runtime
from gradwire.transports import Mesh, ProcessGroup

torchft: Any = import_module("torchft")  # by name, for it is not among what development needs


class Optimizer(torchft.Optimizer):
    """torchft's `Optimizer`, with the gradients of `model` compressed and averaged over the replicas of `manager`; the
    model is not to be wrapped in torchft's `DistributedDataParallel`. The `options` are those of `gradwire.attach` that
    say how gradients are reduced: memory, communicator, dense, groups, controller.

    `handle` is that of the present quorum. Memories of replicas that stay are those after the last step that counts,
    whatever happens; a replica that comes begins with empty ones.

    Raises ValueError for what `attach` refuses, for a manager with `use_async_quorum`, with which replicas are not yet
    alike when the forward pass begins, and for replicas of several ranks.
    """

    def __init__(
        self,
        manager: Any,
        optimizer: Any,
        model: nn.Module,
        compressor: Compressor | Plan | str,
        *,
        find_unused_parameters: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(manager, optimizer)
        self._choices = Choices.of(compressor, elastic=True, **options)
        self._choices.check()
        if manager._use_async_quorum:
            raise ValueError("replicas must be alike before the forward pass; pass Manager(use_async_quorum=False)")
        if manager._group_world_size > 1:
            raise ValueError("Gradwire's replicas are of one rank under torchft; use gw.Rendezvous, or one rank each")
        self._model, (self._parameters, self._others) = model, parameters_of(model)
        self._find_unused, self._seed = find_unused_parameters, seed
        self._front_end = self._new_front_end()
        self.handle = Handle(None, self._front_end)
        self._runtime: Runtime | None = None  # while its steps can count
        self._quorum = -1
        self._states: dict[int, StateDict] = {}
        self._healed: StateDict = {}
        manager.register_state_dict_fn("gradwire", self._heal, self._alike)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """A step begins, with whoever is there."""
        step = self.manager.current_step()
        super().zero_grad(set_to_none)
        if self._runtime and self.manager._quorum_id == self._quorum:
            return
        self._leave(step)
        if self.manager.errored():
            return
        try:
            self._meet()
        except RuntimeError as error:  # a replica was lost meanwhile: nobody takes this step
            self.handle.leave()
            self.manager.report_error(error)

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """The wrapped optimizer's step, if the vote is for it."""
        step = self.manager.current_step()
        if not self.manager.should_commit():
            self._leave(step)
            return
        assert self._runtime
        self._runtime.commit()
        self.optim.step(closure)

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the next one outside reduces the sum."""
        return self._front_end.accumulate()

    def _new_front_end(self) -> "_Gradients":
        return _Gradients(self.manager.report_error, self._parameters, self._model, Whole(), self._find_unused)

    def _leave(self, step: int) -> None:
        """Ends the exchange, after so many steps; the others' collectives end as well."""
        if self._runtime:
            self._runtime = None
            self._states = {step + more: state for more, state in enumerate(self.handle.leave())}

    def _meet(self) -> None:
        """All replicas of the quorum make a group, compare what must be alike, and load what each has kept."""
        self._quorum = self.manager._quorum_id
        mesh = Mesh.of(ProcessGroup.beside(self.manager._pg.parent))
        words = {"front end": "torchft's Optimizer", "find_unused_parameters": str(self._find_unused)}
        runtime = runtime_of(
            self._choices, self._parameters, slots_of(self._parameters), mesh, scaler=None, words=words,
            seed=self._seed, find_unused=self._find_unused, others=self._others, voted=True,
        )  # fmt: skip
        self._front_end = self._new_front_end()
        self.handle = Handle(runtime, self._front_end)
        alike = self._alike() or without_memories(unpack(self.handle.state_dict()))
        go_on(self.handle, alike, self._states.get(self.manager.current_step()), mesh.rank, mesh.ranks)
        self._front_end.hook_in(runtime)
        self._runtime, self._states, self._healed = runtime, {}, {}

    def _alike(self) -> StateDict:
        """What all replicas have alike after the last step that counts; nothing before the first quorum. On torchft's
        thread, while that which trains waits, or on that."""
        if self._healed:
            return self._healed
        own = self.handle.state_dict() if self._runtime else self._states.get(self.manager.current_step())
        return without_memories(unpack(own)) if own else {}

    def _heal(self, state: StateDict) -> None:
        """Takes over what a replica further ahead has."""
        self._healed = state


class _Gradients(GradientHooks):
    """As they are; where a replica is lost, the step goes on without means, and the manager hears why."""

    def __init__(self, report: Callable[[Exception], None], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._report = report

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        self._unless_lost(super()._forward_begins, module, arguments)

    def _gradient_ready(self, slot: int, parameter: Tensor) -> None:
        self._unless_lost(super()._gradient_ready, slot, parameter)

    def _backward_done(self) -> None:
        self._unless_lost(super()._backward_done)

    def _unless_lost(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._runtime is None:
            return
        try:
            call(*arguments)
        except Interrupted as error:
            self.unhook()
            self._report(error)
