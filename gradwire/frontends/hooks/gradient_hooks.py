"""Gradients taken by autograd hooks, of a model that no framework reduces, or one only inside replicas."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.frontends.checkpoints.distributed_checkpoint import ShardSpec, replicated_specs
from gradwire.frontends.front_end import FrontEnd
from gradwire.frontends.hooks.gradient_access import GradientAccess, Submitted
from gradwire.frontends.hooks.module_hooks import ByModel, Hook, RegisteredHooks, weakly
from gradwire.frontends.owners import check_alone, claim
from gradwire.frontends.paused import Accumulated, paused
from gradwire.frontends.trained import TrainedParameters
from gradwire.frontends.updates import UpdateWarning
from gradwire.runtime.runtime import Runtime
from gradwire.slots import real
from gradwire.torch_private.autograd import NO_PASS, backward_pass, in_backward, when_backward_ends
from gradwire.torch_private.compiled import named_parameters
from gradwire.transports.process_group import world_or

_OF_MODELS: ByModel["GradientHooks"] = ByModel()


class GradientHooks(FrontEnd):
    """Hooks that submit every gradient as backward makes it, and wait for the means when backward is done. They run on
    the thread that trains, or on autograd's while that one waits for it:

    1. The first gradient of a backward pass opens a step, and has autograd call `_backward_ends` at the pass's end.
       Where other parameters are `trained` than in the step before, the plan becomes one for these.
    2. A forward pass, `zero_grad` of a wrapped optimizer, or the next pass, gives up the steps of a backward pass that
       failed, for the other ranks wait for them.
    3. Each gradient is submitted; the worker reduces groups that are complete while backward goes on, but the last one.
    4. At the end of backward, slots without a gradient are submitted as absent, which completes the last groups, and
       `finish` waits for the worker. When `backward()` returns, every gradient is the mean.

    Each optimizer of a model has its own `GradientHooks`. A pass may reach their parameters in another order on each
    rank, or only some of them. So when a step opens, all ask for new plans, in the order in which they were made. Those
    with `find_unused` take a step in every pass, or give it up if the pass fails. None waits in 4 before all have
    submitted."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], model: nn.Module, gradients: GradientAccess, find_unused: bool,
        group: dist.ProcessGroup | None = None, trained: TrainedParameters | None = None,
    ) -> None:  # fmt: skip
        self.detached = False
        self._group = group
        self._trained = trained and trained.following()
        self._parameters = parameters
        self._model = model
        self._gradients = gradients
        self._find_unused = find_unused
        self._runtime: Runtime | None = None
        self._update_warning, self._registered = UpdateWarning(), RegisteredHooks()
        # gradients that were only accumulated, and those of the open step; backward passes do not only accumulate
        self._accumulated, self._submitted, self._synchronising = Accumulated(), Submitted(), True
        # a forward pass has begun, and no gradient has come since
        self._forward = False
        # a step is open; the backward pass that opened the last one; whether the runtime asks when gradients are ready
        self._under_way, self._pass, self._notes = False, NO_PASS, False
        # this rank takes part in every step, even where its own backward pass reaches none of these parameters
        self._joins = False

    def hook_in(self, runtime: Runtime) -> None:
        """Gradients go to the runtime from now on."""
        self.hook_forward(runtime)
        self._registered.keep(*self._gradients.hook_in(self._parameters.values()))
        slots: dict[Tensor, int] = {self._parameters[slot.name]: index for index, slot in enumerate(runtime.slots)}
        # weak: hooks on the model hold this front end already
        ready = weakly(self._gradient_ready)
        self._registered.on_gradients(slots, lambda slot: partial(ready, slot))

    def hook_forward(self, runtime: Runtime) -> None:
        """Forward passes are seen from now on, which give up a step whose backward pass failed."""
        self._runtime = runtime
        _OF_MODELS.add(self._model, self)
        self._registered.keep(
            self._model.register_forward_pre_hook(Hook(self._forward_begins), prepend=True),
            self._model.register_forward_hook(Hook(self._forward_ends)),
        )

    def claim(self, parameters: Iterable[Tensor], kind: str) -> None:
        """Claims parameters for this job, which users call `kind`, so that no other averages them."""
        if self._runtime:
            claim(parameters, self._runtime, kind)

    def unhook(self) -> None:
        self._registered.remove()
        self._runtime, self.detached = None, True

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        before, self._synchronising = self._synchronising, False
        try:
            yield
        finally:
            self._synchronising = before

    def paused(self) -> AbstractContextManager[None]:
        # another optimizer of the model may be averaging its own
        held = self._trained.held() if self._trained else self._parameters
        return paused(held.values(), self._accumulated, self.accumulate())

    def skip(self) -> None:
        if self._runtime:
            self._runtime.skip(self._accumulated.no_skip(self._gradients.has_accumulated()))

    def placed(self) -> Mapping[str, ShardSpec]:
        """A replica on every rank."""
        return replicated_specs(world_or(self._group), self._parameters)

    def held(self) -> Mapping[str, Tensor]:
        """All parameters of the model."""
        return {name: parameter for name, parameter in named_parameters(self._model) if parameter.numel()}

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        # not where a checkpoint's forward pass is repeated in backward
        if self._runtime and torch.is_grad_enabled() and not in_backward():
            self._give_up_failed()
            self.give_up()
            self._registered.check(self._runtime.refuse)
            check_alone(self._runtime)
            self._forward |= self._synchronising
            if not self._accumulated.slots:
                self._gradients.note(self._parameters.values())
            if not self._synchronising or self._gradients.only_accumulates():
                self._accumulated.since_step = True
            self._runtime.forward_begins()

    def give_up(self) -> None:
        """Gives up a step whose backward pass failed, for the other ranks wait for it."""
        if self._runtime:
            self._runtime.give_up()
            self._submitted.clear()
            self._under_way = False

    def gradients_cleared(self) -> None:
        """Gives up a step whose backward pass failed: `zero_grad` was called, and a forward pass may not be seen."""
        if not in_backward():
            self._accumulated.slots.clear()
            self._give_up_failed()
            if self._under_way:
                self.give_up()

    @property
    def _failed(self) -> bool:
        """Whether the backward pass that opened the last step failed; the next pass may have begun."""
        return self._under_way and self._runtime is not None and self._runtime.backward_failed()

    def _give_up_failed(self) -> None:
        """Gives up the steps of a failed pass, also for those of the model's optimizers to which it had not come."""
        failed = {each._pass for each in _OF_MODELS.of(self._model) if each._failed}
        for each in _OF_MODELS.of(self._model) if failed else ():
            # on other ranks the pass has come to it
            if each._runtime and each._joins and each._pass not in failed:
                each._runtime.open_step()
            if each._joins or each._pass in failed:
                each.give_up()

    def _forward_ends(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if self._runtime and torch.is_grad_enabled():
            self._runtime.forward_ends()

    def follow(self) -> None:
        """Makes the next step one of the parameters that are trained now, if there are any."""
        self._joins = False
        if self._runtime and self._trained and self._synchronising:
            self._joins = self._trained.follow(self._runtime) and self._find_unused

    def _gradient_ready(self, slot: int, parameter: Tensor) -> None:
        # a gradient of another optimizer's, or one that is not reduced yet
        if self._trained and not self._trained.holds(parameter):
            return
        if not self._synchronising or self._gradients.accumulates(parameter):
            self._accumulated.note(slot)
            return
        runtime = self._runtime
        assert runtime is not None
        # the first gradient of the pass opens the step, behind one whose pass failed
        if self._failed:
            self._give_up_failed()
        if not self._under_way:
            self._backward_begins(runtime)
            self._update_warning.look(parameter)
        if runtime.arrived[slot]:
            runtime.refuse(
                f"parameter {runtime.slots[slot].name!r} got two gradients in one backward; "
                "call the model once, and use torch.utils.checkpoint with use_reentrant=False"
            )
        gradient = self._gradients.gradient(parameter)
        if gradient is None:  # a user's hook took it: this rank has none
            return
        if self._notes:
            runtime.became_ready(slot)
        runtime.submit(slot, real(gradient))
        self._submitted.note(slot, parameter)

    def check_averaged(self) -> None:
        """Raises RuntimeError where the wrapped optimizer holds a parameter whose gradient is this rank's alone."""
        if self._runtime and self._trained:
            self._trained.check_averaged(self._runtime.slots[slot].name for slot in self._accumulated.slots)

    def _backward_begins(self, runtime: Runtime) -> None:
        if not in_backward():
            runtime.refuse(
                "gradients came outside of a backward pass, as torch's pipeline schedules have FSDP reduce them; "
                "train with loss.backward(), without pipeline stages"
            )
        # the end of backward is known from its first gradient on
        when_backward_ends(self._backward_ends)
        self._open_step(runtime)

    def _open_step(self, runtime: Runtime) -> None:
        self._give_up_failed()
        # frozen or thawed since the last step? all ranks meet, and get a plan for the new ones
        for each in _OF_MODELS.of(self._model):
            if not each._under_way:
                each.follow()
        runtime.open_step(until_backward_ends=True)
        self._pass = backward_pass()
        self._accumulated.check_reduced(runtime, self._parameters)
        self._notes = runtime.wants_readiness()
        if not self._forward:  # the loss came from another method than forward
            runtime.forward_begins()
            runtime.forward_ends()
        self._forward = False
        self._under_way = True
        self._accumulated.since_step = False

    def _backward_ends(self) -> None:
        left = self._complete()
        # on other ranks this pass may have come to parameters of other optimizers
        for each in _OF_MODELS.of(self._model):
            each._take_part()
        # none waits before all have submitted theirs
        when_backward_ends(partial(self._wait, left))

    def _take_part(self) -> None:
        """Takes a step without a gradient, where a backward pass has come to other optimizers' parameters alone."""
        if self._runtime and self._joins and self._pass != backward_pass():
            self._open_step(self._runtime)
            self._backward_ends()

    def _backward_done(self) -> None:
        """Ends a step where a framework says that its gradients are there."""
        self._wait(self._complete())

    def _complete(self) -> dict[int, Tensor]:
        """Submits what is missing; returns, by slot, the tensors that were sent for parameters without a gradient, in
        which `_wait` finds the means."""
        runtime = self._runtime
        assert runtime is not None
        self._under_way = False
        # gradients of earlier micro-batches, for slots that this pass did not reach
        gradients = {
            slot: self._gradients.gradient(self._parameter(runtime, slot)) if slot in self._accumulated.slots else None
            for slot in runtime.missing()
        }
        self._accumulated.slots.clear()
        unused = [slot for slot, gradient in gradients.items() if gradient is None]
        if unused and not self._find_unused:
            runtime.refuse(
                f"parameter {runtime.slots[unused[0]].name!r} got no gradient, or a hook set it to None; pass "
                "find_unused_parameters=True, or freeze it; use torch.utils.checkpoint with use_reentrant=False"
            )
        # the slots without any gradient take part with what is left of earlier ones, or zeros
        left = {slot: self._gradients.left(self._parameter(runtime, slot)) for slot in unused}
        for slot, gradient in gradients.items():
            if gradient is None:
                runtime.submit_absent(slot, real(left[slot]))
            else:
                runtime.submit(slot, real(gradient))
        runtime.backward_done()
        return left

    def _wait(self, left: dict[int, Tensor]) -> None:
        runtime = self._runtime
        assert runtime is not None
        self._submitted.check(runtime)
        # the training thread waits here for the worker
        runtime.finish()
        self._update_warning.mark(runtime.plan)
        # other ranks had a gradient, so their mean is this rank's as well
        for slot, mean in left.items():
            if runtime.used(slot):
                self._gradients.put(self._parameter(runtime, slot), mean)

    def _parameter(self, runtime: Runtime, slot: int) -> nn.Parameter:
        return self._parameters[runtime.slots[slot].name]
