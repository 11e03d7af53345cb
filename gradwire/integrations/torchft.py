"""Gradwire under torchft, on a plain model: `Optimizer` in place of torchft's and of its DDP, `LocalSteps` in place of
its DiLoCo and LocalSGD. What happens at their quorums and votes is in `gradwire.integrations.quorum`."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.frontends.fragments import Fragment, Schedule, fragments_of
from gradwire.frontends.handle import FrontEnd
from gradwire.frontends.hooks import GradientHooks, Whole
from gradwire.frontends.idle import Nothing
from gradwire.frontends.job import Choices, Dense, device_of, parameters_of, runtime_of, slots_of
from gradwire.frontends.local_steps import DILOCO
from gradwire.frontends.rounds import OuterOptimizer, go_back, outer_step
from gradwire.groups import Grouping
from gradwire.integrations.quorum import Exchange
from gradwire.memories import Memory
from gradwire.plans import Plan
from gradwire.runtime.ending import Interrupted
from gradwire.runtime.runtime import Runtime
from gradwire.runtime.settings import Settings
from gradwire.transports import Mesh

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
        self._model, (self._parameters, self._others) = model, parameters_of(model)
        self._find_unused, self._seed = find_unused_parameters, seed
        self._exchange = Exchange(manager, self._make)
        self._front_end = self._new_front_end()

    @property
    def handle(self) -> Handle:
        """Looks into what this replica exchanges in the present quorum."""
        return self._exchange.handle

    def zero_grad(self, set_to_none: bool = True) -> None:
        """A step begins, with whoever is there."""
        self._exchange.begin()
        self._front_end.reduced = False
        self.optim.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """The wrapped optimizer's step, if the vote is for it."""
        if self._exchange.vote():
            self.optim.step(closure)

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the next one outside reduces the sum."""
        return self._front_end.accumulate()

    def _new_front_end(self) -> "_Gradients":
        return _Gradients(self.manager.report_error, self._parameters, self._model, Whole(), self._find_unused)

    def _make(self, mesh: Mesh) -> tuple[Runtime, FrontEnd]:
        words = {"front end": "torchft's Optimizer", "find_unused_parameters": str(self._find_unused)}
        runtime = runtime_of(
            self._choices, self._parameters, slots_of(self._parameters), mesh, scaler=None, words=words,
            seed=self._seed, find_unused=self._find_unused, others=self._others, voted=True,
        )  # fmt: skip
        self._front_end = self._new_front_end()
        self._front_end.hook_in(runtime)
        return runtime, self._front_end


class LocalSteps(torchft.Optimizer):
    """`gradwire.LocalSteps` on the replicas of `manager`: each takes `inner_steps` steps by itself, then comes a round,
    with quorum and vote. One that does not count is dropped: parameters go back to what replicas share. Its arguments
    are those of `gradwire.LocalSteps`.

    Whoever makes one waits for the others' next round, and takes part in it with nothing moved: it begins with what
    they share from there. Raises ValueError as `Optimizer` does.
    """

    def __init__(
        self,
        manager: Any,
        inner_optimizer: Any,
        model: nn.Module,
        compressor: Compressor | Plan | str | None = None,
        *,
        memory: Memory | None = None,
        communicator: Communicator | None = None,
        inner_steps: int = 500,
        outer: OuterOptimizer = DILOCO,
        dense: Dense | None = None,
        groups: Grouping | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(manager, inner_optimizer)
        choices = Choices.of(compressor, memory=memory, communicator=communicator, dense=dense, groups=groups)
        choices.check()
        self._parameters, others = parameters_of(model)
        self._slots = slots_of(self._parameters)
        self._plan = partial(choices.plan(self._parameters), self._slots)
        schedule = Schedule(inner_steps, 1)
        (self._fragment,) = fragments_of(self._plan(), [tuple(self._parameters)], self._parameters, schedule)
        self.outer = outer(list(self._fragment.anchors.values()))
        words = {"front end": "torchft's LocalSteps", "inner_steps": str(inner_steps)}
        self._settings = Settings(seed=seed, others=others, words=words, elastic=True, voted=True)
        self._step, self._inner_steps = 0, inner_steps
        self._exchange = Exchange(manager, self._make)
        manager.register_state_dict_fn("gradwire's local steps", self._heal, self._shared)
        while not self._round():
            pass

    @property
    def handle(self) -> Handle:
        """Looks into what this replica exchanges in the present quorum."""
        return self._exchange.handle

    def zero_grad(self, set_to_none: bool = True) -> None:
        """An inner step begins."""
        self.optim.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """An inner step; after the last one of a round, the outer one."""
        self.optim.step(closure)
        self._step += 1
        if self._step % self._inner_steps == 0:
            self._round()

    def _round(self) -> bool:
        """Whether it counts."""
        self._exchange.begin()
        if runtime := self._exchange.runtime:
            try:
                self._average(runtime)
            except Interrupted as error:
                self.manager.report_error(error)
        counts = self._exchange.vote()
        if counts and self._fragment.is_finite():
            outer_step(self.outer, self._fragment, self._fragment.deltas)
            self._fragment.reset()
        else:
            go_back(self._fragment, self._parameters, self.optim)
        return counts

    def _average(self, runtime: Runtime) -> None:
        """What this replica has moved becomes what they have on average."""
        self._fragment.measure()
        runtime.open_step()
        for slot, about in enumerate(runtime.slots):
            runtime.submit(slot, self._fragment.deltas[about.name])
        runtime.finish()

    def _make(self, mesh: Mesh) -> tuple[Runtime, FrontEnd]:
        runtime = Runtime(self._plan, self._slots, mesh, device_of(self._parameters), self._settings)
        return runtime, _Shared(self._fragment)

    def _shared(self) -> dict[str, Any]:
        return {"anchors": self._fragment.anchors, "outer": self.outer.state_dict()}

    def _heal(self, state: dict[str, Any]) -> None:
        """Takes over what the others share; what this replica has moved is dropped."""
        for name, anchor in self._fragment.anchors.items():
            anchor.copy_(state["anchors"][name])
        self.outer.load_state_dict(state["outer"])
        self._fragment.reset()


class _Shared(Nothing):
    """Of local steps the replicas hold the anchors alike."""

    def __init__(self, fragment: Fragment) -> None:
        self._fragment = fragment

    def held(self) -> Mapping[str, Tensor]:
        return self._fragment.anchors


class _Gradients(GradientHooks):
    """As they are; where a replica is lost, the step goes on without means, and the manager hears why. `reduced` says
    that the step has its means."""

    def __init__(self, report: Callable[[Exception], None], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._report, self.reduced = report, False

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        self._unless_lost(super()._forward_begins, module, arguments)

    def _gradient_ready(self, slot: int, parameter: Tensor) -> None:
        self._unless_lost(super()._gradient_ready, slot, parameter)

    def _backward_begins(self, runtime: Runtime) -> None:
        if self.reduced:
            runtime.refuse("two backward passes in one step; all but the last belong under optimizer.no_sync()")
        super()._backward_begins(runtime)

    def _backward_done(self) -> None:
        self._unless_lost(super()._backward_done)
        self.reduced = True

    def _unless_lost(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._runtime is None:
            return
        try:
            call(*arguments)
        except Interrupted as error:
            self.unhook()
            self._report(error)
